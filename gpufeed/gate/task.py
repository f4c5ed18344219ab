"""What the gate is asked to judge. Standard library only, since its job starts before torch is needed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One loader with one setting on one dataset. Paths as text; settings as gate.variants makes them.

    reference: the cache decoded by Pillow; cache, strips, shards, beton: what the loader reads, if it does;
    extension: the library of gpufeed.ops, if the loader decodes by it;
    device: as in the config; threads: cores that the loader may use, None for all.
    """

    dataset: str
    loader: str
    settings: dict
    manifest: str
    reference: str
    cache: str | None = None
    strips: str | None = None
    shards: str | None = None
    beton: str | None = None
    extension: str | None = None
    device: str = "auto"
    threads: int | None = None
