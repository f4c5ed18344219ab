"""TensorRT, where its package is: the float32 file and the one with Q/DQ nodes, strongly typed.

Written to the documentation of TensorRT 10 and 11, and not run yet.
"""

from pathlib import Path
from typing import Any

import torch

from gpufeed.errors import GpufeedError, Skip
from gpufeed.inference.base import Ready, Run, Setting
from gpufeed.inference.files import INPUT, OUTPUT

WORKSPACE = 4 * 2**30  # bytes that building may take


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says."""
    return ready(setting, setting.files.path("onnx"))


def prepare_int8(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says."""
    return ready(setting, setting.files.path("onnx_int8"))


def library() -> Any:
    """The package; raises Skip with the way to it."""
    try:
        import tensorrt
    except ImportError as error:  # also for a library that the package does not find
        raise Skip(
            f"TensorRT is not installed here ({error}): it comes from NVIDIA's own package index, as "
            "docs/inference.md says."
        ) from error
    return tensorrt


def ready(setting: Setting, path: Path) -> Ready:
    """The engine built for this size of batch."""
    trt = library()
    if setting.device.type != "cuda":
        raise Skip(f"TensorRT needs a CUDA GPU, and this cell's device is {setting.device.type}.")
    logger = trt.Logger(trt.Logger.WARNING)
    plan = built(trt, logger, path, tuple(setting.images.shape))
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(plan)
    return Ready(
        runner(runtime, engine, setting), plan.nbytes, f"TensorRT {trt.__version__}, strongly typed."
    )


def built(trt: Any, logger: Any, path: Path, shape: tuple[int, ...]) -> Any:
    """The serialised engine of an ONNX file; raises GpufeedError with what TensorRT says against it."""
    builder = trt.Builder(logger)
    strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)  # of 10; later the only way
    network = builder.create_network(0 if strongly is None else 1 << int(strongly))
    parser = trt.OnnxParser(network, logger)
    plan = None
    if parser.parse(path.read_bytes()):
        config = builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE)
        config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32, as for the other backends
        profile = builder.create_optimization_profile()
        profile.set_shape(INPUT, shape, shape, shape)
        config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        said = "; ".join(str(parser.get_error(number)) for number in range(parser.num_errors))
        raise GpufeedError(
            f"{path.name}, which TensorRT {trt.__version__} does not build ({said or 'see the log'})",
            "a network that it knows",
            "use another backend, or another TensorRT",
        )
    return plan


def runner(runtime: Any, engine: Any, setting: Setting) -> Run:
    """Runs the engine on torch's current stream, from torch's memory into torch's memory."""
    context = engine.create_execution_context()
    context.set_input_shape(INPUT, tuple(setting.images.shape))
    logits = torch.empty((len(setting.images), len(setting.saved.classes)), device=setting.device)
    context.set_tensor_address(OUTPUT, logits.data_ptr())

    def run(images: torch.Tensor, keep: tuple = (runtime, engine)) -> torch.Tensor:
        context.set_tensor_address(INPUT, images.data_ptr())
        context.execute_async_v3(torch.cuda.current_stream(setting.device).cuda_stream)
        return logits

    return run
