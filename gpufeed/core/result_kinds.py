"""The kinds of result, one entry each: where its documents lie, its names, and how long one takes.

The estimate, the list of missing results and the report follow from this list. Standard library only: used
while planning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ResultKind:
    """One kind of result.

    place: path of a document below the folder of results. part: key of the experiment's plan. words: singular
    and plural; listed: the same in the list of what is missing. seconds: time of a job on an H200 with 16
    cores, used until a document gives one. timed: the document that has the time, if it is another. written:
    approximate bytes of a job's output. units: path components that tell documents of an experiment apart.
    """

    place: str
    part: str
    words: tuple[str, str]
    seconds: float
    listed: tuple[str, str] | None = None
    timed: str = ""
    written: int = 100_000
    units: int = 1

    @property
    def folder(self) -> str:
        """The folder of its documents in the folder of results."""
        return self.place.partition("/")[0]

    def planned(self, experiment: str, plan: Mapping[str, Any], timed: bool = False) -> list[str]:
        """Return the paths that an experiment plans. plan: its part of plan_info (report.page)."""
        place = (timed and self.timed) or self.place
        units = plan.get(self.part) or []
        if self.part == "cells":
            units = [f"{cell}/{repeat}" for cell in units for repeat in range(plan["repeats"])]
        elif "{unit}" not in self.place:
            units = [""] * bool(units)
        return [place.format(experiment=experiment, unit=unit) for unit in units]

    def pattern(self, experiment: str) -> str:
        """Return the glob pattern of the documents of an experiment."""
        return self.place.format(experiment=experiment, unit="/".join("*" * self.units))

    def names_in(self, path: Path) -> tuple[str | None, str]:
        """Return (experiment, unit) of the document at a path, which may begin anywhere."""
        places = self.pattern("{experiment}").split("/")
        named = list(zip(places, path.parts[-len(places) :], strict=True))
        unit = "/".join(part for place, part in named if place.startswith("*"))
        experiment = next((part for place, part in named if place.startswith("{")), None)
        return experiment and experiment.removesuffix(".json"), unit.removesuffix(".json")


RESULT_KINDS = {
    "records": ResultKind("records/{experiment}/{unit}.json", "cells", ("repeat", "repeats"), 14, units=2),
    "gates": ResultKind(
        "gate/{unit}.json",
        "gates",
        ("equivalence check", "equivalence checks"),
        12,
        units=3,
    ),
    "sweeps": ResultKind(
        "sweeps/{experiment}/{unit}.json",
        "sweep",
        ("decoder", "decoders"),
        16,
        ("decoder alone", "decoders alone"),
    ),
    "builds": ResultKind(
        "builds/{experiment}/{unit}.json",
        "builds",
        ("timed build", "timed builds"),
        20,
        ("timed build of caches", "timed builds of caches"),
    ),
    "kernels": ResultKind(
        "kernels/{experiment}.json", "kernels", ("kernel benchmark", "kernel benchmarks"), 120
    ),
    "evaluations": ResultKind(
        "models/{experiment}/{unit}/evaluation.json",
        "models",
        ("kept model", "kept models"),
        40,
        ("evaluation of a model", "evaluations of models"),
        timed="models/{experiment}/{unit}/model.json",
        written=50_000_000,
    ),
    "ceilings": ResultKind(
        "ceilings/{experiment}/{unit}.json",
        "ceilings",
        ("cell's limits", "cells' limits"),
        90,
        listed=("measurement of limits", "measurements of limits"),
    ),
    "probes": ResultKind(
        "probes/{experiment}/{unit}.json",
        "probes",
        ("probe", "probes"),
        25,
        ("probe of a cell", "probes of cells"),
    ),
    "advice": ResultKind("advice/{experiment}.json", "advice", ("advice", "advice"), 1),
    "tunings": ResultKind(
        "tuned/{experiment}/{unit}.json",
        "tuned",
        ("cell's settings", "cells' settings"),
        30,
        listed=("tuning of a loader", "tunings of loaders"),
    ),
    "inferences": ResultKind(
        "inference/{experiment}/{unit}.json",
        "inference",
        ("model in use", "models in use"),
        480,
        listed=("measurement of a model in use", "measurements of models in use"),
        written=200_000_000,
    ),
}
