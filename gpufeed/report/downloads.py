"""Tables as files that travel inside the page."""

import base64
import io
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Link:
    """A file: its name, its address as a data URI, its size in words."""

    name: str
    href: str
    size: str


def links(name: str, table: pd.DataFrame) -> list[Link]:
    """Return the table as <name>.csv and as <name>.parquet; nothing without rows."""
    if table.empty:
        return []
    buffer = io.BytesIO()
    # what pandas notes of its own types, and statistics of row groups, are three quarters of a small file
    plain = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(plain, buffer, compression="zstd", write_statistics=False, store_schema=False)
    return [
        _link(f"{name}.csv", "text/csv", table.to_csv(index=False, lineterminator="\n").encode()),
        _link(f"{name}.parquet", "application/vnd.apache.parquet", buffer.getvalue()),
    ]


def _link(name: str, kind: str, content: bytes) -> Link:
    data = base64.b64encode(content).decode()
    return Link(name, f"data:{kind};base64,{data}", f"{max(1, round(len(content) / 1000))} kB")
