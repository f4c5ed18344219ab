"""What a backend is: a function that prepares a kept model to be run on batches of one size.

`prepare(setting) -> Ready`. All that is done once belongs into it: building, casting, quantising, compiling,
capturing. It raises Skip for what this node or this model lacks. Preparing and running are called under
torch.no_grad, not inference_mode, whose tensors torch.compile does not take as weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gpufeed.benchmarks.inference.exported_files import Files
from gpufeed.benchmarks.saved_models.model_file import SavedModel

# float32 (N, 3, H, W), normalised, contiguous, on the device, to float32 logits (N, classes) on the device.
# N is that of the example; the logits may be overwritten by the next call.
Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """images: an example of the batches that will come, as `Run` takes them.

    precision: of gpufeed.core.registry.BACKENDS. fallback: the precision of what a quantised model has not
    quantised, fp32 or bf16. channels_last: the memory layout of weights that the model was trained in.
    """

    saved: SavedModel
    files: Files
    images: torch.Tensor
    precision: str
    fallback: str = "fp32"
    channels_last: bool = False

    @property
    def device(self) -> torch.device:
        return self.images.device

    def model(self) -> nn.Module:
        """A model of one's own, float32 on the device."""
        model = self.saved.build(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


@dataclass(frozen=True)
class Ready:
    """bytes: of the weights, or of the file, that it runs. note: what a reader of its numbers must know.

    layers: how many layers are quantised, of how many; None for those that quantise nothing.
    """

    run: Run
    bytes: int
    note: str | None = None
    layers: dict[str, int] | None = None
