"""What the rules ask while Snakemake plans: cells, paths, cores, digests.

`rules/common.smk` makes one object of each class. Methods that take `wildcards` are input functions.
"""
