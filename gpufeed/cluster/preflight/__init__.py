"""What is wrong with a run on a cluster, before its first job is submitted.

`asked_plan` reads what the rules ask for, `site` what the site allows, and `login_node` looks at the node.
The checks are functions of these three that yield findings (`finding`). `sbatch_answers` has Slurm judge each
line, `asked` finds what Slurm takes without a word, `software_checks` and `storage` check the rest, and
`command` runs all of them.
"""
