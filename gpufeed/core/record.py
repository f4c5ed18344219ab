"""The JSON documents of each kind of measurement, which tables and figures read.

`gpufeed/core/schemas` describes every field with its unit.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpufeed.core.document import Document

RECORD_VERSION = 1
RECORD_PLACE = "{experiment}/{cell_id}/{repeat}"
# a repeat may have a second record: 3-again.json
RECORD = Document("record", "record", (f"{RECORD_PLACE}.json", f"{RECORD_PLACE}-*.json"))

CEILINGS_VERSION = 1
CEILINGS = Document("ceilings", "measurement of limits", ("{experiment}/{cell_id}.json",))

PROBE = Document("probe", "probe", ("{experiment}/{cell_id}.json",))
ADVICE = Document("advice", "advice", ("{experiment}.json",))
PROBE_VERSION = ADVICE_VERSION = 1

DECODING_VERSION = 1
DECODING = Document("sweep", "sweep")

INFERENCE_VERSION = 1
INFERENCE = Document("inference", "inference measurement", ("{experiment}/{cell_id}.json",))

KERNELS_VERSION = 1
KERNELS = Document("kernel", "kernel benchmark")

TUNED_VERSION = 1
TUNED = Document("tuned", "tuning", ("{experiment}/{cell_id}.json", "tuned.json"))

MODEL_VERSION = 1
MODEL = Document("model", "model")
EVALUATION = Document("evaluation", "evaluation", ("{experiment}/{cell_id}/evaluation.json",))


@dataclass
class Record:
    """One repeat of one cell. Fields as in the schema; measured fields are None unless status is `done`."""

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
    schema_version: int = RECORD_VERSION

    def write(self, path: str | Path) -> None:
        """Write the record as JSON, whole or not at all; raise GpufeedError if it breaks the schema."""
        RECORD.write(asdict(self), path)

    @classmethod
    def read(cls, path: str | Path) -> "Record":
        """Read a record; raise GpufeedError if it is damaged or of another schema version."""
        return cls(**RECORD.read(path))
