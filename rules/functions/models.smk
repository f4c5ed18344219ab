# Cells whose models are kept.

from gpufeed.trained.plan import files_to_predict, kept_cells

KEPT = {name: kept_cells(config, PLAN, name) for name in PLAN.cells}  # cells whose models are kept


def models_path(wildcards):
    """The folder of a kept model."""
    return f"{RESULTS}/models/{wildcards.experiment}/{wildcards.cell}"


def files_asked_about(wildcards):
    """What a model is asked about; in an experiment that names no files, its predictions are an error."""
    files = files_to_predict(config, wildcards.experiment)
    if not files:
        raise WorkflowError(
            f"found: no files to predict in experiment {wildcards.experiment}\n"
            "expected: `models: {blocks: [...], predict: [FILES AND FOLDERS]}` in it\n"
            "what to do: add it, or run python -m gpufeed.predict on the model"
        )
    return files
