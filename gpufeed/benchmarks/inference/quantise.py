"""Static INT8: an ONNX file with explicit quantisation (Q/DQ nodes), calibrated on training images.

The form is TensorRT's, which ONNX Runtime accepts too. Values are signed with zero points of 0, activations
have one scale per tensor, weights one per output channel. Weights are stored as int8, and biases stay in
float32. Convolutions and products with weights are quantised. A product of two activations, as in attention,
stays in float32. Source: TensorRT, Working with Quantized Types; ONNX Runtime, Quantize ONNX Models.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.benchmarks.inference.calibration_images import first, requested
from gpufeed.benchmarks.inference.export import half_row, is_dynamic, packages, quiet
from gpufeed.benchmarks.inference.exported_files import EXPORTED, INPUT, NOTHING, Files, find, row, troubles
from gpufeed.core.cells import Cell
from gpufeed.datasets.manifest import Manifest
from gpufeed.training.cell_training import with_status
from gpufeed.training.runtime_context import RuntimeContext, Stores

OPERATORS = ("Conv", "Gemm", "MatMul")
BATCH = 32  # calibration images per call, whose activations are all in memory at once
OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "QuantizeBias": False,
    "CalibStridedMinMax": 1,  # one call at a time, with any method
}


def quantise_model(
    cell: dict,
    files: Files,
    manifest: str | Path,
    stores: Stores,
    calibration: Mapping[str, Any],
    folder: str | Path,
    planned_on: str,
    **asked: Any,
) -> dict[str, Any]:
    """Write both INT8 files into a folder and return their list, as export_model does.

    files: those that export_model made. calibration: images, method and seed (gpufeed.core.plan_inference).
    planned_on, asked: as in cell_document. Status and sentence are those of the first file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        def write(path: Path) -> dict[str, Any]:
            source = files.path("onnx")
            packages("onnx", "onnxruntime")
            place.find(cell)
            images = calibration_images(cell, Manifest.read(manifest), stores, place.device, calibration)
            return quantise(source, images, calibration["method"], path)

        outcome = partial(with_status, cell)
        made = row("onnx_int8", folder, write, outcome)
        told = {"split": "train", **calibration} if made["status"] == "done" else None
        about = {"status": made["status"], "sentence": made["sentence"], "calibration": told}
        return about | {"rows": [made, half_row(made, folder, outcome)]}

    return cell_document(cell, work, NOTHING, planned_on, **asked)


def calibration_images(
    cell: Cell, samples: Manifest, stores: Stores, device: torch.device, calibration: Mapping[str, Any]
) -> np.ndarray:
    """Return training images drawn by the seed, float32 (images, 3, H, W), through the cell's loader."""
    request = requested(cell, samples, stores, device, min(BATCH, calibration["images"]))
    request = replace(request, seed=calibration["seed"])
    n = min(calibration["images"], len(samples.ids("train")))
    return first(cell, request, n).cpu().numpy()


def quantise(source: Path, images: np.ndarray, method: str, path: Path) -> dict[str, Any]:
    """Write the quantised file; return fields of its row. images: float32 (n, 3, H, W)."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    methods = {name.lower(): value for name, value in CalibrationMethod.__members__.items()}
    with tempfile.TemporaryDirectory() as scratch, quiet():
        prepared = Path(scratch) / "prepared.onnx"
        # folds batch norms, and transposed weights, which would not count as weights
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            path,
            reader(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(OPERATORS),
            nodes_to_exclude=without_weights(onnx.load(prepared)),
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=methods[method],
            extra_options=OPTIONS,
        )
    model, original = onnx.load(path), onnx.load(source)
    used = {node.domain for node in model.graph.node}
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)  # without those of onnxruntime's own operators, which are unused
    del model.metadata_props[:]
    model.metadata_props.extend(original.metadata_props)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    opset = next(opset.version for opset in kept if not opset.domain)
    return {"opset": opset, "dynamic_batch": is_dynamic(model), "quantised": quantised(model)}


def without_weights(model: Any) -> list[str]:
    """Return the names of the nodes that multiply two activations."""
    weights = {entry.name for entry in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in OPERATORS]
    return [node.name for node in nodes if not weights & set(node.input)]


def quantised(model: Any) -> dict[str, int]:
    """Return how many of a model's convolutions and products have quantised inputs, and of how many.

    Products of two activations count in the total, but are never quantised.
    """
    dequantised = {
        name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output
    }
    nodes = [node for node in model.graph.node if node.op_type in OPERATORS]
    return {
        "layers": sum(all(name in dequantised for name in node.input[:2]) for node in nodes),
        "of": len(nodes),
    }


def reader(images: np.ndarray) -> Any:
    """Return onnxruntime's reader of calibration images, BATCH per call."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.calls = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
            self.set_range(0, len(self.calls))

        def __len__(self) -> int:
            return len(self.calls)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.rest = iter(self.calls[start_index:end_index])

        def get_next(self) -> dict[str, np.ndarray] | None:
            call = next(self.rest, None)
            return None if call is None else {INPUT: call}

    return Reader()


def for_job(job: Any) -> None:
    """Run rule quantise_model. job: a gpufeed.job.Job."""
    job.take_gpus(1, job.cell["device"])
    given, what = job.input, f"INT8 file of {job.wildcards.cell}"
    exported, calibration = find({given.exported: given.exported_files}), job.params.calibration
    found = quantise_model(
        job.cell, exported, given.manifest, job.stores, calibration, job.output.files, **job.common_arguments
    )
    job.write_document(found, job.output.quantised, EXPORTED.write, what, troubles(found))
