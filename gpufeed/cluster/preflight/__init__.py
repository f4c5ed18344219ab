"""What is wrong with a run on a cluster, before its first job is submitted.

`asked_plan` reads what the rules request, `site` what the site allows, and `login_node` looks at the node.
The checks are functions of these three that yield findings (`finding`). `sbatch_answers` lets Slurm judge
each line, and `asked` finds what Slurm silently accepts. `software_checks` and `storage` check the rest, and
`command` runs all of them.
"""
