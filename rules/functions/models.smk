# Cells whose models are kept.

from gpufeed.trained.plan import files_to_predict, kept_cells, samples_to_predict

KEPT = {name: kept_cells(config, PLAN, name) for name in PLAN.cells}  # cells whose models are kept


def models_path(wildcards):
    """The folder of a kept model."""
    return f"{RESULTS}/models/{wildcards.experiment}/{wildcards.cell}"


def is_asked(experiment):
    """Whether the kept models of an experiment are asked about any image."""
    return bool(files_to_predict(config, experiment) or samples_to_predict(config, experiment))


def asked_about(wildcards):
    """What a model is asked about; in an experiment that names nothing, its predictions are an error."""
    if not is_asked(wildcards.experiment):
        raise WorkflowError(
            f"found: no files to predict in experiment {wildcards.experiment}\n"
            "expected: `models: {blocks: [...], predict: [FILES AND FOLDERS], samples: NUMBER}` in it\n"
            "what to do: add one of the two, or run python -m gpufeed.predict on the model"
        )
    found = {"files": files_to_predict(config, wildcards.experiment)}
    if samples_to_predict(config, wildcards.experiment):
        dataset = cell_of(wildcards).dataset
        found |= {"manifest": f"{DATA}/{dataset}/manifest.parquet", "packed": files_of(dataset)}
    return found
