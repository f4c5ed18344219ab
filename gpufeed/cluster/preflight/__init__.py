"""What is wrong with a run on a cluster, before its first job is submitted.

`site` reads what the site allows, `asked_plan` what the rules ask for, and `login_node` looks at the node.
The checks are functions of these three that yield findings (`finding`). `asked` checks what the jobs ask
for: GPUs, cores and memory by `asked_resources`, options from elsewhere by `asked_extra`, both with the words
of an sbatch line from `sbatch_options`. `software_checks` and `storage` check the rest, and `command` runs
all of them.
"""
