"""Export a kept model to a program of torch.export and to ONNX, and list what was made."""

from gpufeed.job import Job, run


def work(job: Job) -> None:
    from gpufeed.benchmarks.inference.export import for_job

    for_job(job)


if __name__ == "__main__":
    run(snakemake, work)
