"""What is wrong with a run on a cluster, before its first job is submitted.

`site` and `asked_plan` read what the site allows and what the rules ask for, `login_node` looks at the node.
`asked`, `asked_gpus`, `asked_amounts`, `asked_options`, `asked_extra`, `shell_variables`, `software_checks`,
`container` and `storage` hold the checks: functions of those three that yield findings.
"""
