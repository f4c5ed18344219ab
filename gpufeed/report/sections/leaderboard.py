"""The leaderboard of an experiment: one row per cell, in words for page and Markdown, and sortable values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gpufeed.advice import paste
from gpufeed.report import tables, wording
from gpufeed.report.comparison_text import piped

# What the page filters by: attributes of a row, after the columns of the table of cells, but for the device.
FACETS = ("loader", "augment", "model", "dataset", "precision", "device", "status")
UNKNOWN = "-"
RATE, TASK, DEVICE = "images/s", "Task", "Device"  # columns


@dataclass(frozen=True)
class Field:
    """One field of the table: its text, what stands smaller below it, what it sorts by, a share to draw."""

    text: str
    small: str = ""
    value: float | str | None = None
    bar: float | None = None


@dataclass(frozen=True)
class Column:
    """A heading and how a row of the table of cells fills it. optional: left out where no row has a value.

    of: the column that it is about; where it is empty, the field is a dash. say: the field of (row, value).
    more: not of the ten that a page shows at first.
    """

    title: str
    of: str
    say: Callable[[pd.Series, Any], Field]
    number: bool = True
    optional: bool = False
    more: bool = False

    def fill(self, row: pd.Series) -> Field:
        value = row.get(self.of)
        return Field(UNKNOWN) if pd.isna(value) or value == "" else self.say(row, value)


@dataclass(frozen=True)
class Row:
    """fields: one a column. facets: FACETS with a value. call: number of its script in Board.calls."""

    fields: list[Field]
    facets: dict[str, str]
    call: int | None
    ceiling: bool


@dataclass(frozen=True)
class Call:
    """A script to paste, and the pipelines that it makes."""

    label: str
    text: str


@dataclass(frozen=True)
class Board:
    """columns, rows: of the table. shared: what the tasks of all rows have in common, where they differ
    otherwise. choices: facet -> its values, where there are several. markdown: the same as text."""

    columns: list[Column]
    rows: list[Row]
    shared: str
    choices: dict[str, list[str]]
    calls: list[Call]
    markdown: str

    def heading(self, facet: str) -> str:
        return facet.capitalize()

    def shown(self, row: Row) -> list[tuple[Column, Field]]:
        """Return the fields of a row that a page shows at first, each with its column."""
        both = zip(self.columns, row.fields, strict=True)
        return [(column, field) for column, field in both if not column.more]


def board(
    cells: pd.DataFrame, records: pd.DataFrame, folders: Mapping[str, str] | None = None
) -> Board | None:
    """Return the leaderboard of one experiment; None without cells.

    cells: as `tables.cells` makes them, with the columns of `ceilings_rows.limits` where there are any.
    records: of the same experiment. folders: dataset -> the user's own folder of its class folders. Tasks one
    after another, in each the fastest pipeline first and its ceilings last; cells without a finished repeat
    at the end.
    """
    if cells.empty:
        return None
    named = in_order(cells)
    filled = [{column.title: column.fill(row) for column in COLUMNS} for _, row in named.iterrows()]
    # what all measured rows have in common tells none of them apart
    shown = [fields for fields in filled if fields[RATE].value is not None] or filled
    left_out = {title for title in (TASK, DEVICE) if len({fields[title].text for fields in shown}) == 1}
    for column in COLUMNS:
        if column.optional and all(fields[column.title].value is None for fields in filled):
            left_out.add(column.title)
    columns = [column for column in COLUMNS if column.title not in left_out]
    markdown = _markdown(columns, filled)
    shared = "" if TASK in left_out else _without_shared(filled)
    calls, texts = _calls(named, records, folders or {})
    rows = [
        Row(
            [fields[column.title] for column in columns], _facets(row), call, tables.is_ceiling(row["loader"])
        )
        for fields, (_, row), call in zip(filled, named.iterrows(), calls, strict=True)
    ]
    return Board(columns, rows, shared, _choices(rows), texts, markdown)


def _without_shared(filled: Sequence[dict[str, Field]]) -> str:
    """Take the words that all tasks share out of their fields, and return them; none where a field would
    have no words left."""
    known = [fields for fields in filled if fields[TASK].value is not None]
    shared, rests = wording.split_shared([fields[TASK].text for fields in known])
    if not all(rests):
        return ""  # a task without words would look as if it were not known
    for fields, rest in zip(known, rests, strict=True):
        fields[TASK] = Field(rest, value=rest)
    return shared


def in_order(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells (at least one) task by task, those not measured last, with `label` and `task`."""
    parts = [tables.ranked(rows).assign(task=wording.task(rows)) for rows in tables.tasks(cells)]
    rest = cells[cells["images_per_s"].isna()]
    known, damaged = rest[rest["loader"].notna()], rest[rest["loader"].isna()]
    known = known.assign(augmented=known["augment"].map(wording.augmented))
    for _, rows in known.groupby(tables.SAME_TASK, dropna=False, sort=False):
        parts.append(rows.assign(label=wording.labels(rows), task=wording.task(rows)))
    if len(damaged):
        parts.append(damaged.assign(label=damaged["cell_id"], task=""))
    return pd.concat(parts)


def _facets(row: pd.Series) -> dict[str, str]:
    values = {**row, "device": row["hardware"]}
    return {name: str(values[name]) for name in FACETS if not pd.isna(values[name])}


def _choices(rows: Sequence[Row]) -> dict[str, list[str]]:
    values = {name: sorted({row.facets[name] for row in rows if name in row.facets}) for name in FACETS}
    return {name: found for name, found in values.items() if len(found) > 1}


def _calls(
    cells: pd.DataFrame, records: pd.DataFrame, folders: Mapping[str, str]
) -> tuple[list[int | None], list[Call]]:
    """Return the number of each cell's script, and the scripts; cells with the same script share it."""
    known = records[records["facts"].map(lambda facts: isinstance(facts, dict)).astype(bool)]
    caches = {row["cell_id"]: row["facts"]["cache"] for _, row in known.iterrows()}
    shared = records[records["engines_share"].notna()]
    engines = dict(zip(shared["cell_id"], shared["engines_share"], strict=True))
    sources = dict(zip(records["cell_id"], records["source"], strict=True))
    texts: dict[str, str] = {}
    found = []
    for _, row in cells.iterrows():
        text = None
        if not pd.isna(row["loader"]):  # of a damaged record
            made_of = {"source": sources.get(row["cell_id"])}
            if pd.isna(row["hw_decoder_load"]):
                made_of["hw_decoder_load"] = engines.get(row["cell_id"])
            text = paste.script({**row, **made_of}, caches.get(row["cell_id"]), folders.get(row["dataset"]))
        if text is not None:
            texts.setdefault(text, f"{row['label']} on {row['dataset']}, batch {row['batch_size']}")
        found.append(text)
    numbers = {text: number for number, text in enumerate(texts)}
    return [numbers.get(text) for text in found], [Call(label, text) for text, label in texts.items()]


def _markdown(columns: Sequence[Column], filled: Sequence[dict[str, Field]]) -> str:
    rows = [[fields[column.title] for column in columns] for fields in filled]
    lines = [[f"{one.text} ({one.small})" if one.small else one.text for one in fields] for fields in rows]
    numbers = [number for number, column in enumerate(columns) if column.number]
    return piped([column.title for column in columns], lines, numbers)


# How the columns are filled


def _rate(row: pd.Series, rate: float) -> Field:
    n, say = int(row["n_repeats"]), wording.count
    if not pd.isna(row["images_per_s_ci95_low"]):
        ends = f"95 %: {say(row['images_per_s_ci95_low'])} to {say(row['images_per_s_ci95_high'])}, "
    else:
        ends = f"{say(row['images_per_s_min'])} to {say(row['images_per_s_max'])}, " if n > 1 else ""
    marked = f", others on the cores in {row['disturbed']}" if row["disturbed"] else ""
    return Field(say(rate), f"{ends}n = {n}{marked}", float(rate))


def _predicted(row: pd.Series, rate: float) -> Field:
    low, high = (wording.count(row[f"predicted_images_per_s_{end}"]) for end in ("low", "high"))
    return Field(wording.count(rate), f"{low} to {high}", float(rate))


def _steady(row: pd.Series, rate: float) -> Field:
    """Return the steady rate, and below it what the start of an epoch costs."""
    seconds = row["epoch_start_s"]
    if pd.isna(seconds):
        return Field(wording.count(rate), "no start after warm-up", float(rate))
    ends = (seconds, row["epoch_start_s_min"], row["epoch_start_s_max"])
    middle, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in ends)  # no -0.00
    n = row["epoch_start_n"]
    start = f"start {middle} s, {f'{low} to {high}, ' * (n > 1)}n = {n}"
    return Field(wording.count(rate), start, float(rate))


def _ceiling(row: pd.Series, standing: str) -> Field:
    note = "" if standing == "below" else standing
    return Field(wording.percent(row["ceiling_share"]), note, float(row["ceiling_share"]))


def _au(row: pd.Series, au: float) -> Field:
    ends = wording.interval(row["au_ci95_low"], row["au_ci95_high"])
    return Field(wording.tenths(au), ", ".join(filter(None, (ends, row["limited_by"]))), float(au))


def _wait(_: pd.Series, share: float) -> Field:
    return Field(wording.percent(share), value=float(share), bar=float(share))


def _memory(row: pd.Series, host: float) -> Field:
    """Return the GPU's peak memory, or the host's if no GPU trained."""
    gpu = row["peak_gpu_mib"]
    mib, of = (host, "host") if pd.isna(gpu) else (gpu, "GPU")
    return Field(f"{mib:,.0f}", of, float(mib))


def _taken(_: pd.Series, value: float) -> Field:
    return Field(wording.count(value), value=float(value))


def _words(_: pd.Series, text: str) -> Field:
    return Field(str(text), value=str(text))


def _status(row: pd.Series, status: str) -> Field:
    return Field(status) if status == "done" else Field(status, row["sentence"], status)


COLUMNS = [
    Column("Pipeline", "label", _words, number=False),
    Column(TASK, "task", _words, number=False),
    Column(RATE, "images_per_s", _rate),
    Column("Predicted (images/s)", "predicted_images_per_s", _predicted, optional=True, more=True),
    Column("Steady (images/s)", "steady_images_per_s", _steady, optional=True, more=True),
    Column("Share of limit", "against_ceiling", _ceiling, optional=True),
    Column("AU", "au", _au, optional=True),
    Column("Wait", "wait_share", _wait),
    Column("Peak memory (MiB)", "peak_host_mib", _memory, optional=True),
    Column("J / 1000 images", "j_per_1000_images", _taken, optional=True),
    Column("CPU s / 1000 images", "cpu_s_per_1000_images", _taken, optional=True, more=True),
    Column(DEVICE, "hardware", _words, number=False),
    Column("Status", "status", _status, number=False, optional=True),
]
