"""One file of a dataset, from a folder of archives or a URL, checked."""

from pathlib import Path

from gpufeed.data.fetch import SourceFile, fetch
from gpufeed.log import job_log

with job_log(snakemake.log[0]) as log:  # noqa: F821
    job = snakemake  # noqa: F821
    row = job.params.file
    file = SourceFile(row["name"], tuple(row.get("urls") or ()), row.get("sha256"), row.get("size"))
    target = fetch(file, Path(job.output[0]), [Path(folder) for folder in job.params.archives])
    log.info("%s: %d bytes", target, target.stat().st_size)
