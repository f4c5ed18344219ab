"""Where datasets come from, their files in `data`, and what the jobs that read them wait for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpufeed.core.cell_matrix import quantity, source_options
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import GpufeedError
from gpufeed.core.image_listing import NAMES, files_below, names_digest
from gpufeed.core.registry import DECODERS, DERIVED, LOADERS, store_file
from gpufeed.core.repeats import AGAIN
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.run import Run


class Datasets:
    """The datasets of a run. announce_and_check: called with each dataset that will be prepared."""

    def __init__(self, run: Run, gates: Gates, announce_and_check: Callable[[str], None]):
        self.run, self.gates, self.announce_and_check = run, gates, announce_and_check

    def files_written(self, directory: Callable[[str], Any]) -> dict[str, Any]:
        """Return the output files of a prepared dataset. directory: Snakemake's."""
        images = f"{self.run.data}/{{dataset}}/images"
        if self.run.packed:
            return {"images": f"{images}.tar", "sidecar": f"{images}.json"}
        return {"images": directory(images)}

    def source_of(self, wildcards: Any) -> dict[str, Any]:
        """Return a dataset's source, as in the config."""
        return self.run.config["sources"][wildcards.dataset]

    def options_of(self, wildcards: Any) -> dict[str, Any]:
        """Return the options of a source with the defaults of its layout.

        The defaults stand in the schema, which is not part of a job's code: as params they re-run the job.
        """
        layout = self.source_of(wildcards)["layout"]
        return with_defaults(layout, source_options(self.run.config, wildcards.dataset))

    def quantity_of(self, wildcards: Any) -> dict[str, int]:
        """Return how many of a source's images are used, and how often, if it says so."""
        return quantity(self.source_of(wildcards))

    def archives_of(self, wildcards: Any) -> str | list[str]:
        """Return the input of a layout: the source's files, or the manifest of what it is made from."""
        self.announce_and_check(wildcards.dataset)
        source = self.source_of(wildcards)
        if source["layout"] in DERIVED:
            return self.run.manifest_of(self.options_of(wildcards)["of"])
        folder = f"{self.run.data}/{wildcards.dataset}/archives"
        return [f"{folder}/{file['name']}" for file in source.get("files", [])]

    def folder_of(self, wildcards: Any) -> dict[str, str] | None:
        """Return a source's folder of images and a digest of their names; None without a folder.

        The digest makes Snakemake prepare the dataset again when images come or go.
        """
        if not (folder := self.source_of(wildcards).get("folder")):
            return None
        path = Path(folder).expanduser()
        return {"path": str(path), NAMES: names_digest(files_below(path))}

    def files_made_of(self, wildcards: Any) -> list[str]:
        """Return the files of the dataset that a derived layout is made from."""
        derived = self.source_of(wildcards)["layout"] in DERIVED
        return self.run.files_of(self.options_of(wildcards)["of"]) if derived else []

    def content_of(self, wildcards: Any) -> dict[str, Any]:
        """Return what identifies the content of a source file; URLs are left out (see download.py)."""
        files = self.source_of(wildcards).get("files", [])
        for file in files:
            if file["name"] == wildcards.file:
                return {key: file.get(key) for key in ("name", "sha256", "size")}
        raise GpufeedError(
            f"no file {wildcards.file} in sources.{wildcards.dataset}",
            f"one of: {', '.join(file['name'] for file in files)}",
            "use the dataset's manifest as target: snakemake then finds its files",
        )

    def store_for_cache(self, wildcards: Any) -> str | list[str]:
        """Return the store that a cache is decoded from; none for a decoder that reads files."""
        store = self.run.built.get(DECODERS[wildcards.decoder].reads)
        return f"{self.run.data}/{wildcards.dataset}/{store}" if store else []

    def read_by(self, wildcards: Any) -> tuple[str, str, dict[str, Any] | None]:
        """Return (dataset, loader, options of the recipe) behind the wildcards of a cell or of a gate."""
        if hasattr(wildcards, "loader"):
            recipe = self.gates.settings_judged(wildcards).get("recipe")
            return wildcards.dataset, self.gates.loader_of(wildcards), recipe
        cell = self.run.cell_of(wildcards)
        return cell.dataset, cell.loader, cell.hyper.get("recipe")

    # One function returns all inputs of a cell or a gate, and only those that the job reads.
    # Snakemake calls each function, and checks each name, for every job.

    def read_of(self, wildcards: Any) -> dict[str, Any]:
        """Return the manifest of a cell's or a gate's dataset, and what its loader reads."""
        dataset, name, recipe = self.read_by(wildcards)
        loader, run = LOADERS[name], self.run
        found: dict[str, Any] = {"manifest": self.run.manifest_of(dataset)}
        if file := store_file(name, run.config["cache_decoder"], recipe):
            found[loader.reads] = f"{run.data}/{dataset}/{file}"
        if run.packed and loader.reads_files:
            found["files"] = self.run.files_of(dataset)
        if loader.extension:
            found["extension"] = run.extension
        return found

    def needs_of(self, wildcards: Any) -> dict[str, Any]:
        """Return all that a cell's training reads or waits for."""
        waits = {"gate": self.gates.of_cell(wildcards), "extension": self.run.extension_of(wildcards)}
        return self.read_of(wildcards) | {name: path for name, path in waits.items() if path}

    def needs_of_probe(self, wildcards: Any) -> dict[str, Any]:
        """Return needs_of without the verdict: only measured cells are judged."""
        needs = self.needs_of(wildcards)
        needs.pop("gate", None)
        return needs

    def needs_as_tuned(self, wildcards: Any) -> dict[str, Any]:
        """Return needs_of; with tuned settings, add the tuning and the verdict on its choice."""
        place = wildcards.experiment, wildcards.cell
        if not self.run.cell_of(wildcards).settings:
            return self.needs_of(wildcards)
        found = {"gate": self.gates.tuned_verdict_of(*place), "tuned": self.gates.tuning_of(*place)}
        return self.needs_of(wildcards) | found

    def needs_of_repeat(self, wildcards: Any) -> dict[str, Any]:
        """Return needs_as_tuned; a second record also waits for the first, and is made again with it."""
        needs, first = self.needs_as_tuned(wildcards), wildcards.repeat.removesuffix(AGAIN)
        if first != wildcards.repeat:
            folder = f"{self.run.results}/records/{wildcards.experiment}/{wildcards.cell}"
            needs["first"] = f"{folder}/{first}.json"
        return needs
