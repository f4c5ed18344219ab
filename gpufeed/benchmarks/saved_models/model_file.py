"""model.pt: the weights of a trained cell, and all that is needed to use them without the config.

`torch.load(path, weights_only=True)` returns a dict of plain values and CPU tensors: `format`, the fields of
gpufeed/core/schemas/model.schema.yaml, and `state_dict`.
"""

import logging
import platform
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpufeed.augment.random_resized_crop import RandomResizedCrop, made_recipe
from gpufeed.core.errors import GpufeedError, Skip, first_line
from gpufeed.core.file_writes import whole
from gpufeed.core.record import MODEL, MODEL_VERSION
from gpufeed.core.references import check, code_of, is_reference
from gpufeed.core.registry import MODELS
from gpufeed.decoders.encoded_file import most_pixels
from gpufeed.models.make import make, portable

log = logging.getLogger("gpufeed")
FORMAT = "gpufeed model"
OURS = "a model.pt as rule train_model or python -m gpufeed.train writes it"


@dataclass(frozen=True)
class SavedModel:
    """A kept model. about: fields of model.schema.yaml. state_dict: float tensors and counters on the CPU."""

    about: dict[str, Any]
    state_dict: dict[str, torch.Tensor]

    @property
    def classes(self) -> list[str]:
        """Class names in the order of the outputs."""
        return self.about["classes"]

    def training(self) -> dict[str, Any]:
        """Return the field `trained` of a document on the model: when, from which code and where."""
        resolved, commit = self.about["resolved"], self.about["environment"]["commit"]
        where = {key: resolved[key] for key in ("device", "precision")}
        return {"finished_at": self.about["finished_at"], "commit": commit, **where}

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of its training images."""
        return self.about["input"]["height"], self.about["input"]["width"]

    @property
    def recipe(self) -> RandomResizedCrop | None:
        """The recipe of its evaluation images; None if they were whole images of `size`."""
        recipe = made_recipe(self.about["cell"]["hyper"].get("recipe"), 0)
        return recipe and recipe.for_evaluation()

    def build(self, device: torch.device) -> nn.Module:
        """Return the model with its weights on the device, in evaluation mode, with portable operations.

        Raises GpufeedError if the weights do not fit the model that the file names or the user's code is not
        there, Skip if this node lacks a package that the model needs.
        """
        name, options = self.about["cell"]["model"], self.about["cell"]["hyper"].get("model", {})
        if name not in MODELS:
            raise GpufeedError(
                f"a file of model {name!r}", f"one of: {', '.join(MODELS)}", "use the gpufeed that wrote it"
            )
        remedy = "use the gpufeed that wrote the file, or train again"
        if is_reference(name):
            remedy = "use the code that the model was trained with, or train again"
            try:
                check("model", name, "the model file")
            except GpufeedError as error:
                where = (
                    "give the command in the folder of the training, or put the model's code into this one"
                )
                raise GpufeedError(error.found, error.expected, where) from error
            self._tell_changed(code_of([name]))
        try:
            options = options if is_reference(name) else portable(options)
            model = make(name, len(self.classes), self.size, options)
            model.load_state_dict(self.state_dict)
        except (GpufeedError, Skip):
            raise
        except Exception as error:  # TypeError, ZeroDivisionError, MemoryError ..., depending on the options
            raise GpufeedError(
                f"weights that do not fit model {name} ({first_line(error)})",
                f"those of a {name} with {len(self.classes)} classes and {options}",
                remedy,
            ) from error
        return model.to(device).eval()

    def _tell_changed(self, code: dict[str, str]) -> None:
        """Log a warning if the user's code is not that of the training. code: file -> digest, today's."""
        trained = self.about["cell"]["hyper"].get("code", {})
        changed = [name for name, digest in code.items() if trained.get(name, digest) != digest]
        # digests depend on Python's minor version
        python = self.about["environment"]["python"].split(".")[:2]
        if changed and python == platform.python_version().split(".")[:2]:
            log.warning(
                "%s has changed since the training: predictions may be wrong. To be sure, use the code "
                "that the model was trained with, or train again.",
                ", ".join(changed),
            )


def save(about: dict[str, Any], model: nn.Module | None, path: str | Path) -> None:
    """Write the file, whole or not at all; without a model it only holds the reason."""
    state = model.state_dict() if model is not None else {}
    # contiguous: readers of the file need not know about channels_last
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    with whole(path) as partial:
        torch.save({"format": FORMAT, **about, "state_dict": state}, partial)


def load(path: str | Path) -> SavedModel:
    """Read a file on any machine, with or without the device that trained it.

    Raises GpufeedError if it is missing, incomplete, of a newer format or not a model of ours. Raises Skip
    with the training's sentence if it has no weights.
    """
    data = read(Path(path))
    version = data.get("schema_version")
    if isinstance(version, int) and version > MODEL_VERSION:
        raise GpufeedError(
            f"{path}: a model of format {version}", f"format {MODEL_VERSION}", "use a newer gpufeed"
        )
    if "state_dict" not in data:
        raise GpufeedError(f"{path}: no 'state_dict' in it", OURS, "train the model again")
    about = {key: value for key, value in data.items() if key not in ("format", "state_dict")}
    MODEL.check(about, Path(path), "train the model again")
    if about["status"] != "done":
        what = "was skipped" if about["status"] == "skipped" else "failed"
        raise Skip(f"There are no weights in {path}, since the training {what}: {about['sentence']}")
    state = data["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise GpufeedError(f"{path}: a 'state_dict' that holds no tensors", OURS, "train the model again")
    if about["input"] is None or about["classes"] is None:
        raise GpufeedError(f"{path}: no 'input' or no 'classes' in it", OURS, "train the model again")
    saved, most = SavedModel(about, state), most_pixels()
    if prod(saved.size) > most:
        raise GpufeedError(
            f"{path}: an input of {saved.size[0]:,} x {saved.size[1]:,} pixels",
            f"at most {most:,} pixels, since Pillow opens no larger image",
            "use a model.pt that you trust",
        )
    return saved


def read(path: Path) -> dict[str, Any]:
    """Return the file's dict; raise GpufeedError if `path` has no model of ours."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise GpufeedError(
            f"{path}: {error.strerror or error}", OURS, "name a model.pt of gpufeed"
        ) from error
    with file:
        try:
            data = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # UnpicklingError, RuntimeError, OSError ..., depending on the bytes
            raise GpufeedError(
                f"{path} is no model file", OURS, "name a model.pt of gpufeed, or train it again"
            ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise GpufeedError(
            f"{path}: a file of torch, but no model of gpufeed", OURS, "name a model.pt of gpufeed"
        )
    return data
