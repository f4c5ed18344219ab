"""Which modules a job runs, as a digest: an edit of one of them runs the job again."""

from typing import Any

from gpufeed.code import digest
from gpufeed.kernels.plan import AUGMENT
from gpufeed.registry import DECODERS, LOADERS, MODELS, source_file, takes_extension
from gpufeed.sweep.plan import STRIP_SETS
from gpufeed.workflow.benchmarks import Benchmarks
from gpufeed.workflow.run import Run


def code_of_loader(loader: str) -> tuple[str, ...]:
    """Return the modules that decide what a loader yields, and when."""
    modules = (
        source_file("loader", loader),
        "loaders/base.py",
        "loaders/order.py",
        "loaders/samples.py",
        "loaders/ahead.py",
    )
    modules += (
        "loaders/transfer.py",
        "decode/base.py",
        "decode/pillow.py",
        "data/manifest.py",
        "data/noise.py",
        "data/resize.py",
    )
    if LOADERS[loader].reads == "cache":
        modules += ("loaders/resident.py", "loaders/rows.py", "cache/*.py", "memory.py")
    if loader in DECODERS:
        modules += ("loaders/streaming.py", "loaders/files.py", "loaders/dali*.py", "decode/*.py")
    if loader == "dali_gpu":
        modules += ("gpu.py",)
    if LOADERS[loader].reads == "strips":
        modules += ("strips/**/*.py",)
    if LOADERS[loader].reads == "shards":
        modules += ("shards/*.py", "loaders/peers.py")
    if LOADERS[loader].reads == "beton":
        modules += ("beton/*.py", "loaders/peers.py", "decode/tally.py")
    if LOADERS[loader].extension:
        modules += ("loaders/coded_store.py", "loaders/rounds.py", "loaders/files.py", "memory.py")
        modules += ("decode/jpeg_groups.py", "decode/tally.py", "ops/jpeg.py", "strips/parse.py")
    if loader in ("spdl", "spdl_processes"):
        modules += ("loaders/spdl*.py", "loaders/peers.py", "processes.py")
        modules += ("decode/files.py", "decode/header.py", "decode/tally.py")
    return modules


def code_of_decoder(decoder: str) -> tuple[str, ...]:
    """Return the modules that decide what a decoder decodes; the library is an input."""
    strips = ("strips/**/*.py",) if decoder in STRIP_SETS else ()
    ours = ("ops/jpeg.py", "strips/parse.py") if takes_extension(decoder) else ()
    return ("decode/*.py", "gpu.py", *strips, *ours)


class Codes:
    """The digests of the jobs of a run."""

    def __init__(self, run: Run, benchmarks: Benchmarks):
        self.run, self.benchmarks = run, benchmarks

    def code_of_layout(self, wildcards: Any) -> tuple[str, ...]:
        """Return the modules that decide what prepare_dataset writes."""
        layout = self.run.config["sources"][wildcards.dataset]["layout"]
        own = (source_file("layout", layout), "data/manifest.py", "data/prepare.py", "data/quarantine.py")
        idx = ("data/idx.py",) if layout in ("fashion_mnist", "gray_idx") else ()
        listing = ("data/listing.py",) if layout == "image_folder" else ()
        packed = ("data/packed.py",) if self.run.config["data_form"] == "packed" else ()
        return (*own, "decode/pillow.py", *idx, *listing, *packed)

    def code_of_training(self, wildcards: Any) -> tuple[str, ...]:
        """Return the modules that decide how a cell is trained."""
        cell = self.run.cell_of(wildcards)
        own = [source_file(kind, getattr(cell, kind)) for kind in ("augment", "model", "trainer")]
        own += ["models/make.py"]
        own += ["models/vit*.py", "models/mlp.py"] if MODELS[cell.model].sized else []
        own += ["compiling.py"] if cell.compile else []
        own += ["ddp/*.py"] if cell.ranks > 1 else []
        own += ["ops/*.py"] if self.run.extension_of(wildcards) else []
        own += ["augment/fastai_transform.py"] if cell.trainer == "fastai" else []
        own += [
            "training.py",
            "parts.py",
            "smaller_batch.py",
            "timing.py",
            "devices.py",
            "trainers/*.py",
            "augment/base.py",
            "augment/draws.py",
        ]
        own += ["augment/amounts.py", "augment/checks.py", "augment/philox.py", "augment/*_kernel*.py"]
        own += ["augment/exchange.py"] if cell.augment == "chain" else []
        return (*own, *code_of_loader(cell.loader))

    def code_of_cell(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what a cell measures: an edit measures it again."""
        return digest("measure.py", "heap.py", "telemetry/*.py", *self.code_of_training(wildcards))

    def code_of_model(self, wildcards: Any) -> tuple[str, ...]:
        """Return the modules that decide what a kept model computes."""
        model = self.run.cell_of(wildcards).model
        own = (source_file("model", model), "models/make.py", "trained/model_file.py")
        return (*own, "models/vit*.py", "models/mlp.py") if MODELS[model].sized else own

    def code_of_quantisation(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what the INT8 files hold; the ONNX file is an input."""
        own = (f"inference/{name}.py" for name in ("quantise", "export", "images", "files"))
        return digest(*own, *code_of_loader(self.run.cell_of(wildcards).loader))

    def code_of_inference(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what is measured of a model in use."""
        own = ("inference/*.py", "inference/backends/*.py", "compiling.py", "devices.py", "timing.py")
        return digest(
            *own, *self.code_of_model(wildcards), *code_of_loader(self.run.cell_of(wildcards).loader)
        )

    def code_of_ceilings(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what is measured of a cell's ceilings.

        The verdict is the report's.
        """
        own = (
            f"ceilings/{name}.py"
            for name in ("measure", "segments", "inputs", "stages", "shares", "replayed")
        )
        return digest(
            *own, "sweep/page_cache.py", "decode/before.py", "heap.py", *self.code_of_training(wildcards)
        )

    def code_of_kernels(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what a benchmark measures; the library is an input."""
        works = (
            ["augment/*.py"]
            if self.benchmarks.works_of_kernels(wildcards) == AUGMENT
            else ["augment/amounts.py", "ops/*.py"]
        )
        own = [
            "measure",
            "clock",
            "ceilings",
            "plan",
            "task",
            "record",
            self.benchmarks.works_of_kernels(wildcards),
        ]
        return digest(*(f"kernels/{name}.py" for name in own), *works, "heap.py")
