"""The files that a kept model is exported to, and their list (exported.schema.yaml).

Each takes float32 (N, 3, H, W) on any device, normalised with mean and std of its metadata, for any N. It
returns float32 logits (N, classes).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufeed.benchmarks.saved_models.model_file import SavedModel
from gpufeed.core.document import Document
from gpufeed.core.errors import Skip
from gpufeed.core.file_writes import enough_disk

SCHEMA_VERSION = 1
EXPORTED = Document("exported", "list of exported files")
NOTHING = {"schema_version": SCHEMA_VERSION, "rows": [], "calibration": None}

NAMES = {
    "program": "model.pt2",
    "onnx": "model.onnx",
    "onnx_fp16": "model.fp16.onnx",
    "onnx_int8": "model.int8.onnx",
    "onnx_int8_fp16": "model.int8.fp16.onnx",
}
INPUT, OUTPUT = "images", "logits"
METADATA = "gpufeed"  # name of the JSON in a file's metadata


def metadata_text(saved: SavedModel) -> str:
    """Return the metadata that is stored in a file, with which it can be used without the config."""
    about = saved.about
    size = about["input"]
    metadata = {
        "model": about["cell"]["model"],
        "dataset": about["dataset"],
        "classes": saved.classes,
        "height": size["height"],
        "width": size["width"],
        "mean": size["mean"],
        "std": size["std"],
        "input": "float32 (N, 3, height, width), RGB in 0 to 1, less mean, over std",
        "output": "float32 logits (N, classes)",
        "commit": about["environment"]["commit"],
        "trained_at": about["finished_at"],
    }
    return json.dumps(metadata, sort_keys=True)


@dataclass(frozen=True)
class Files:
    """Exported files by format. paths: those that exist; lacking: why each of the others does not."""

    paths: Mapping[str, Path]
    lacking: Mapping[str, str]

    def path(self, format: str) -> Path:
        """Return the file in this format; raise Skip with the reason if there is none."""
        if format in self.paths:
            return self.paths[format]
        reason = self.lacking.get(format, "it was not exported")
        raise Skip(f"There is no {NAMES[format]}: {reason}")


def find(documents: Mapping[str | Path, str | Path]) -> Files:
    """Return the files in these lists. documents: list -> the folder of its files.

    A file that the list calls done but that is gone counts as lacking.
    """
    paths, lacking = {}, {}
    for document, folder in documents.items():
        found = EXPORTED.read(document)
        for row in found["rows"]:
            path = Path(folder) / NAMES[row["format"]]
            if row["status"] != "done":
                lacking[row["format"]] = row["sentence"]
            elif not path.exists():
                lacking[row["format"]] = (
                    f"{path} is missing; snakemake --forcerun export_model makes it again."
                )
            else:
                paths[row["format"]] = path
        if found["sentence"]:
            lacking |= {format: found["sentence"] for format in NAMES if format not in {*paths, *lacking}}
    return Files(paths, lacking)


def row(
    format: str,
    folder: Path,
    work: Callable[[Path], dict[str, Any]],
    outcome: Callable[[Callable[[], Any]], tuple[str, str | None, Any]],
) -> dict[str, Any]:
    """Make one file and return its row. work: writes the path that it gets, and returns its findings.

    outcome: gpufeed.training.cell_training.with_status for this cell. A file that failed is removed.
    """
    path = folder / NAMES[format]

    def made() -> dict[str, Any]:
        with enough_disk(folder, path):
            return work(path)

    status, sentence, found = outcome(made)
    if status != "done":
        path.unlink(missing_ok=True)
    told = dict.fromkeys(("opset", "dynamic_batch", "difference", "quantised")) | (found or {})
    size = path.stat().st_size if status == "done" else None
    return {"format": format, "status": status, "sentence": sentence, "bytes": size, **told}


def troubles(found: Mapping[str, Any]) -> list[str] | None:
    """Return a line for each failed row; None if all was stopped, as the document's own sentence says."""
    if found["sentence"]:
        return None
    failed = (row for row in found["rows"] if row["status"] == "failed")
    return [f"{row.get('format') or row['backend']} failed: {row['sentence']}" for row in failed]
