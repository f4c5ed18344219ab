"""Asks a kept model about image files; a file without a prediction has a row with the reason."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed import leases
from gpufeed.log import job_log
from gpufeed.trained.predict import predict_to_csv

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    leases.take(1, job.params.device, job.threads, job.resources.get("shares", 1))
    predict_to_csv(job.input.model, job.input.files, job.output.predictions, job.params.device)
