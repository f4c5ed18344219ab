"""What the report computes from each kind of document, as CSV: numbers and names, without its sentences."""

import re
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import yaml

from tests.golden import the_one_place as gpufeed

SENTENCES = ("sentence", "evidence", "note", "reason", "notes")
NOT_JUDGED = [("tiny_imagenet_40", "replay"), ("tiny_imagenet_40", "no_such_loader")]
PAIR = ("without_pipelining", "with_pipelining")  # blocks of experiment notebook, in the order of their ids


def csv(rows: pd.DataFrame | list[dict]) -> str:
    """Return rows as CSV, without the columns that hold sentences."""
    table = pd.DataFrame(rows)
    words = [name for name in table if name in SENTENCES or name.endswith("_reason")]
    return table.drop(columns=words).to_csv(index=False, lineterminator="\n")


def numbers(text: str) -> str:
    """Return the numbers in a text, in their order."""
    return " ".join(re.findall(r"\d[\d.,]*\d|\d", text))


def all_of(documents: Path, config: Path) -> dict[str, str]:
    """Return the tables of all kinds. config: says what the kernels are held to."""
    made = {}
    for folder in sorted(documents.iterdir()):
        for kind in (gates, builds, ceilings, inference):
            made |= {f"{name}-{folder.name}.csv": text for name, text in kind(folder).items()}
    made["side_by_side.csv"] = side_by_side(documents / "h100_cuda12/records/notebook")
    made["comparison.csv"] = comparison(documents / "h200/repeatability")
    experiments = yaml.safe_load(config.read_text())["experiments"]
    for path in sorted(documents.glob("h200/kernels/*.json")):
        made[f"kernels-{path.stem}.csv"] = kernels(path, experiments[path.stem]["kernels"])
    return made


def gates(folder: Path) -> dict[str, str]:
    """Return the verdicts of a machine, and of a loader without one and of one that needs none."""
    paths = sorted(folder.glob("gate/*/*/*.json"))
    measured = [*((path.parts[-3], path.parts[-2]) for path in paths), *NOT_JUDGED]
    rows = gpufeed.gate_rows(paths, pd.DataFrame(measured, columns=["dataset", "loader"]))
    told = [asdict(row) | {"compared": numbers(row.compared), "troubles": len(row.troubles)} for row in rows]
    return {"gates": csv(told)}


def builds(folder: Path) -> dict[str, str]:
    """Return the build times of a machine; {} if it has none."""
    found = gpufeed.build_section(sorted(folder.glob("builds/*/*.json")), "tensor_cache")
    if found is None:
        return {}
    words = ("images", "cores", "seconds", "strips", "buffers")
    rows = [row | {name: numbers(row[name]) for name in words} for row in found["rows"]]
    return {"builds": csv(rows)}


def ceilings(folder: Path) -> dict[str, str]:
    """Return the ceilings of a machine, the parts of an epoch, and the report's order; {} if it has none."""
    read = [gpufeed.read_ceilings(path) for path in sorted(folder.glob("ceilings/*/*.json"))]
    if not read:
        return {}
    order = {one["cell_id"]: name for rows in gpufeed.ceilings_groups(read).values() for name, one in rows}
    by_id = {one["cell_id"]: one for one in read}
    parts = [{"cell_id": cell, "name": order[cell], **gpufeed.ceilings_parts(by_id[cell])} for cell in order]
    tables = {
        "ceilings": gpufeed.ceilings_table(read),
        "limits": gpufeed.ceilings_limits(read),
        "parts": parts,
    }
    return {name: csv(table) for name, table in tables.items()}


def inference(folder: Path) -> dict[str, str]:
    """Return the models in use of a machine; {} if it has none."""
    paths = sorted(folder.glob("inference/*/*.json"))
    return {"inference": csv(gpufeed.inference_table(paths))} if paths else {}


def pair(folder: Path) -> dict[str, str]:
    """Return block -> cell of the two pipelines whose records a folder has."""
    return dict(zip(PAIR, sorted(path.name for path in folder.iterdir()), strict=True))


def side_by_side(folder: Path) -> str:
    """Return the means of two pipelines, and what the second one saves by each total."""
    paths = sorted(folder.glob("*/*.json"))
    steps, damaged = gpufeed.read_steps(path.with_suffix(".steps.parquet") for path in paths)
    table = gpufeed.means(gpufeed.read_records(paths), steps, pair(folder))
    assert not damaged
    both = [(total, gpufeed.saved(table, total)) for total in gpufeed.TOTALS]
    rows = [
        {"total": total, "of": of, "answer": one.answer, **getattr(one, of)}
        for total, one in both
        for of in ("speedup", "ms")
    ]
    return csv(table) + csv(rows)


def comparison(folder: Path) -> str:
    """Return the second run of the same cells against the first."""
    second, first = (
        gpufeed.read_records(sorted((folder / name).rglob("*.json"))) for name in ("second", "first")
    )
    return csv(gpufeed.compare(second, first).rows)


def kernels(path: Path, plan: dict) -> str:
    """Return the claims on a benchmark of kernels with their answers, and its tables."""
    (machine,) = gpufeed.kernel_section([path], path.stem, plan)["machines"]
    words = ("claim", "line", "measured")
    claims = [row | {name: numbers(row[name]) for name in words} for row in map(asdict, machine["claims"])]
    rows = [
        {
            "table": table["summary"],
            "implementation": row["implementation"],
            "least": row["least"],
            "column": column,
            "first": numbers(cell["first"]),
            "rest": numbers(" ".join(cell["rest"])),
        }
        for table in machine["tables"]
        for row in table["rows"]
        for column, cell in zip(table["columns"], row["cells"], strict=True)
        if cell
    ]
    return csv(claims) + csv(rows)
