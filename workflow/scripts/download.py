"""One file of a dataset, from a folder of archives or a URL, checked."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed.data.fetch import SourceFile, fetch
from gpufeed.log import job_log

with job_log(snakemake.log[0]) as log:  # noqa: F821
    job = snakemake  # noqa: F821
    # places come from the config and not from params: a new mirror is no reason to fetch again
    rows = job.config["sources"][job.wildcards.dataset]["files"]
    urls = next(row.get("urls") for row in rows if row["name"] == job.params.file["name"]) or ()
    file = SourceFile(urls=tuple(urls), **job.params.file)
    archives, least = [Path(folder) for folder in job.config["archives"]], job.config["least_download_kb_s"]
    target = fetch(file, Path(job.output[0]), archives, least_kb_s=least)
    log.info("%s: %d bytes", target, target.stat().st_size)
