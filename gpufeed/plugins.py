"""Models and Datasets by reference, and the process that tries references.

`python -m gpufeed.plugins` reads questions (gpufeed.core.plan_plugins) from standard input and writes as many
answers: {"made_for": ...}, or {"error": [found, expected, what to do]}. Code of others may print meanwhile.
"""

import inspect
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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

IMAGES = 2  # of the batch that a model is tried with; batch normalisation wants more than one
SIDE = 224  # where only the files of a dataset tell their size
CLASSES = 10  # where only they tell how many


def make_model(
    reference: str, num_classes: int, image_size: tuple[int, int], options: Mapping[str, Any]
) -> nn.Module:
    """Return the untrained model that a reference names, on the CPU.

    image_size: (height, width). Code of one's own gets both if it takes `num_classes` and `image_size`.
    Raises GpufeedError for a name that torchvision does not know and for a wrong option, and what the import
    raises.
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
            f"{reference}, which gives {described(model)}",
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
    """Return make(**given, **options), of `given` only what it takes by name; raise as `arguments`.

    Raises GpufeedError where it raises.
    """
    mine = arguments(make, given, options, reference)
    try:
        return make(**mine, **options)
    except (ModuleNotFoundError, GpufeedError):
        raise
    except Exception as error:
        raise GpufeedError(
            f"{reference} with {dict(options)}, which raises {type(error).__name__}: {first_line(error)}",
            f"arguments that it runs with, of {inspect.signature(make)}",
            "correct the options, or its code",
        ) from error


def arguments(
    make: Any, given: Mapping[str, Any], options: Mapping[str, Any], reference: str
) -> dict[str, Any]:
    """Return what of `given` something takes by name; raise GpufeedError if it is not called with `options`.

    That is for an option that it does not take, and for one that it wants.
    """
    if not callable(make):
        raise GpufeedError(
            f"{reference}, which is {described(make)}", "a class or a function", "name one that makes it"
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
                f"no value for {name!r}, which {reference} asks for",
                f"a default, or an option {name}=VALUE in the overrides of its cells",
                f"give {name!r} one of the two",
            )
    return mine


def described(value: object) -> str:
    """Return in words what stands in a tensor's or a model's place."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"


def check_output(
    model: nn.Module, reference: str, classes: int, size: tuple[int, int], modes: Iterable[bool] = (False,)
) -> None:
    """Raise GpufeedError unless a model gives (N, classes) for images of (height, width), in each mode.

    modes: True for training, which draws random numbers. The model is left as it was.
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
                "a model over float (N, 3, H, W), of images in that size",
                "correct it, give it options for that size, or resize: recipe random_resized_crop brings "
                "images to recipe.size, `resize` of a source to any size",
            ) from error
        if not isinstance(found, torch.Tensor) or found.shape != (IMAGES, classes):
            raise GpufeedError(
                f"{reference}, which gives {described(found)} for {of}",
                f"one tensor of shape ({IMAGES}, {classes}): a row an image, a column a class",
                "let it take `num_classes`, and return the logits alone",
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
    """Return what a model was made for, once it was made and has given logits."""
    name, classes = asked["name"], asked["classes"] or CLASSES
    size = (SIDE, SIDE) if asked["size"] in ("own", None) else tuple(asked["size"])
    if (own := made_for(name)) and asked["size"] == "own":
        size = (own["size"], own["size"])
    model = make_model(name, classes, size, asked["options"])
    if asked["size"] is not None:
        check_output(model, name, classes, size, modes=(True, False))
    return {"made_for": own}


def open_dataset(reference: str, part: str, options: Mapping[str, Any]) -> Any:
    """Return the Dataset that a reference names, of a split; each process has one of each."""
    asked = {name: value for name, value in options.items() if name not in (EVALUATION, FILES)}
    asked |= options[EVALUATION] if part != "train" else {}
    return _open_dataset(reference, json.dumps(asked, sort_keys=True))


@cache
def _open_dataset(reference: str, options: str) -> Any:
    made = called(resolve(reference), {}, json.loads(options), reference)
    lacks = [name for name in ("__getitem__", "__len__") if not hasattr(made, name)]
    if lacks or not len(made):
        raise GpufeedError(
            f"{reference}, {described(made)} {'without ' + ' and '.join(lacks) if lacks else 'of no item'}",
            "a map-style Dataset of one item or more",
            "give it __getitem__ and __len__, or other options",
        )
    return made


def sample(dataset: Any, index: int, state: int, reference: str) -> tuple[np.ndarray, int]:
    """Return the pixels of an item, uint8 (H, W, 3), and its label.

    What it draws of random numbers of torch, NumPy and Python is a function of `state`. Raises GpufeedError
    for an item that is no image with a label, and where it raises.
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
        return pixels(image), operator.index(label.item() if isinstance(label, torch.Tensor) else label)
    except (TypeError, ValueError) as error:
        kinds = [described(part) for part in item] if isinstance(item, tuple) else [described(item)]
        raise GpufeedError(
            f"item {index} of {reference}: {' and '.join(kinds)} ({first_line(error)})",
            "(image, label): PIL image, uint8 tensor (3, H, W) or uint8 array (H, W, 3), and a whole number",
            "leave ToTensor and Normalize out, which the cell's augment does",
        ) from error


def pixels(image: Any) -> np.ndarray:
    """Return an image as uint8 (H, W, 3); raise TypeError for what is none."""
    if isinstance(image, Image.Image):
        return np.array(image.convert("RGB"))
    array = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise TypeError(f"no uint8 image, but {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


@contextmanager
def seeded(state: int) -> Iterator[None]:
    """Seed torch, NumPy and Python; put them back behind the block, but in worker processes."""
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


def labels(dataset: Any, reference: str) -> list[int]:
    """Return all labels of a Dataset: its `targets` or `labels`, else those of its items, one by one."""
    given = next(
        (found for name in ("targets", "labels") if (found := getattr(dataset, name, None)) is not None), None
    )
    if given is not None and len(given) == len(dataset):
        return [int(label) for label in given]
    return [sample(dataset, index, 0, reference)[1] for index in range(len(dataset))]


def files(dataset: Any, reference: str) -> list[tuple[Path, int]]:
    """Return (path, label) of all samples: the Dataset's `samples`, as torchvision's ImageFolder has them.

    Raises GpufeedError where it has none, and for a file that is not there.
    """
    try:
        found = [(Path(path).expanduser(), operator.index(label)) for path, label in dataset.samples]
    except (AttributeError, TypeError, ValueError) as error:
        raise GpufeedError(
            f"{reference} with `{FILES}`, whose `samples` are no files ({first_line(error)})",
            "`samples`, a list of (path, label), as torchvision.datasets.ImageFolder has",
            f"give it `samples`, or leave `{FILES}` out of the source's options",
        ) from error
    for path, _ in found:
        if not path.is_file():
            remedy = f"correct `samples` of {reference}, or mount what they lie on"
            raise GpufeedError(f"no file {path}", "files that can be read", remedy)
    return found


def answer_dataset(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return {}: the first and the last item of each split are an image and a label, or all are files."""
    for part in ("train", "test")[: 1 + (EVALUATION in asked["options"])]:
        opened = open_dataset(asked["name"], part, asked["options"])
        if asked["options"].get(FILES):
            files(opened, asked["name"])
            continue
        for index in (0, len(opened) - 1):
            sample(opened, index, 0, asked["name"])
    return {}


LOADER, AUGMENT = "loaders.base.Loader", "augment.base.Augment"  # of gpufeed, in layers above this


def derived(reference: str, base: str, beside: str) -> type:
    """Return the class that a reference names; raise GpufeedError if it is no class of `base`, or unfinished.

    beside: what stands beside the base, which most derive from.
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
            "derive it from one of the two (docs/plugins.md has examples)",
        )
    return made


def answer_augment(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return {}: it makes of uint8 images what a model takes, and runs where its entry says."""
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
            "the same in both: device (where there is no entry) or sample",
            f'write entry = {{"where": "sample"}} into it, or where = "{planned}"',
        )
    images = torch.full((IMAGES, 32, 32, 3), 128, dtype=torch.uint8)
    given = (images, torch.arange(IMAGES), 0) if planned == "device" else (images[0], 0, 0)
    expected = (IMAGES, 3, *made.output_size(32, 32))[int(planned == "sample") :]
    try:
        found = made(*given)
    except GpufeedError:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {first_line(error)}"
    if not isinstance(found, torch.Tensor) or found.shape != expected or not found.is_floating_point():
        raise GpufeedError(
            f"{name}, which gives {found if isinstance(found, str) else described(found)} for "
            f"{described(given[0])}",
            f"normalised pixels, a float tensor of shape {expected}",
            "end it with self.normalise(images)" if planned == "device" else "put the channels first",
        )
    return {}


def answer_loader(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return {}: the equivalence check says the rest of a loader that can be made."""
    name, made = asked["name"], derived(asked["name"], LOADER, "OrderedLoader")
    arguments(made, dict.fromkeys(list(inspect.signature(made).parameters)[:1]), asked["options"], name)
    return {}


ANSWERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "model": answer_model,
    "loader": answer_loader,
    "dataset": answer_dataset,
    "augment": answer_augment,
}


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a question; whatever the code in question raises is an error in words."""
    try:
        return ANSWERS[asked["kind"]](asked)
    except GpufeedError as error:
        return {"error": [error.found, error.expected, error.remedy]}
    except ModuleNotFoundError as error:
        remedy = f"{install(error.name)} where the workflow runs, or correct the import"
        return {"error": [f"{asked['name']}: {error}", f"the package {error.name}", remedy]}
    except BaseException as error:  # SystemExit of a script without a main guard, too
        found = f"{asked['name']}, which raises {type(error).__name__}: {first_line(error)}"
        return {"error": [found, "code that can be imported", "correct it; a script wants a main guard"]}


def main() -> None:
    """Answer the questions of standard input."""
    out = os.dup(1)
    os.dup2(2, 1)  # what code of others prints
    answers = [answer(asked) for asked in json.load(sys.stdin)]
    with open(out, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main()
