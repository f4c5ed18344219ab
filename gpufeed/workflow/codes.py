"""Which modules a job runs, as a digest: an edit of one of them runs the job again."""

from typing import Any

from gpufeed.core.plan_decoding import STRIP_SETS
from gpufeed.core.plan_kernels import AUGMENT
from gpufeed.core.registry import DECODERS, LOADERS, MODELS, source_file, takes_extension
from gpufeed.core.source_digest import digest
from gpufeed.workflow.benchmarks import Benchmarks
from gpufeed.workflow.run import Run


def code_of_loader(loader: str) -> tuple[str, ...]:
    """Return the modules that decide what a loader yields, and when."""
    modules = (
        source_file("loader", loader),
        "loaders/base.py",
        "loaders/sample_order.py",
        "loaders/samples.py",
        "loaders/prefetch.py",
    )
    modules += (
        "loaders/batch_transfer.py",
        "decoders/base.py",
        "decoders/pillow.py",
        "datasets/manifest.py",
        "datasets/noise.py",
        "decoders/resize.py",
    )
    if LOADERS[loader].reads == "cache":
        modules += (
            "loaders/resident.py",
            "stores/cache_*.py",
            "stores/decoded_cache.py",
            "system/host_memory.py",
        )
    if loader in DECODERS:
        modules += ("loaders/streaming.py", "loaders/batch_files.py", "loaders/dali*.py", "decoders/*.py")
    if loader == "dali_gpu":
        modules += ("system/gpu.py",)
    if LOADERS[loader].reads == "strips":
        modules += (
            "stores/strips_*.py",
            "stores/strip_backends/*.py",
            "decoders/jpeg_parser.py",
            "decoders/strip_joiner.py",
        )
    if LOADERS[loader].reads == "shards":
        modules += ("stores/shards_*.py", "loaders/peer_packages.py")
    if LOADERS[loader].reads == "beton":
        modules += ("stores/ffcv_*.py", "loaders/peer_packages.py", "decoders/decode_counts.py")
    if LOADERS[loader].extension:
        modules += (
            "loaders/coded_store.py",
            "loaders/decode_rounds.py",
            "loaders/batch_files.py",
            "system/host_memory.py",
        )
        modules += (
            "decoders/jpeg_groups.py",
            "decoders/decode_counts.py",
            "native/jpeg_op.py",
            "decoders/jpeg_parser.py",
        )
    if loader in ("spdl", "spdl_processes"):
        modules += ("loaders/spdl*.py", "loaders/peer_packages.py", "system/processes.py")
        modules += ("decoders/file_bytes.py", "decoders/file_header.py", "decoders/decode_counts.py")
    return modules


def code_of_decoder(decoder: str) -> tuple[str, ...]:
    """Return the modules that decide what a decoder decodes; the library is an input."""
    strips = (
        (
            "stores/strips_*.py",
            "stores/strip_backends/*.py",
            "decoders/jpeg_parser.py",
            "decoders/strip_joiner.py",
        )
        if decoder in STRIP_SETS
        else ()
    )
    ours = ("native/jpeg_op.py", "decoders/jpeg_parser.py") if takes_extension(decoder) else ()
    return ("decoders/*.py", "system/gpu.py", *strips, *ours)


class Codes:
    """The digests of the jobs of a run."""

    def __init__(self, run: Run, benchmarks: Benchmarks):
        self.run, self.benchmarks = run, benchmarks

    def code_of_layout(self, wildcards: Any) -> tuple[str, ...]:
        """Return the modules that decide what prepare_dataset writes."""
        layout = self.run.config["sources"][wildcards.dataset]["layout"]
        own = (
            source_file("layout", layout),
            "datasets/manifest.py",
            "datasets/prepare.py",
            "datasets/quarantine.py",
        )
        idx = ("datasets/idx.py",) if layout in ("fashion_mnist", "gray_idx") else ()
        listing = ("core/image_listing.py",) if layout == "image_folder" else ()
        packed = ("datasets/packed.py",) if self.run.config["data_form"] == "packed" else ()
        return (*own, "decoders/pillow.py", *idx, *listing, *packed)

    def code_of_training(self, wildcards: Any) -> tuple[str, ...]:
        """Return the modules that decide how a cell is trained."""
        cell = self.run.cell_of(wildcards)
        own = [source_file(kind, getattr(cell, kind)) for kind in ("augment", "model", "trainer")]
        own += ["models/make.py"]
        own += ["models/vit*.py", "core/vit_options.py", "models/mlp.py"] if MODELS[cell.model].sized else []
        own += ["native/torch_compile.py"] if cell.compile else []
        own += ["training/distributed/*.py"] if cell.ranks > 1 else []
        own += ["native/*.py"] if self.run.extension_of(wildcards) else []
        own += ["augment/fastai_transform.py"] if cell.trainer == "fastai" else []
        own += [
            "training/cell_training.py",
            "training/runtime_context.py",
            "training/smaller_batch.py",
            "system/timing.py",
            "system/devices.py",
            "training/*.py",
            "training/engines/*.py",
            "augment/base.py",
            "system/random_draws.py",
        ]
        own += ["augment/amounts.py", "augment/batch_checks.py", "system/philox.py", "augment/*_kernel*.py"]
        own += ["augment/exchange.py"] if cell.augment == "chain" else []
        return (*own, *code_of_loader(cell.loader))

    def code_of_cell(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what a cell measures: an edit measures it again."""
        return digest(
            "benchmarks/end_to_end.py",
            "system/heap.py",
            "system/telemetry/*.py",
            *self.code_of_training(wildcards),
        )

    def code_of_model(self, wildcards: Any) -> tuple[str, ...]:
        """Return the modules that decide what a kept model computes."""
        model = self.run.cell_of(wildcards).model
        own = (source_file("model", model), "models/make.py", "benchmarks/saved_models/model_file.py")
        return (
            (*own, "models/vit*.py", "core/vit_options.py", "models/mlp.py") if MODELS[model].sized else own
        )

    def code_of_quantisation(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what the INT8 files hold; the ONNX file is an input."""
        own = (
            "benchmarks/inference/quantise.py",
            "benchmarks/inference/export.py",
            "benchmarks/inference/calibration_images.py",
            "benchmarks/inference/exported_files.py",
        )
        return digest(*own, *code_of_loader(self.run.cell_of(wildcards).loader))

    def code_of_inference(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what is measured of a model in use."""
        own = (
            "benchmarks/inference/*.py",
            "benchmarks/inference/backends/*.py",
            "native/torch_compile.py",
            "system/devices.py",
            "system/timing.py",
        )
        return digest(
            *own, *self.code_of_model(wildcards), *code_of_loader(self.run.cell_of(wildcards).loader)
        )

    def code_of_ceilings(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what is measured of a cell's ceilings.

        The verdict is the report's.
        """
        own = (
            "benchmarks/ceilings/ceiling_benchmark.py",
            "benchmarks/ceilings/segments.py",
            "benchmarks/ceilings/input_only.py",
            "benchmarks/ceilings/stages.py",
            "benchmarks/ceilings/shares.py",
            "benchmarks/ceilings/replayed_batch.py",
        )
        return digest(
            *own,
            "system/page_cache.py",
            "decoders/decoded_before.py",
            "system/heap.py",
            *self.code_of_training(wildcards),
        )

    def code_of_kernels(self, wildcards: Any) -> str:
        """Return a digest of the modules that decide what a benchmark measures; the library is an input."""
        works = (
            ["augment/*.py"]
            if self.benchmarks.works_of_kernels(wildcards) == AUGMENT
            else ["augment/amounts.py", "native/*.py"]
        )
        own = [
            "benchmarks/kernels/kernel_benchmark.py",
            "benchmarks/kernels/kernel_clock.py",
            "benchmarks/kernels/device_ceilings.py",
            "core/plan_kernels.py",
            "benchmarks/kernels/kernel_task.py",
            "core/kernel_record.py",
            f"benchmarks/kernels/{self.benchmarks.works_of_kernels(wildcards)}_work.py",
        ]
        return digest(*own, *works, "system/heap.py")
