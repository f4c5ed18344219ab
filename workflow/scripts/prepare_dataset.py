"""Archives -> image files in class folders, and their manifest."""

from pathlib import Path

from gpufeed.log import job_log
from gpufeed.registry import load

with job_log(snakemake.log[0]) as log:  # noqa: F821
    job = snakemake  # noqa: F821
    reorganise = load("layout", job.params.layout)
    manifest = reorganise(
        [Path(path) for path in job.input.get("archives") or []],
        Path(job.output.manifest).parent,
        job.params.dataset,
        dict(job.params.options),
    )
    log.info("%s: %s images", job.params.dataset, manifest.table["split"].value_counts().to_dict())
    for sentence, count in manifest.info.left_out.items():
        log.info("left out: %d %s", count, sentence)
