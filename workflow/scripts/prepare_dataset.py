"""Archives -> image files in class folders, and their manifest."""

from gpufeed import orphan

if __name__ == "__main__":
    orphan.end_with_snakemake()

from pathlib import Path

from gpufeed.data.prepare import prepare
from gpufeed.log import job_log

if __name__ == "__main__":  # worker processes may import this file again
    with job_log(snakemake.log[0]) as log:  # noqa: F821
        job = snakemake  # noqa: F821
        archives = job.input.get("archives") or []
        if job.params.get("folder"):
            archives = job.params.folder["path"]
        manifest = prepare(
            job.params.layout,
            [Path(path) for path in ([archives] if isinstance(archives, str) else archives)],
            Path(job.output.manifest).parent,
            job.params.dataset,
            dict(job.params.options),
            # from the config and not from params: another limit does not change what is already prepared
            max_quarantined_share=job.config["max_quarantined_share"],
            workers=job.threads,
            resize=tuple(job.params.resize) if job.params.resize else None,
            form=job.config["data_form"],
        )
        manifest.image_size()  # several sizes cannot be one batch: said now, not by each cell
        log.info("%s: %s images", job.params.dataset, manifest.table["split"].value_counts().to_dict())
        log.info("quarantined: %d", len(manifest.info.quarantined))
        for sentence, count in manifest.info.left_out.items():
            log.info("left out: %d %s", count, sentence)
