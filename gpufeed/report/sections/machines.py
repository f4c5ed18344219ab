"""The machines and the software that the measurements of a page were made with."""

import pandas as pd

from gpufeed.report import wording


def rows(table: pd.DataFrame) -> list[dict]:
    """What the readable measurements were made on, one entry a combination.

    table: the columns of `records.machine_of`, and status and warmup, a row a record or document of ceilings.
    """
    known = table[table["hardware"].notna()]
    keys = [
        "node", "machine", "hardware", "device", "driver", "stack", "torch", "python", "os", "cpu", "cores",
    ]  # fmt: skip
    machines = []
    for _, rows in known.groupby(keys, dropna=False, sort=False):
        first = rows.iloc[0]
        versions = {name: version for row in rows["versions"] for name, version in row.items()}
        machines.append(
            {
                "node": first["node"],
                "hardware": first["hardware"],
                "device": first["device"],
                "gpu": first["gpu"] if isinstance(first["gpu"], dict) else None,
                "records": len(rows),
                "done": int((rows["status"] == "done").sum()),
                "facts": {
                    "machine": first["machine"] if isinstance(first["machine"], str) else "unknown",
                    **_uuids(rows),
                    "CPU": f"{first['cpu']}, {wording.plural(int(first['cores']), 'core')} allowed, "
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
    """The GPUs behind these records, as NVML names them; empty where none is told."""
    told = {gpu["uuid"] for gpu in rows["gpu"] if isinstance(gpu, dict) and gpu["uuid"]}
    return {"GPU UUID": ", ".join(sorted(told))} if told else {}


def _software(rows: pd.DataFrame) -> dict[str, str]:
    """The environments of Python behind these records; empty where none is told."""
    told = {
        f"{one['packages']} packages, digest {one['digest']}"
        + (f", container {one['container']}" if one["container"] else "")
        for one in rows["software"]
        if isinstance(one, dict)
    }
    return {"packages": "; ".join(sorted(told))} if told else {}
