"""What the numbers of a page were measured with: machines and their software, datasets, smaller batches.

Machines and datasets are tables of the page; each experiment has a sentence for every cell whose batch did
not fit into memory and was measured with a smaller one.
"""

import pandas as pd

from gpufeed.report import wording
from gpufeed.report.load_records import nested


def machine_rows(table: pd.DataFrame) -> list[dict]:
    """Return the machines of the readable measurements, one entry a combination.

    table: the columns of `load_records.machine_of`, and status and warmup; a row a record or document of
    ceilings.
    """
    known = table[table["hardware"].notna()]
    keys = ["node", "machine", "hardware", "device", "driver", "stack", "torch", "python", "os", "cpu"]
    machines = []
    for _, rows in known.groupby(keys, dropna=False, sort=False):
        first, cores = rows.iloc[0], sorted(set(rows["cores"].astype(int)))
        versions = {name: version for row in rows["versions"] for name, version in row.items()}
        machines.append(
            {
                **{name: first[name] for name in ("node", "hardware")},
                "gpu": first["gpu"] if isinstance(first["gpu"], dict) else None,
                "records": len(rows),
                "done": int((rows["status"] == "done").sum()),
                "facts": {
                    "machine": first["machine"] if isinstance(first["machine"], str) else "unknown",
                    **_uuids(rows),
                    "CPU": f"{first['cpu']}, {wording.listing(cores)} core{'s' * (cores != [1])} allowed, "
                    f"{first['memory_gib']:.0f} GiB",
                    "driver": first["driver"] if isinstance(first["driver"], str) else "none",
                    "stack": f"{first['stack']}, torch {first['torch']}, Python {first['python']}",
                    **_software(rows),
                    "system": first["os"],
                    "commit": wording.commits(rows),
                    "warm-up": "; ".join(sorted(rows["warmup"].dropna().unique())) or "none",
                },
                "versions": dict(sorted(versions.items())),
            }
        )
    return machines


def _uuids(rows: pd.DataFrame) -> dict[str, str]:
    """Return the GPUs behind these records, as NVML names them; empty where none is recorded."""
    uuids = {nested(gpu, "uuid") for gpu in rows["gpu"]} - {None, ""}
    return {"GPU UUID": ", ".join(sorted(uuids))} if uuids else {}


def _software(rows: pd.DataFrame) -> dict[str, str]:
    """Return the Python environments of these records; empty where none is recorded."""
    software = {
        f"{one['packages']} packages, digest {one['digest']}"
        + (f", container {one['container']}" if one["container"] else "")
        for one in rows["software"]
        if isinstance(one, dict)
    }
    return {"packages": "; ".join(sorted(software))} if software else {}


def dataset_rows(records: pd.DataFrame) -> list[dict]:
    """Return one row a dataset that a finished record describes, in order, by the newest record.

    caches: decoders that built any, with version. filesystems: on which what the loaders read lay, in records
    that tell. unnamed: quarantined files that the record does not name.
    """
    known = records[records["facts"].map(lambda facts: isinstance(facts, dict)).astype(bool)]
    found = []
    for dataset, ours in known.groupby("dataset", sort=False):
        newest = ours.loc[ours["finished_at"].sort_values(kind="stable").index[-1], "facts"]
        row = {name: newest[name] for name in ("samples", "quarantined", "examples")}
        row["unnamed"] = row["quarantined"] - len(row["examples"])
        row["caches"] = sorted({facts["cache"] for facts in ours["facts"] if facts["cache"]})
        row["filesystems"] = sorted({kind for facts in ours["facts"] if (kind := facts.get("filesystem"))})
        found.append({"dataset": dataset, **row})
    return found


def smaller_batches(own_records: pd.DataFrame) -> list[str]:
    """Return a sentence for each cell and batch that had to be reduced."""
    done = own_records[own_records["status"] == "done"]
    smaller = done[done["batch_size"] < done["batch_size_asked"]]
    found = smaller.groupby(["cell_id", "batch_size_asked", "batch_size"], sort=True).size()
    return [
        f"{cell} ran out of memory at {wording.plural(asked, 'image')} a step and was measured with {fitted} "
        f"({wording.plural(count, 'repeat')})"
        for (cell, asked, fitted), count in found.items()
    ]
