"""The verdict of the equivalence check on one loader, dataset and setting (core/schemas/gate.schema.yaml).

Cells that agree in the settings that a loader sees share one verdict.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpufeed.core.cells import Cell
from gpufeed.core.document import Document
from gpufeed.core.errors import Skip
from gpufeed.core.quantities import plural
from gpufeed.core.retry_policy import outdate

# Fields that Cell and LoadRequest share.
LOADER_AXES = ("batch_size", "workers", "prefetch_factor", "persistent_workers", "pin_memory", "seed")
SCHEMA_VERSION = 1
WINDOWS_ALPHA = 0.001  # below this p, a library's own windows follow another distribution
VERDICT = Document("gate", "verdict")


def loader_settings(cell: Cell) -> dict:
    """Return the settings of a cell that its loader sees, by name."""
    settings = {axis: getattr(cell, axis) for axis in LOADER_AXES}
    later = {"decoder": "pillow", "hw_decoder_load": None}
    settings |= {axis: found for axis, before in later.items() if (found := getattr(cell, axis)) != before}
    if cell.workers == "auto" and cell.cores is not None:
        settings["cores"] = cell.cores  # one worker each
    if cell.hyper.get("recipe"):
        settings["recipe"] = dict(cell.hyper["recipe"])
    if cell.hyper.get("loader"):
        settings["options"] = dict(cell.hyper["loader"])
    return settings


def variant(settings: Mapping, device: str = "auto") -> str:
    """Return the settings as a file name, such as "b32-w2-p2-persistent-pinned-s0", or "...-s0-cpu".

    device: as in the config; one that is named there has verdicts of its own.
    """
    parts = [f"b{settings['batch_size']}", f"w{settings['workers']}{settings.get('cores', '')}"]
    if settings["prefetch_factor"] is not None:
        parts.append(f"p{settings['prefetch_factor']}")
    parts += ["persistent"] * settings["persistent_workers"]
    parts.append("pinned" if settings["pin_memory"] else "pageable")
    parts.append(f"s{settings['seed']}")
    parts += [settings["decoder"]] if "decoder" in settings else []
    parts += [f"hw{settings['hw_decoder_load'] * 100:g}"] if "hw_decoder_load" in settings else []
    if recipe := settings.get("recipe"):
        parts.append(f"rrc{recipe['size']}-{digest(recipe)}")
    parts += [f"o{digest(options)}"] if (options := settings.get("options")) else []
    return "-".join(parts if device == "auto" else [*parts, device])


def digest(options: Mapping) -> str:
    """Return a digest of the options, six characters for a file name."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:6]


def settings_in_words(settings: Mapping) -> str:
    """Return the settings in words: "batch size 32, 2 workers, prefetch 2, persistent, pinned, seed 0"."""
    workers = settings["workers"]
    said = plural(workers, "worker")
    if workers == "auto":
        said = f"a worker for each of {settings['cores']} cores" if "cores" in settings else "a worker a core"
    parts = [f"batch size {settings['batch_size']}", said]
    if settings["prefetch_factor"] is not None:
        parts.append(f"prefetch {settings['prefetch_factor']}")
    parts += ["persistent"] * settings["persistent_workers"]
    parts.append("pinned" if settings["pin_memory"] else "pageable")
    parts.append(f"seed {settings['seed']}")
    parts += [f"decoder {settings['decoder']}"] if "decoder" in settings else []
    if (share := settings.get("hw_decoder_load")) is not None:
        parts.append(f"{share:.0%} of the files for JPEG engines")
    parts += [f"random resized crops of {settings['recipe']['size']}"] if "recipe" in settings else []
    parts += [f"{name} {value}" for name, value in settings.get("options", {}).items()]
    return ", ".join(parts)


@dataclass
class Verdict:
    """The result of the gate for one loader with one setting. Fields as in the schema.

    The differences are None if no pixels were compared.
    """

    dataset: str
    loader: str
    settings: dict
    attempt: int
    planned_on: str
    started_at: str
    finished_at: str
    environment: dict
    status: str  # passed | failed | skipped
    sentence: str | None = None
    device: str | None = None
    samples: dict = field(default_factory=dict)
    pixels: dict | None = None
    reference: dict | None = None
    epochs: int = 0
    compared: int = 0
    max_difference: int | None = None
    mean_difference: float | None = None
    beyond_tolerance: int = 0
    offenders: list[dict] = field(default_factory=list)
    loading: dict | None = None
    windows: dict | None = None
    schema_version: int = SCHEMA_VERSION

    def write(self, path: str | Path) -> None:
        """Write the verdict as JSON, whole or not at all; raise GpufeedError if it breaks the schema."""
        VERDICT.write(asdict(self), path)

    @classmethod
    def read(cls, path: str | Path) -> "Verdict":
        """Read a verdict; raise GpufeedError if it is missing, damaged or of another schema version."""
        return cls(**VERDICT.read(path))


class NotPassed(Exception):
    """The loader failed the gate, so no cell with its settings may be timed."""


def admit(path: str | Path) -> Verdict:
    """Return the verdict at `path` if it lets its loader be timed.

    Raises NotPassed if the loader failed, Skip with the gate's sentence if the gate was skipped.
    """
    verdict = Verdict.read(path)
    if verdict.status == "failed":
        raise NotPassed(f"{verdict.loader} did not pass the equivalence check: {verdict.sentence}")
    if verdict.status == "skipped":
        raise Skip(verdict.sentence)
    return verdict


def check_same(path: str | Path, verdict: Verdict, what: str, here: str) -> None:
    """Raise NotPassed if the verdict at `path` was given under other conditions than this cell has.

    what: "device", the kind of device, or "decoder", its version. The verdict is then marked as outdated, so
    that the next run judges the loader again.
    """
    judged = verdict.device if what == "device" else verdict.pixels and verdict.pixels["version"]
    if judged != here:
        outdate(path, verdict.attempt)
        raise NotPassed(
            f"{verdict.loader} passed the equivalence check with {what} {judged}, and this cell has {here}: "
            "the next run checks it again."
        )
