"""What is wrong with a run on a cluster, before its first job is submitted.

`site` and `plan` read what the site allows and what the rules ask for, `node` looks at the login node.
`asked`, `asked_gpus`, `asked_amounts`, `asked_options`, `asked_extra`, `shell`, `software`, `container` and
`storage` hold the checks: functions of those three that yield findings.
"""
