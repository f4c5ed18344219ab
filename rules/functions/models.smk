# Cells whose models are kept.

from gpufeed.trained.plan import files_to_predict, kept_cells, samples_to_predict

KEPT = {name: kept_cells(config, PLAN, name) for name in PLAN.cells}  # cells whose models are kept


def models_path(wildcards):
    """The folder of a kept model."""
    return f"{RESULTS}/models/{wildcards.experiment}/{wildcards.cell}"


def is_asked(experiment):
    """Return whether the kept models of an experiment predict any image."""
    return bool(files_to_predict(config, experiment) or samples_to_predict(config, experiment))


def asked_about(wildcards):
    """Return the images that a model predicts; raise WorkflowError if its experiment names none."""
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
