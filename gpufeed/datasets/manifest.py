"""The manifest: the one list of samples that every decoder, cache and loader reads.

A manifest is a Parquet file `manifest.parquet` beside the image files of one dataset. Row i is
sample id i. Labels are indices into `classes`, in the dataset's own order.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import whole
from gpufeed.core.references import is_reference
from gpufeed.core.registry import is_made
from gpufeed.datasets.packed import files_at
from gpufeed.decoders.pillow import resized

COLUMNS = {
    "path": pa.string(),  # relative to Manifest.files_root()
    "label": pa.int64(),
    "split": pa.string(),  # "train", and the dataset's own name for the held-out part
    "height": pa.int32(),
    "width": pa.int32(),
    "channels": pa.int8(),  # as stored: 1 is grayscale, which decoders expand to RGB
}
META_KEY = b"gpufeed"


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a dataset as a whole. mean and std are per RGB channel, of pixels in 0..1."""

    dataset: str
    layout: str
    classes: list[str]
    evaluation_split: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    left_out: dict[str, int] = field(default_factory=dict)  # sentence -> number of files, or folders
    source: dict = field(default_factory=dict)  # file name -> sha256, or a generator's parameters; QUANTITY
    # [{"path", "reason"}] of files that nobody can decode and that therefore have no row
    quarantined: list[dict[str, str]] = field(default_factory=list)
    resize: tuple[int, int] | None = None  # (height, width) that loaders yield, if not that of the files


@dataclass
class Manifest:
    """Samples of a dataset: `table` has the columns of COLUMNS, `root` is the manifest's folder.

    origins: path -> the user's file that was linked or copied; not written.
    """

    root: Path
    info: DatasetInfo
    table: pd.DataFrame
    origins: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    def ids(self, split: str) -> np.ndarray:
        """Return the sample ids of a split, ascending, int64 (n,)."""
        ids = np.flatnonzero((self.table["split"] == split).to_numpy())
        if not len(ids):
            splits = ", ".join(sorted(self.table["split"].unique()))
            raise GpufeedError(
                f"no samples in split {split!r} of {self.info.dataset}",
                f"one of: {splits}",
                "name one of them",
            )
        return ids.astype(np.int64)

    def labels(self) -> np.ndarray:
        """Return the labels by sample id, int64 (n,)."""
        return self.table["label"].to_numpy(dtype=np.int64)

    def sizes(self) -> np.ndarray:
        """Return the height and width of each file by sample id, int64 (n, 2)."""
        return self.table[["height", "width"]].to_numpy(dtype=np.int64)

    @property
    def made(self) -> bool:
        """Return whether no file holds the images, so that the loading process makes the pixels."""
        return is_made({**self.info.source, "layout": self.info.layout})

    def pixels(self, sample_id: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
        """Make the pixels of a sample of a `made` dataset, uint8 (H, W, 3), resized to `image_size`.

        They depend on the dataset's seed and the sample's own number alone. A user's Dataset may draw random
        numbers: its pixels depend on the order's seed, the epoch and the sample.
        """
        split, _, number = self.table["path"].iat[sample_id].rpartition("/")  # the same in a subset
        if is_reference(self.info.layout):
            from gpufeed import plugins  # both import torch
            from gpufeed.system import random_draws

            dataset = plugins.open_dataset(self.info.layout, split, self.info.source["options"])
            state = random_draws.sample_state(seed, epoch, sample_id)
            image, _ = plugins.sample(dataset, int(number), state, self.info.layout)
            return resized(image, self.info.resize) if self.info.resize else image
        random = np.random.default_rng([self.info.source["seed"], int(number)])
        side = self.info.source["size"]
        image = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
        return resized(image, self.info.resize) if self.info.resize else image

    def files_root(self) -> Path:
        """Return the folder of the files on this node: `root`, or where its archive is unpacked.

        The first call on a node waits for the unpacking. Raises GpufeedError as
        gpufeed.datasets.packed.files_at does.
        """
        return self.root if self.made else files_at(self.root)

    def paths(self) -> list[Path]:
        """Return the files by sample id, on this node."""
        folder = self.files_root()
        return [folder / path for path in self.table["path"]]

    def image_size(self) -> tuple[int, int]:
        """Return (height, width) of what loaders yield: `resize`, or the size that all files share.

        Raises GpufeedError if the files differ in size and `resize` is not set.
        """
        if self.info.resize:
            return self.info.resize
        sizes = self.table[["height", "width"]].drop_duplicates()
        if len(sizes) != 1:
            raise GpufeedError(
                f"{len(sizes)} image sizes in {self.info.dataset}",
                "one height and width for the whole dataset",
                "give its source `resize: [height, width]` and prepare it again, or use a recipe that crops "
                "and resizes",
            )
        return int(sizes["height"].iloc[0]), int(sizes["width"].iloc[0])

    def write(self) -> Path:
        """Write `manifest.parquet` into root, whole or not at all; return its path."""
        schema = pa.schema(COLUMNS.items(), metadata={META_KEY: json.dumps(asdict(self.info)).encode()})
        table = pa.Table.from_pandas(self.table[list(COLUMNS)], schema=schema, preserve_index=False)
        path = self.root / "manifest.parquet"
        with whole(path) as partial:
            pq.write_table(table.replace_schema_metadata(schema.metadata), partial)
        return path

    @classmethod
    def read(cls, path: str | Path) -> "Manifest":
        """Read a manifest file; raise GpufeedError if it is missing or not a manifest of gpufeed."""
        path = Path(path)
        try:
            table = pq.read_table(path)
            meta = json.loads(table.schema.metadata[META_KEY])
            tuples = {key: tuple(meta[key]) for key in ("mean", "std", "resize") if meta.get(key)}
            info = DatasetInfo(**{**meta, **tuples})
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError, AttributeError) as error:
            raise GpufeedError(
                f"no readable manifest at {path} ({error})",
                "manifest.parquet as gpufeed writes it",
                "name the manifest.parquet of a prepared dataset; if it is one, move it away and run the "
                "command again, which prepares the dataset again",
            ) from error
        return cls(path.parent, info, table.to_pandas())
