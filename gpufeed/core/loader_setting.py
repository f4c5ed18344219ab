"""The settings that a tuning chooses for a loader, and how a config or a command spells them.

Standard library only: used while planning.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpufeed.core.cells import Cell, settle
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.record import TUNED
from gpufeed.core.registry import LOADERS

OF_DATALOADER = {"workers": "num_workers"}  # axes with another name in torch's DataLoader


@dataclass(frozen=True)
class Setting:
    """The settings that are chosen, in the order of their usual influence; fields of Cell and LoadRequest."""

    workers: int
    decoder: str
    persistent_workers: bool
    prefetch_factor: int | None
    pin_memory: bool

    @classmethod
    def of(cls, given: Cell | Mapping[str, Any]) -> "Setting":
        """Return the setting of a cell whose workers are a number, or of a row of a tuning."""
        values = given if isinstance(given, Mapping) else vars(given)
        return cls(**{axis: values[axis] for axis in AXES})

    def of_cell(self, cell: Cell) -> Cell:
        """Return the cell with this setting."""
        return settle(replace(cell, settings=None, **asdict(self)))

    def changes(self, other: "Setting") -> dict[str, Any]:
        """Return the axes in which this setting differs from `other`."""
        return {axis: mine for axis, mine in asdict(self).items() if mine != getattr(other, axis)}

    def written(self, loader: str) -> dict[str, str]:
        """Return the axes that the loader has, as YAML and Hydra spell them."""
        found = {axis: value for axis, value in asdict(self).items() if value is not None}
        if not LOADERS[loader].decoders:
            del found["decoder"]
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in found.items()}

    def in_words(self, loader: str) -> str:
        """Return the setting as axes of a block, on one line."""
        return ", ".join(f"{axis}: {value}" for axis, value in self.written(loader).items())

    def lines(self, loader: str, batch_size: int) -> dict[str, str]:
        """Return the lines to paste: `config` into a block, `command` after gpufeed.train, `dataloader`.

        dataloader: the call of torch's DataLoader, for loaders that are one.
        """
        entry = LOADERS[loader]
        command = [f"loader={loader}", *(f"{axis}={value}" for axis, value in self.written(loader).items())]
        found = {"config": f"{{loader: {loader}, {self.in_words(loader)}}}", "command": " ".join(command)}
        if entry.decoders and entry.store is None and not entry.anew:
            values = {axis: value for axis, value in asdict(self).items() if axis != "decoder"}
            said = [
                f"{OF_DATALOADER.get(axis, axis)}={one}" for axis, one in values.items() if one is not None
            ]
            found["dataloader"] = f"DataLoader(dataset, batch_size={batch_size}, {', '.join(said)})"
        return found


AXES = tuple(one.name for one in fields(Setting))


def read_tuned(path: str | Path) -> Setting:
    """Return the setting that a tuning chose; raise Skip or GpufeedError with its sentence if it has none."""
    found = TUNED.read(path)
    if found["status"] == "skipped":
        raise Skip(found["sentence"])
    if found["status"] == "failed":
        raise GpufeedError(f"no tuned settings: {found['sentence']}", "a finished tuning", f"see {path}")
    return Setting.of(found["tried"][0])
