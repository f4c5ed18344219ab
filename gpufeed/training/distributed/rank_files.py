"""Files by which the starter of a training and its ranks communicate, in a temporary folder.

Only gpufeed reads them, while the training runs. Ranks on several nodes all see the folder; the starter is on
the node of rank 0.
"""

import json
import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpufeed.core.errors import one_line
from gpufeed.core.file_writes import whole


@dataclass(frozen=True)
class Call:
    """The work of every rank: work(**arguments), on how many devices of which kind.

    devices: of each node. threads: of torch in each rank. tells: whether `on_epoch` is passed to the work, on
    rank 0. keeps: whether the ranks handle SIGTERM and keep their state before they end
    (gpufeed.system.sigterm_handler).
    """

    work: str  # module:function
    arguments: dict[str, Any]
    devices: int
    kind: str
    threads: int
    tells: bool = False
    nodes: int = 1
    keeps: bool = False

    @property
    def ranks(self) -> int:
        return self.nodes * self.devices


@dataclass(frozen=True)
class Failure:
    """Why a rank ended early. at: seconds on the clock that all ranks share."""

    rank: int
    at: float
    error: Exception


def write_call(folder: Path, call: Call) -> None:
    torch.save(call, folder / "call.pt")


def read_call(folder: Path) -> Call:
    return torch.load(folder / "call.pt", weights_only=False)


def write_result(folder: Path, result: Any) -> None:
    """Write the result of rank 0."""
    with whole(folder / "result.pt") as partial:
        torch.save(result, partial)


def read_result(folder: Path) -> Any:
    """Read the result of rank 0, with all tensors on the CPU."""
    return torch.load(folder / "result.pt", map_location="cpu", weights_only=False)


def write_failure(folder: Path, rank: int, error: Exception) -> None:
    """Write the error of a rank, or its message if it cannot be pickled."""
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = pickle.dumps(RuntimeError(one_line(error)))
    with whole(folder / f"failure-{rank}.pkl") as partial:
        partial.write_bytes(pickle.dumps((rank, time.time(), packed)))


def read_failures(folder: Path, ranks: int) -> list[Failure]:
    """Return the failures in the order in which they happened.

    Files are opened by name, since a listing may lack another node's files for a while (nfs(5)).
    """
    paths = (folder / f"failure-{rank}.pkl" for rank in range(ranks))
    found = [pickle.loads(path.read_bytes()) for path in paths if path.exists()]
    return sorted((Failure(rank, at, pickle.loads(packed)) for rank, at, packed in found), key=lambda f: f.at)


def tell_epoch(folder: Path, entry: dict) -> None:
    """Append an epoch's entry, from rank 0."""
    with (folder / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


class Epochs:
    """The entries of epochs that rank 0 reported, each returned once."""

    def __init__(self, folder: Path):
        self.path, self.told = folder / "epochs.jsonl", 0

    def new(self) -> list[dict]:
        """Return the entries since the last call."""
        if not self.path.exists():
            return []
        whole = [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        new, self.told = whole[self.told :], len(whole)
        return [json.loads(line) for line in new]
