"""Composes one cell by Hydra and writes it, if it is the cell that was planned."""

from gpufeed import cell_file
from gpufeed.compose import compose_cell
from gpufeed.log import job_log

with job_log(snakemake.log[0]) as log:  # noqa: F821
    job = snakemake  # noqa: F821
    cell, comment = compose_cell(job.params.cell, job.config)
    cell_file.write(job.output.cell, cell, comment)
    log.info("%s", cell.id)
