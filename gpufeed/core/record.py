"""The record: what one repeat of one cell leaves behind, and all that tables and figures read.

`gpufeed/core/schemas/record.schema.yaml` describes every field with its unit.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpufeed.core.document import Document

SCHEMA_VERSION = 1
PLACE = "{experiment}/{cell_id}/{repeat}"
# a repeat may have another record beside its first: 3-again.json
DOCUMENT = Document("record", "record", (f"{PLACE}.json", f"{PLACE}-*.json"))


@dataclass
class Record:
    """One repeat. Fields as in the schema; everything measured is None unless status is `done`."""

    experiment: str
    cell_id: str
    repeat: int
    status: str  # done | skipped | failed
    planned_on: str
    started_at: str
    finished_at: str
    cell: dict
    environment: dict
    attempt: int = 1
    sentence: str | None = None
    resolved: dict | None = None
    phases: dict | None = None
    warmup: dict | None = None
    steps: dict | None = None
    epochs: list[dict] = field(default_factory=list)
    throughput: dict | None = None
    accuracy: dict | None = None
    memory: dict | None = None
    dataset: dict | None = None
    loading: dict | None = None
    telemetry: dict | None = None
    resumed: list[int] | None = None
    schema_version: int = SCHEMA_VERSION

    def write(self, path: str | Path) -> None:
        """Writes the record as JSON, whole or not at all; raises GpufeedError if it breaks the schema."""
        DOCUMENT.write(asdict(self), path)

    @classmethod
    def read(cls, path: str | Path) -> "Record":
        """Reads a record; raises GpufeedError if it is damaged or of another schema version."""
        return cls(**DOCUMENT.read(path))
