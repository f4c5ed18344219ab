"""Asks a kept model about image files; a file without a prediction has a row with the reason."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from gpufeed import leases
from gpufeed.log import job_log
from gpufeed.trained.images import samples
from gpufeed.trained.predict import predict_to_csv

with job_log(snakemake.log[0]):  # noqa: F821
    job = snakemake  # noqa: F821
    leases.take(1, job.params.device, job.threads, job.resources.get("shares", 1))
    files = list(job.input.files)
    if job.params.samples:
        files += samples(job.input.manifest, job.params.samples)
    predict_to_csv(job.input.model, files, job.output.predictions, job.params.device)
