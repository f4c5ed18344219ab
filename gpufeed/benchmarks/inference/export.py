"""Exports a kept model to files that run without gpufeed: a program of torch.export, and ONNX.

Each ONNX file also gets a version in half precision, since TensorRT computes in the types of its file.

Models are exported in a form that runs on any device (models.make.portable). Activations that are our own
kernels become torch's in the same form of GELU, so weights and results stay the same.
"""

import logging
import re
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from gpufeed.benchmarks.cell_document import cell_document
from gpufeed.benchmarks.inference.exported_files import (
    EXPORTED,
    INPUT,
    METADATA,
    NAMES,
    NOTHING,
    OUTPUT,
    metadata_text,
    row,
    troubles,
)
from gpufeed.benchmarks.saved_models.model_file import SavedModel, load
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError, Skip, install
from gpufeed.training.cell_training import with_status
from gpufeed.training.runtime_context import RuntimeContext

OPSET = 20  # has GELU and layer norm as single operators; TensorRT 10 and ONNX Runtime 1.17 read it
EXAMPLES = 2  # images that a model is traced with: 1 would become a constant
CHECKED = 5  # images for comparing a file, not the number that it was traced with
TOLERANCE = 1e-3  # share of the largest logit: the same float32 products in another order
# The same for a float16 file: a value that rounds the other way is off by a whole step of INT8.
HALF_TOLERANCES = {"onnx": 0.02, "onnx_int8": 0.1}
MOST_IMAGES = 65536  # per call
SEED = 1


def export_model(
    cell: dict, model: str | Path, folder: str | Path, planned_on: str, **asked: Any
) -> dict[str, Any]:
    """Write the files of the cell's model.pt, except those in INT8, into a folder, and return their list.

    A file that cannot be made is a row with a sentence, and the others are still made. This runs on the CPU,
    since the files do not depend on the node. planned_on, asked: as in cell_document.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    def work(cell: Cell, place: RuntimeContext) -> dict[str, Any]:
        saved, outcome = load(model), partial(with_status, cell)
        program = row("program", folder, partial(write_program, saved), outcome)
        onnx = row("onnx", folder, partial(write_onnx, saved), outcome)
        return {"rows": [program, onnx, half_row(onnx, folder, outcome)]}

    return cell_document(cell, work, NOTHING, planned_on, **asked)


def write_program(saved: SavedModel, path: Path) -> dict[str, Any]:
    """Export, save, and compare the saved file with the model; return fields of the file's row."""
    model = saved.build(torch.device("cpu"))
    program, dynamic = trace(model, saved.size)
    torch.export.save(program, path, extra_files={f"{METADATA}.json": metadata_text(saved)})
    again = torch.export.load(path).module()
    images = noise(saved.size, CHECKED if dynamic else EXAMPLES)
    with torch.inference_mode():
        difference = compared(again(images), model(images), path)
    return {"dynamic_batch": dynamic, "difference": difference}


def write_onnx(saved: SavedModel, path: Path) -> dict[str, Any]:
    """Export, save, check with onnx, and compare with the model by ONNX Runtime; return fields of the row.

    Raises Skip without the packages of the extra `all`.
    """
    onnx, onnxruntime = packages("onnx", "onnxruntime", "onnxscript")[:2]
    model = saved.build(torch.device("cpu"))
    program, dynamic = trace(model, saved.size)
    with quiet():
        made = torch.onnx.export(
            program,
            (noise(saved.size, EXAMPLES),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        ).model_proto
    name_batch(made)
    onnx.helper.set_model_props(made, {METADATA: metadata_text(saved)})
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = noise(saved.size, CHECKED if dynamic else EXAMPLES)
    (logits,) = session.run([OUTPUT], {INPUT: images.numpy()})
    with torch.inference_mode():
        difference = compared(torch.from_numpy(logits), model(images), path)
    return {"opset": OPSET, "dynamic_batch": dynamic, "difference": difference}


def half_row(source: dict[str, Any], folder: Path, outcome: Callable) -> dict[str, Any]:
    """Make the float16 version of the file of this row, and return its own row.

    If that file was not made, the new row has the same status and reason. outcome: as for
    gpufeed.benchmarks.inference.exported_files.row.
    """
    format = f"{source['format']}_fp16"
    if source["status"] != "done":
        return {**source, "format": format}

    def work(path: Path) -> dict[str, Any]:
        found = write_half(folder / NAMES[source["format"]], path, HALF_TOLERANCES[source["format"]])
        return {**found, "quantised": source["quantised"]}

    return row(format, folder, work, outcome)


def write_half(source: Path, path: Path, tolerance: float) -> dict[str, Any]:
    """Write the float16 version of an ONNX file, compare both, and return fields of its row.

    ONNX Runtime compares them without its optimiser, which changes the results of float16 scales.
    """
    onnx, onnxruntime = packages("onnx", "onnxruntime")
    model = onnx.load(source)
    with quiet():  # warnings of values too large for float16: the comparison finds those that matter
        halve(model.graph)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    size = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]]
    images = noise((size[0], size[1]), CHECKED if is_dynamic(model) else EXAMPLES).numpy()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    logits = []
    for file in (path, source):
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        logits.append(torch.from_numpy(session.run([OUTPUT], {INPUT: images})[0]))
    opset = next(opset.version for opset in model.opset_import if not opset.domain)
    difference = compared(*logits, path, tolerance)
    return {"opset": opset, "dynamic_batch": is_dynamic(model), "difference": difference}


def halve(graph: Any) -> None:
    """Make every float32 value of an ONNX graph float16, except its input and output, which are cast."""
    from onnx import TensorProto, helper, numpy_helper

    single, half = TensorProto.FLOAT, TensorProto.FLOAT16
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    constants = [attribute.t for attribute in attributes if attribute.HasField("t")]
    for tensor in (*graph.initializer, *constants):
        if tensor.data_type == single:
            values = numpy_helper.to_array(tensor).astype("float16")
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == single:  # of a cast
            attribute.i = half
    for value in graph.value_info:
        if value.type.tensor_type.elem_type == single:
            value.type.tensor_type.elem_type = half
    inner = {name: f"{name}_fp16" for name in (INPUT, OUTPUT)}
    for node in graph.node:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    graph.node.insert(0, helper.make_node("Cast", [INPUT], [inner[INPUT]], "images_to_half", to=half))
    graph.node.append(helper.make_node("Cast", [inner[OUTPUT]], [OUTPUT], "logits_to_float", to=single))


def is_dynamic(model: Any) -> bool:
    """Return whether an ONNX model takes any number of images."""
    return bool(model.graph.input[0].type.tensor_type.shape.dim[0].dim_param)


def name_batch(made: Any) -> None:
    """Rename the batch dimension of an ONNX model to `batch`."""
    symbol = made.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    if not symbol:
        return
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(rf"\b{symbol}\b", "batch", dim.dim_param)


def trace(model: nn.Module, size: tuple[int, int]) -> tuple[ExportedProgram, bool]:
    """Return the exported program of a CPU model in evaluation mode, and whether it takes any batch size.

    len() of a tensor becomes a constant unless Python is traced too (strict), which other code forbids. So
    both are tried, and then a fixed batch size.
    """
    images = noise(size, EXAMPLES)
    dynamic = ({0: Dim("batch", min=1, max=MOST_IMAGES)},)
    for shapes, strict in ((dynamic, False), (dynamic, True)):
        try:
            with quiet():
                return torch.export.export(model, (images,), dynamic_shapes=shapes, strict=strict), True
        except Exception as error:  # of many types: UserError, Unsupported, RuntimeError ...
            logging.getLogger("gpufeed").info("no export with any batch, strict %s: %s", strict, error)
    with quiet():
        return torch.export.export(model, (images,)), False


def noise(size: tuple[int, int], n: int) -> torch.Tensor:
    """Return random images, float32 (n, 3, H, W), the same each time."""
    return torch.randn((n, 3, *size), generator=torch.Generator().manual_seed(SEED))


def compared(found: torch.Tensor, wanted: torch.Tensor, path: Path, tolerance: float = TOLERANCE) -> float:
    """Return the largest difference of logits (n, classes); raise GpufeedError if it is not just rounding."""
    difference, largest = (found - wanted).abs().max().item(), wanted.abs().max().item()
    if not difference <= tolerance * max(1.0, largest):  # true of NaN too
        raise GpufeedError(
            f"logits of {path.name} that differ by up to {difference:.2g} from the model's",
            f"at most {tolerance * max(1.0, largest):.2g}",
            "do not use this file, and report it",
        )
    return difference


def packages(*names: str) -> list[Any]:
    """Return modules of the extra `all`; raise Skip for the first one that is not installed."""
    from importlib import import_module

    try:
        return [import_module(name) for name in names]
    except ModuleNotFoundError as error:
        raise Skip(
            f"The package {error.name} is not installed here: {install(error.name)} brings it."
        ) from error


@contextmanager
def quiet():
    """Silence warnings and exporters' messages about operators that no model here has."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def for_job(job: Any) -> None:
    """Run rule export_model. job: a gpufeed.job.Job."""
    found = export_model(job.cell, job.input.model, job.output.files, **job.common_arguments)
    what = f"export of {job.wildcards.cell}"
    job.write_document(found, job.output.exported, EXPORTED.write, what, troubles(found))
