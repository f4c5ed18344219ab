# A planned cell, composed once more by Hydra from config/hydra -> the one file by which it comes to its jobs.


rule compose_cell:
    output:
        cell=CELL_FILE,
    log:
        f"{RESULTS}/logs/compose_cell/{{experiment}}/{{cell}}.log",
    priority: ORDER.before_all
    localrule: True  # a second of one core
    conda:
        "../envs/gpufeed.yaml"
    params:
        cell=lambda wildcards: cell_of(wildcards).asdict(),
    script:
        "../workflow/scripts/compose_cell.py"
