"""Engines of TensorRT and TensorRT for RTX, built from our ONNX files if the packages are installed.

Networks are strongly typed: an engine computes in the precisions of its file. TensorRT for RTX can also build
without a GPU, for the compute capabilities that it knows. No engine of either has been run yet.
"""

import logging
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting
from gpufeed.benchmarks.inference.exported_files import INPUT, OUTPUT
from gpufeed.core.errors import GpufeedError, Skip, install

WORKSPACE = 4 * 2**30  # bytes that building may take
FILES = {"fp32": "onnx", "fp16": "onnx_fp16", "int8": "onnx_int8"}
TURING = (7, 5)


def prepare(setting: Setting) -> Ready:
    """Prepare TensorRT, as `gpufeed.benchmarks.inference.backend` defines it."""
    path = setting.files.path(FILES[setting.precision])
    trt = library("TensorRT", "tensorrt", "it is in NVIDIA's package index: see docs/reference/inference.md")
    require_cuda("TensorRT", setting)
    return ready("TensorRT", trt, setting, path)


def prepare_rtx(setting: Setting) -> Ready:
    """Prepare TensorRT for RTX, as `benchmarks.inference.backend` defines it; INT8 has the rest in fp16."""
    name, quantised = "TensorRT for RTX", setting.precision == "int8"
    path = setting.files.path("onnx_int8_fp16" if quantised else FILES[setting.precision])
    trt = library(name, "tensorrt_rtx_bindings", f"{install('tensorrt_rtx_bindings')} brings it")
    require_cuda(name, setting)
    capability = torch.cuda.get_device_capability(setting.device)
    target = target_of(trt, capability, torch.cuda.get_device_name(setting.device), setting.precision)
    return ready(name, trt, setting, path, target)


def library(name: str, module: str, way: str) -> Any:
    """Import the package; raise Skip with the way to install it."""
    try:
        return import_module(module)
    except ImportError as error:  # also for a library that the package does not find
        raise Skip(f"{name} is not installed here ({error}): {way}.") from error


def require_cuda(name: str, setting: Setting) -> None:
    """Raise Skip without a CUDA GPU."""
    if setting.device.type != "cuda":
        raise Skip(f"{name} needs a CUDA GPU, and this cell's device is {setting.device.type}.")


def target_of(trt: Any, capability: tuple[int, int], gpu: str, precision: str) -> Any:
    """Return TensorRT for RTX's name of a compute capability; raise Skip if it cannot build for it."""
    targets = {int(target): target for target in trt.ComputeCapability.__members__.values()}
    number = capability[0] * 10 + capability[1]
    if number not in targets:
        known = ", ".join(f"{one // 10}.{one % 10}" for one in sorted(targets) if one >= 10)
        raise Skip(
            f"TensorRT for RTX {trt.__version__} builds for compute capability {known}, and {gpu} has "
            f"{capability[0]}.{capability[1]}."
        )
    if capability == TURING and precision == "fp32":
        raise Skip(
            f"TensorRT for RTX has no float32 products for compute capability 7.5, which {gpu} has: "
            "use fp16 or int8."
        )
    return targets[number]


def ready(name: str, trt: Any, setting: Setting, path: Path, target: Any = None) -> Ready:
    """Build the engine for this batch size; raise Skip if it cannot be loaded."""
    log = listener(trt)
    plan = built(trt, log, path, tuple(setting.images.shape), target)
    runtime = trt.Runtime(log)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise Skip(
            f"{name} {trt.__version__} built an engine that does not load here, perhaps because the driver "
            f"is too old: {reason(log)}."
        )
    note = f"{name} {trt.__version__}, from {path.name}."
    return Ready(runner(runtime, engine, setting), plan.nbytes, note)


def listener(trt: Any) -> Any:
    """Return a logger that keeps the library's errors; everything else goes to gpufeed's log at debug."""

    class Log(trt.ILogger):
        def __init__(self):
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.ERROR):
                self.errors.append(message)
            else:
                logging.getLogger("gpufeed").debug("%s: %s", trt.__name__, message)

    return Log()


def built(trt: Any, log: Any, path: Path, shape: tuple[int, ...], target: Any = None) -> Any:
    """Build the serialised engine of an ONNX file, for this target or the GPU of this node.

    Raises GpufeedError with the library's reason if it refuses the file, and if input or output are not
    float32, which the runner needs.
    """
    builder = trt.Builder(log)
    strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)  # of 10; later the only way
    network = builder.create_network(0 if strongly is None else 1 << int(strongly))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(path.read_bytes()) or not network.num_outputs:
        raise refused(path, trt, log, "read")
    ends = [network.get_input(0), network.get_output(0)]
    found = [(end.name, end.dtype) for end in ends]
    if found != [(INPUT, trt.float32), (OUTPUT, trt.float32)]:
        raise GpufeedError(
            f"{path.name} with {', '.join(f'{name} in {kind}' for name, kind in found)}",
            f"{INPUT} and {OUTPUT} in float32",
            "export the model again with this version of gpufeed",
        )
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE)
    config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32, as for the other backends
    if target is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(target, 0)
    profile = builder.create_optimization_profile()
    profile.set_shape(INPUT, shape, shape, shape)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise refused(path, trt, log, "build")
    return plan


def reason(log: Any) -> str:
    """Return the library's first error, on one line."""
    return " ".join(log.errors[0].split()) if log.errors else "it gives no reason"


def refused(path: Path, trt: Any, log: Any, verb: str) -> GpufeedError:
    """Return the error for a file that the library does not read or build."""
    return GpufeedError(
        f"{path.name}, which {trt.__name__} {trt.__version__} does not {verb} ({reason(log)})",
        "an ONNX file as gpufeed writes it, with operators that this version knows",
        "export and quantise the model again, or use another backend",
    )


def runner(runtime: Any, engine: Any, setting: Setting) -> Run:
    """Return a run of the engine on torch's current stream, from and to torch's memory."""
    context = engine.create_execution_context()
    context.set_input_shape(INPUT, tuple(setting.images.shape))
    logits = torch.empty((len(setting.images), len(setting.saved.classes)), device=setting.device)
    context.set_tensor_address(OUTPUT, logits.data_ptr())

    def run(images: torch.Tensor, keep: tuple = (runtime, engine)) -> torch.Tensor:
        context.set_tensor_address(INPUT, images.data_ptr())
        context.execute_async_v3(torch.cuda.current_stream(setting.device).cuda_stream)
        return logits

    return run
