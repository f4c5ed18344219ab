"""The one table that sorts and filters: itables (DataTables) with its code in the page."""

import re

import pandas as pd
from itables import options
from itables.javascript import generate_init_offline_itables_html, to_html_datatable

from gpufeed.report import tables, wording
from gpufeed.report.tables import RATES, TAKEN

# name in the page -> (column of the table of cells, decimals; None for what is no measured number)
SHOWN = {
    "Experiment": ("experiment", None),
    "Dataset": ("dataset", None),
    "Pipeline": ("pipeline", None),
    "Cores": ("cores_asked", None),
    "images/s": ("images_per_s", 1),
    "min": ("images_per_s_min", 1),
    "max": ("images_per_s_max", 1),
    "n": ("n_repeats", None),
    "Model": ("model", None),
    "Batch": ("batch_size", None),
    "Variant": ("variant", None),
    "Ceiling (%)": ("ceiling_share", 1),
    "To the ceiling": ("against_ceiling", None),
    "Wait (%)": ("wait_share", 1),
    "Wait at epoch start (%)": ("epoch_start_share", 1),
    "Within epoch (images/s)": ("within_epoch_images_per_s", 1),
    "Steady (images/s)": ("steady_images_per_s", 1),
    "Epoch start (s)": ("epoch_start_s", 3),
    "Load (ms)": ("load_ms", 3),
    "Transfer (ms)": ("transfer_ms", 3),
    "Train (ms)": ("train_ms", 3),
    "Total (ms)": ("total_ms", 3),
    "Ceiling (images/s)": ("ceiling_images_per_s", 1),
    "Ceiling min": ("ceiling_images_per_s_min", 1),
    "Ceiling max": ("ceiling_images_per_s_max", 1),
    "Ceiling n": ("ceiling_n_repeats", None),
    "By other decoders (%)": ("fell_back_share", 1),
    "Epoch (s)": ("epoch_s", 3),
    "Top-1 (%)": ("top1", 1),
    "GPU memory (MiB)": ("peak_gpu_mib", 0),
    "GPU (J/1000 images)": ("j_per_1000_images", 1),
    "CPU (s/1000 images)": ("cpu_s_per_1000_images", 3),
    "Others on the cores (%)": ("others_cpu_share_max", 1),
    "Status": ("status", None),
    "Precision": ("precision", None),
    "Loader": ("loader", None),
    "Workers": ("workers", None),
    "Augment": ("augment", None),
    "Prefetch": ("prefetch_factor", None),
    "Pinned": ("pin_memory", None),
    "Persistent": ("persistent_workers", None),
    "CUDA graphs": ("cuda_graphs", None),
    "Compiled": ("compile", None),
    "channels_last": ("channels_last", None),
    "Synchronise": ("synchronise", None),
    "Trainer": ("trainer", None),
    "Epochs": ("epochs", None),
    "Steps": ("step_limit", None),
    "Overrides": ("overrides", None),
    "Device": ("device", None),
    "Devices": ("devices", None),
    "Nodes": ("nodes", None),
    "Hardware": ("hardware", None),
    "Stack": ("stack", None),
    "torch": ("torch", None),
    "Commit": ("commit", None),
    "Sentence": ("sentence", None),
    "Cell": ("cell_id", None),
}
MAY_LACK = (*TAKEN, *RATES, "others_cpu_share_max", "cores_asked")  # left out where no record has it
TABLE_ID = "all-cells"
# What itables says to readers of a notebook, with links to its site: this page leads nowhere outside.
NOTEBOOK = re.compile(
    r"<sup><noscript>(?:(?!</sup>).)*</sup>|\(need <a href=https://itables\.org[^>]*>help</a>\?\)", re.DOTALL
)


def shown(cells: pd.DataFrame) -> pd.DataFrame:
    """The table of cells as a reader wants it: pipelines before ceilings, the fastest first, shares in %.

    What a thousand images took stands in it where any record tells, so does the most that others used of the
    cores in any repeat, the cores that cells asked for, and variants where an experiment has any.
    """
    names = [wording.labels(rows, wording.SHORT, unique=False) for _, rows in cells.groupby("experiment")]
    rows = cells.assign(
        pipeline=pd.concat(names),
        cores_asked=cells["cores_asked"].where(cells["cores_asked"] > 0).astype("Int64"),
        _ceiling=cells["loader"].map(tables.is_ceiling).astype(bool),
    )
    rows = rows.sort_values(["experiment", "_ceiling", "images_per_s"], ascending=[True, True, False])
    columns = {name: of for name, of in SHOWN.items() if of[0] not in MAY_LACK or rows[of[0]].notna().any()}
    if not rows["variant"].astype(bool).any():
        del columns["Variant"]
    return pd.DataFrame(
        {name: _column(rows[column], name, decimals) for name, (column, decimals) in columns.items()}
    )


def _column(values: pd.Series, name: str, decimals: int | None) -> pd.Series:
    if decimals is None:
        return values.astype(object).where(values.notna(), "")
    numbers = pd.to_numeric(values) * (100 if name.endswith("(%)") else 1)
    return numbers.round(decimals).astype(float)


def library() -> str:
    """DataTables, once for the page: script and style of itables' offline bundle."""
    return generate_init_offline_itables_html(options.dt_bundle).split("<div", 1)[0]


def table(cells: pd.DataFrame) -> str:
    """HTML of the sorting and filtering table of all cells; every row is in it."""
    html = to_html_datatable(
        shown(cells),
        connected=False,
        table_id=TABLE_ID,
        display_logo_when_loading=False,
        showIndex=False,
        maxBytes=0,  # by default itables drops rows beyond 64 kB
        maxColumns=0,
        column_filters="footer",
        text_in_header_can_be_selected=False,  # else a click there does not sort
        lengthMenu=[25, 50, 100, -1],
        layout={"topStart": "search", "topEnd": "pageLength", "bottomStart": "info", "bottomEnd": "paging"},
        style={"table-layout": "auto", "width": "auto", "margin": "0"},
        language={"search": "Find in all columns:", "entries": {"_": "cells", "1": "cell"}},
    )
    html = NOTEBOOK.sub("", html)
    # itables writes what was not measured as NaN: as displayed text, as sort key, and in its fallback
    return html.replace('[\\"NaN\\", ', '[\\"-\\", ').replace(">NaN<", ">-<")
