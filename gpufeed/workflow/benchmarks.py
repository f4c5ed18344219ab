"""What experiments measure besides cells: ceilings, decoders, builds of caches, kernels, kept models."""

from typing import Any, TypeVar

from gpufeed.core import plan_ceilings as ceilings_plan
from gpufeed.core import plan_decoding as sweep_plan
from gpufeed.core import plan_inference as inference_plan
from gpufeed.core import plan_kernels as kernels_plan
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_advice import candidates
from gpufeed.core.plan_builds import planned_builds
from gpufeed.core.registry import takes_gpu
from gpufeed.workflow.run import Run

Settings = TypeVar("Settings")


def present(settings: Settings | None, key: str, experiment: str) -> Settings:
    """Return the settings of an experiment; raise GpufeedError if a path needs them and there are none."""
    if settings is None:
        raise GpufeedError(
            f"no {key} in experiment {experiment}",
            f"`{key}:` in it",
            "add it to the experiment, or name a target of another one",
        )
    return settings


class Benchmarks:
    """Ceilings, sweeps over decoders, timed builds of caches and kernel benchmarks.

    limited: experiment -> its cells with ceilings. builds: experiment -> its builds, if it has any.
    """

    def __init__(self, run: Run):
        self.run, self.config = run, run.config
        self.limited = {name: ceilings_plan.cells(run.config, run.plan, name) for name in run.plan.cells}
        builds = {name: planned_builds(run.config, name) for name in run.plan.cells}
        self.builds = {name: found for name, found in builds.items() if found}

    def ceilings_of(self, experiment: str) -> list[str]:
        """Return the documents of an experiment's ceilings, one for each cell."""
        return [f"{self.run.results}/ceilings/{experiment}/{cell}.json" for cell in self.limited[experiment]]

    def probed(self, experiment: str) -> list[str]:
        """Return the cells of an experiment that are probed; none without `advice`."""
        return candidates(self.run.plan, experiment) if self.run.advised[experiment] else []

    def inputs_of_advice(self, wildcards: Any) -> dict[str, list[str]]:
        """Return the inputs of an experiment's advice: its probes, and the ceilings of its cell `of`."""
        experiment, folder = wildcards.experiment, f"{self.run.results}/probes/{wildcards.experiment}"
        of = present(self.run.advised[experiment], "advice", experiment)["of"]
        limits = [f"{self.run.results}/ceilings/{experiment}/{of}.json"] * (of in self.limited[experiment])
        return {"probes": [f"{folder}/{cell}.json" for cell in self.probed(experiment)], "ceilings": limits}

    def settings_of_ceilings(self, wildcards: Any) -> dict[str, Any]:
        """Return how the ceilings of an experiment are measured."""
        settings = ceilings_plan.settings(self.config, wildcards.experiment)
        return present(settings, "ceilings", wildcards.experiment)

    def sweep_of(self, wildcards: Any) -> dict[str, Any]:
        """Return the sweep of an experiment; raise GpufeedError without one."""
        return present(self.sweep_in(wildcards.experiment), "sweep", wildcards.experiment)

    def sweep_in(self, experiment: str) -> dict[str, Any] | None:
        """Return the sweep of an experiment; None without one."""
        return sweep_plan.settings(self.config, experiment)

    def settings_of_sweep(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings for one decoder. `decoders` is left out: adding one keeps existing results."""
        return {key: value for key, value in self.sweep_of(wildcards).items() if key != "decoders"}

    def sweeps_of(self, wildcards: Any) -> list[str]:
        """Return the documents of an experiment's sweep, one for each decoder."""
        folder = f"{self.run.results}/sweeps/{wildcards.experiment}"
        return [f"{folder}/{decoder}.json" for decoder in self.sweep_of(wildcards)["decoders"]]

    def manifests_of_sweep(self, wildcards: Any) -> dict[str, str]:
        """Return dataset -> its manifest, for an experiment's sweep."""
        return {name: self.run.manifest_of(name) for name in self.sweep_of(wildcards)["datasets"]}

    def strips_of_sweep(self, wildcards: Any) -> list[str]:
        """Return the strips of the sweep's datasets, in their order; none for a decoder that reads files."""
        datasets = self.sweep_of(wildcards)["datasets"] if wildcards.decoder in sweep_plan.STRIP_SETS else []
        return [f"{self.run.data}/{name}/{self.run.built['strips']}" for name in datasets]

    def attempt_of_build(self, wildcards: Any) -> int:
        """Return the attempt that the times come from; times of a CPU decoder do not depend on the device."""
        path = f"builds/{wildcards.experiment}/{wildcards.decoder}-{wildcards.cores}.json"
        return self.run.attempt_at(
            f"{self.run.results}/{path}", "auto" if takes_gpu(wildcards.decoder) else "cpu"
        )

    def kernels_in_report(self, experiment: str) -> dict[str, Any] | None:
        """Return the lines that the kernel benchmark of an experiment must meet; None without a benchmark."""
        has_any = kernels_plan.settings(self.config, experiment) is not None
        return {"lines": kernels_plan.lines(self.config, experiment)} if has_any else None

    def kernels_of(self, experiment: str) -> dict[str, Any]:
        """Return the settings of the kernel benchmark of an experiment."""
        return present(kernels_plan.settings(self.config, experiment), "kernels", experiment)

    def works_of_kernels(self, wildcards: Any) -> str:
        """Return the family of works in the kernel benchmark of an experiment."""
        return self.kernels_of(wildcards.experiment)["family"]

    def extension_of_kernels(self, wildcards: Any) -> str | list[str]:
        """Return the library whose kernels are measured; the augments need none."""
        own = self.works_of_kernels(wildcards) == kernels_plan.ACTIVATION
        return self.run.extension if own else []


class Models:
    """Cells whose models are kept, and those whose models are measured: experiment -> its cells."""

    def __init__(self, run: Run):
        self.run, self.config = run, run.config
        self.kept, self.in_use = (
            {name: run.plan.cells_for(run.config, name, part) for name in run.plan.cells}
            for part in ("models", "inference")
        )

    def folder_of(self, wildcards: Any) -> str:
        """Return the folder of a kept model."""
        return f"{self.run.results}/models/{wildcards.experiment}/{wildcards.cell}"

    def predicts_images(self, experiment: str) -> bool:
        """Return whether the kept models of an experiment predict any image."""
        models = self.config["experiments"][experiment].get("models", {})
        return bool(models.get("predict") or models.get("samples"))

    def samples_of(self, wildcards: Any) -> int:
        """Return how many evaluation images a model predicts."""
        return self.config["experiments"][wildcards.experiment].get("models", {}).get("samples", 0)

    def images_to_predict(self, wildcards: Any) -> dict[str, Any]:
        """Return the images that a model predicts; raise GpufeedError if its experiment names none."""
        if not self.predicts_images(wildcards.experiment):
            raise GpufeedError(
                f"no files to predict in experiment {wildcards.experiment}",
                "`models: {blocks: [...], predict: [FILES AND FOLDERS], samples: NUMBER}` in it",
                "add one of the two, or run python -m gpufeed.predict on the model",
            )
        models = self.config["experiments"][wildcards.experiment]["models"]
        found: dict[str, Any] = {"files": list(models.get("predict", []))}
        if self.samples_of(wildcards):
            dataset = self.run.cell_of(wildcards).dataset
            found |= {"manifest": self.run.manifest_of(dataset), "packed": self.run.files_of(dataset)}
        return found

    def inferences_of(self, experiment: str) -> list[str]:
        """Return the documents of an experiment's measured models, one for each cell."""
        return [f"{self.run.results}/inference/{experiment}/{cell}.json" for cell in self.in_use[experiment]]

    def inference_of(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings with which the models of an experiment are measured."""
        settings = inference_plan.settings(self.config, wildcards.experiment)
        return present(settings, "inference", wildcards.experiment)

    def calibration_of(self, wildcards: Any) -> dict[str, Any]:
        """Return how the INT8 files of an experiment are calibrated."""
        return inference_plan.calibration(self.config, wildcards.experiment)
