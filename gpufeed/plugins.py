"""Models and Datasets by reference, and the process that tries references.

`python -m gpufeed.plugins` reads questions (gpufeed.core.plan_plugins) from standard input. It writes one
answer each: {"made_for": ...}, or {"error": [found, expected, what to do]}. User code may print meanwhile.
"""

import inspect
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from gpufeed.core.config_sources import EVALUATION
from gpufeed.core.errors import GpufeedError, first_line, install
from gpufeed.core.references import nearest, resolve, split
from gpufeed.core.registry import AUGMENTS, FILES

IMAGES = 2  # of the batch that a model is tried with; batch normalisation needs more than one
SIDE = 224  # of trial images, if only the files of a dataset tell their size
CLASSES = 10  # of a trial, if only the files tell


def make_model(
    reference: str, num_classes: int, image_size: tuple[int, int], options: Mapping[str, Any]
) -> nn.Module:
    """Return the untrained model that a reference names, on the CPU.

    image_size: (height, width). User code gets both if it takes `num_classes` and `image_size`. Raises
    GpufeedError for an unknown name or a wrong option; errors of the import propagate.
    """
    library, name = split(reference)
    if library == "torchvision":
        from torchvision import models

        known(reference, models.list_models(module=models))
        make, given = models.get_model, {"name": name, "weights": None}
    elif library == "timm":
        import timm

        make, given = timm.create_model, {"model_name": name, "pretrained": False}
    else:
        make, given = resolve(reference), {"image_size": tuple(image_size)}
    model = called(make, {"num_classes": num_classes, **given}, options, reference)
    if not isinstance(model, nn.Module):
        raise GpufeedError(
            f"{reference}, which returns {described(model)}",
            "a class of torch.nn.Module, or a function that returns one",
            "return the model from it",
        )
    return model


def known(reference: str, names: Iterable[str]) -> None:
    """Raise GpufeedError for a library's model that is not among its names."""
    library, name = split(reference)
    if name not in (names := list(names)):
        near = get_close_matches(name, names, n=5)
        raise GpufeedError(
            f"model {reference!r}",
            f"a model that {library} knows{', such as ' * bool(near)}{', '.join(near)}",
            f"write '{library}:{near[0]}' instead" if near else f"see the list of {library}'s models",
        )


def called(make: Any, given: Mapping[str, Any], options: Mapping[str, Any], reference: str) -> Any:
    """Return make(**given, **options), with only those of `given` that it takes by name.

    Raises GpufeedError as `arguments` does, and if `make` raises.
    """
    mine = arguments(make, given, options, reference)
    try:
        return make(**mine, **options)
    except (ModuleNotFoundError, GpufeedError):
        raise
    except Exception as error:
        raise GpufeedError(
            f"{reference} with {dict(options)}, which raises {type(error).__name__}: {first_line(error)}",
            f"arguments that it accepts, of {inspect.signature(make)}",
            "correct the options, or the code",
        ) from error


def arguments(
    make: Any, given: Mapping[str, Any], options: Mapping[str, Any], reference: str
) -> dict[str, Any]:
    """Return the part of `given` that `make` takes by name.

    Raises GpufeedError for an option that it does not take, and for a missing one.
    """
    if not callable(make) or isinstance(make, nn.Module):
        raise GpufeedError(
            f"{reference}, which is {described(make)}", "a class or a function", "name one that returns it"
        )
    parameters = inspect.signature(make).parameters
    names = [
        name for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    whatever = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    taken = {*names, "num_classes"} if whatever else names
    mine = {name: value for name, value in given.items() if name in taken}
    choices = [name for name in names if name not in given]
    for option in options:
        if option in given or not (option in names or whatever):
            raise GpufeedError(
                f"option {option!r} of {reference}",
                f"one of: {', '.join(choices)}" if choices else "no option: it takes none",
                nearest(option, choices) if choices else "remove it from `overrides`",
            )
    for name in choices:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise GpufeedError(
                f"no value for {name!r}, which {reference} needs",
                f"a default, or an option {name}=VALUE in the overrides of its cells, or in its source",
                f"add one of these for {name!r}",
            )
    return mine


def described(value: object) -> str:
    """Return in words what was found in place of a tensor or a model."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def check_output(
    model: nn.Module, reference: str, classes: int, size: tuple[int, int], modes: Iterable[bool] = (False,)
) -> None:
    """Raise GpufeedError unless a model returns (N, classes) for images of (height, width), in each mode.

    modes: True for training, which draws random numbers. The model's mode is restored.
    """
    was, images = model.training, torch.zeros(IMAGES, 3, *size)
    of = f"{IMAGES} images of {size[0]} x {size[1]}"
    for mode in modes:
        model.train(mode)
        try:
            with torch.no_grad():
                found = model(images)
        except Exception as error:
            raise GpufeedError(
                f"{reference}, which raises {type(error).__name__} for {of}: {first_line(error)}",
                "a model for float (N, 3, H, W), with images of that size",
                "correct it, give it options for that size, or resize: recipe random_resized_crop gives "
                "images of recipe.size, `resize` of a source any size",
            ) from error
        if not isinstance(found, torch.Tensor) or found.shape != (IMAGES, classes):
            raise GpufeedError(
                f"{reference}, which returns {described(found)} for {of}",
                f"one tensor of shape ({IMAGES}, {classes}): a row per image, a column per class",
                "let it take `num_classes`, and return only the logits",
            )
    model.train(was)


def made_for(reference: str) -> dict[str, Any] | None:
    """Return size, short_side, mean and std of the images that a model of timm was made for; else None.

    Raises GpufeedError for a name that timm does not know.
    """
    library, name = split(reference)
    if library != "timm":
        return None
    import timm

    known(reference, timm.list_models() + timm.list_models(pretrained=True))
    about = timm.get_pretrained_cfg(name)
    side = about.input_size[-1]
    return {
        "size": side,
        "short_side": round(side / about.crop_pct),
        "mean": list(about.mean),
        "std": list(about.std),
    }


def answer_model(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model was made for, after it was built and has returned logits."""
    name, classes = asked["name"], asked["classes"] or CLASSES
    size = (SIDE, SIDE) if asked["size"] in ("own", None) else tuple(asked["size"])
    if (own := made_for(name)) and asked["size"] == "own":
        size = (own["size"], own["size"])
    model = make_model(name, classes, size, asked["options"])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise GpufeedError(
            f"{name}, of whose parameters none requires gradients",
            "at least one parameter that is trained",
            "leave its head unfrozen",
        )
    if asked["size"] is not None:
        check_output(model, name, classes, size, modes=(True, False))
    return {"made_for": own}


def open_dataset(reference: str, part: str, options: Mapping[str, Any]) -> Any:
    """Return the Dataset that a reference names, for a split; each process has one of each."""
    asked = {name: value for name, value in options.items() if name not in (EVALUATION, FILES)}
    asked |= options[EVALUATION] if part != "train" else {}
    return _open_dataset(reference, json.dumps(asked, sort_keys=True))


@cache
def _open_dataset(reference: str, options: str) -> Any:
    made = called(resolve(reference), {}, json.loads(options), reference)
    lacks = [name for name in ("__getitem__", "__len__") if not hasattr(made, name)]
    why = f"without {' and '.join(lacks)}" if lacks else "of no item"
    try:
        count = 0 if lacks else len(made)
    except Exception as error:
        count, why = 0, f"whose __len__ raises {type(error).__name__}: {first_line(error)}"
    if not count:
        raise GpufeedError(
            f"{reference}, {described(made)} {why}",
            "a map-style Dataset of one item or more",
            "give it __getitem__ and __len__, or other options",
        )
    return made


def sample(dataset: Any, index: int, state: int, reference: str) -> tuple[np.ndarray, int]:
    """Return the pixels of an item, uint8 (H, W, 3), and its label.

    The random numbers that it draws from torch, NumPy and Python are a function of `state`. Raises
    GpufeedError for an item that is not an image with a label, and if reading it raises.
    """
    try:
        with seeded(state):
            item = dataset[index]
    except GpufeedError:
        raise
    except Exception as error:
        raise GpufeedError(
            f"item {index} of {reference}, which raises {type(error).__name__}: {first_line(error)}",
            "an image and its label for each item",
            "correct it, or leave that item out",
        ) from error
    try:
        image, label = item
        return pixels(image), whole(label)
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = [described(part) for part in item] if isinstance(item, tuple) else [described(item)]
        raise GpufeedError(
            f"item {index} of {reference}: {' and '.join(kinds)} ({first_line(error)})",
            "(image, label): PIL image of 8 bits a channel, uint8 tensor (3, H, W) or uint8 array (H, W, 3), "
            "and a whole number",
            "return such a pair, and remove ToTensor and Normalize: the cell's augment does both",
        ) from error


def pixels(image: Any) -> np.ndarray:
    """Return an image as uint8 (H, W, 3); raise TypeError for anything else."""
    if isinstance(image, Image.Image):
        if image.mode.startswith(("I", "F")):  # of more bits, which convert() would clip to black or white
            raise TypeError(f"no image of 8 bits a channel, but of Pillow's mode {image.mode}")
        return np.array(image.convert("RGB"))
    array = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise TypeError(f"no uint8 image, but {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


@contextmanager
def seeded(state: int) -> Iterator[None]:
    """Seed torch, NumPy and Python, and restore their states after the block, except in worker processes."""
    kept = None
    if torch.utils.data.get_worker_info() is None:
        kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(state)
    np.random.seed(state & 0xFFFFFFFF)
    random.seed(state)
    try:
        yield
    finally:
        if kept is not None:
            torch.set_rng_state(kept[0])
            np.random.set_state(kept[1])
            random.setstate(kept[2])


def whole(label: Any) -> int:
    """Return a label as a number; raise TypeError or RuntimeError for one that is no whole number."""
    return operator.index(label.item() if isinstance(label, torch.Tensor) else label)


def labels(dataset: Any, reference: str) -> list[int]:
    """Return all labels of a Dataset: its `targets` or `labels`, if these are a whole number for each item.

    Those of the items, read one by one, if the first or the last item differs: a target_transform changes it.
    """
    ends = {index: sample(dataset, index, 0, reference)[1] for index in (0, len(dataset) - 1)}
    for name in ("targets", "labels"):
        with suppress(AttributeError, TypeError, RuntimeError):  # none, a method, names, floats, rows
            given = [whole(label) for label in getattr(dataset, name)]
            if len(given) == len(dataset) and all(given[index] == label for index, label in ends.items()):
                return given
    return [sample(dataset, index, 0, reference)[1] for index in range(len(dataset))]


def files(dataset: Any, reference: str) -> list[tuple[Path, int]]:
    """Return (path, label) of all samples: the Dataset's `samples`, as torchvision's ImageFolder has them.

    Raises GpufeedError if it has none, and for a missing file.
    """
    try:
        found = [(Path(path).expanduser(), operator.index(label)) for path, label in dataset.samples]
    except (AttributeError, TypeError, ValueError) as error:
        raise GpufeedError(
            f"{reference} with `{FILES}`, whose `samples` are not files ({first_line(error)})",
            "`samples`, a list of (path, label), as torchvision.datasets.ImageFolder has",
            f"give it `samples`, or leave `{FILES}` out of the source's options",
        ) from error
    for path, _ in found:
        if not path.is_file():
            remedy = f"correct `samples` of {reference}, or mount their disk"
            raise GpufeedError(f"no file {path}", "files that can be read", remedy)
    return found


def answer_dataset(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Check the first and the last item of each split, or all files; return {}."""
    for part in ("train", "test")[: 1 + (EVALUATION in asked["options"])]:
        opened = open_dataset(asked["name"], part, asked["options"])
        if asked["options"].get(FILES):
            files(opened, asked["name"])
            continue
        for index in (0, len(opened) - 1):
            sample(opened, index, 0, asked["name"])
    return {}


LOADER, AUGMENT = "loaders.base.Loader", "augment.base.Augment"  # by name: their layers are above this one


def derived(reference: str, base: str, beside: str) -> type:
    """Return the class that a reference names; raise GpufeedError if it is not a complete class of `base`.

    beside: the class next to the base from which most derive.
    """
    made = resolve(reference)
    names = [f"{one.__module__}.{one.__qualname__}" for one in getattr(made, "__mro__", ())]
    bases = [name.removeprefix("gpufeed.") for name in names]
    missing = sorted(getattr(made, "__abstractmethods__", ()))
    if base not in bases or missing:
        lacks = f", which has no {' and no '.join(missing)}" if missing else f", {described(made)}"
        raise GpufeedError(
            f"{reference}{lacks}",
            f"a class of gpufeed.{base}, or of {beside} beside it, with all its methods",
            "derive it from one of the two (docs/guide/own_model.md has examples)",
        )
    return made


def answer_augment(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Check that an augment makes a model's input of uint8 images where its entry says; return {}."""
    name, planned = asked["name"], AUGMENTS[asked["name"]].where
    kind = derived(name, AUGMENT, "DeviceAugment")
    for option in asked["options"]:
        if option not in kind.defaults:
            choices = f"one of its `defaults`: {', '.join(kind.defaults)}"
            raise GpufeedError(f"option {option!r} of {name}", choices, nearest(option, kind.defaults))
    made = kind((0.5,) * 3, (0.5,) * 3, 0, asked["options"])
    if getattr(made, "where", None) != planned:
        raise GpufeedError(
            f"{name}, whose `where` is {getattr(made, 'where', None)!r}, and {planned!r} by its `entry`",
            "the same in both: device (the default) or sample",
            f'write entry = {{"where": "sample"}} into it, or where = "{planned}"',
        )
    images = torch.full((IMAGES, 32, 32, 3), 128, dtype=torch.uint8)
    remedy = "end it with self.normalise(images)" if planned == "device" else "put the channels first"
    given = (images, torch.arange(IMAGES), 0) if planned == "device" else (images[0], 0, 0)
    expected = (IMAGES, 3, *made.output_size(32, 32))[int(planned == "sample") :]
    try:
        found = made(*given)
    except GpufeedError:
        raise
    except Exception as error:
        found = f"raises {type(error).__name__}: {first_line(error)}"
        called_with = "images, ids, epoch" if planned == "device" else "image, sample id, epoch"
        remedy = f"correct it; it is called with ({called_with})"
    if not isinstance(found, torch.Tensor) or found.shape != expected or not found.is_floating_point():
        raise GpufeedError(
            f"{name}, which {found if isinstance(found, str) else f'returns {described(found)}'} for "
            f"{described(given[0])}",
            f"normalised pixels, a float tensor of shape {expected}",
            remedy,
        )
    return {}


def answer_loader(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a loader can be built, and return {}; the equivalence check tests the rest."""
    name, made = asked["name"], derived(asked["name"], LOADER, "OrderedLoader")
    signature = inspect.signature(made)
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise GpufeedError(
            f"{name}, which takes {signature}",
            "the LoadRequest as its first argument, its options after it",
            "let its __init__ take request first, and call super().__init__(request)",
        )
    arguments(made, {first.name: None}, asked["options"], name)
    return {}


ANSWERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "model": answer_model,
    "loader": answer_loader,
    "dataset": answer_dataset,
    "augment": answer_augment,
}


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a question; any exception of the code in question becomes an error in words."""
    try:
        return ANSWERS[asked["kind"]](asked)
    except GpufeedError as error:
        return {"error": [error.found, error.expected, error.remedy]}
    except ModuleNotFoundError as error:
        remedy = f"{install(error.name)}, in the workflow's environment, or correct the import"
        return {"error": [f"{asked['name']}: {error}", f"the package {error.name or error}", remedy]}
    except BaseException as error:  # SystemExit of a script without a main guard, too
        found = f"{asked['name']}, which raises {type(error).__name__}: {first_line(error)}"
        remedy = "correct it; a script needs a main guard"
        if isinstance(error, ImportError) and "relative import" in str(error):
            remedy = "name it by its package, such as my_package.my_module:Name in place of its file"
        return {"error": [found, "code that can be imported", remedy]}


def main() -> None:
    """Answer the questions on standard input."""
    out = os.dup(1)
    os.dup2(2, 1)  # what user code prints goes to stderr
    answers = [answer(asked) for asked in json.load(sys.stdin)]
    with open(out, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main()
