# A kept model -> exported files -> an INT8 file -> its measurement by each backend -> a table and a figure.


rule export_model:
    input:
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
    output:
        exported=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported.json",
        files=directory(f"{RESULTS}/models/{{experiment}}/{{cell}}/exported"),
    log:
        f"{RESULTS}/logs/export_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_prediction
    resources:
        cpus_per_task=RESOURCES.cores_of_prediction,
    params:
        cell=RUN.identity_of,
        # the exported files do not depend on the device
        attempt=lambda wildcards: RUN.attempt_at(f"{MODELS.folder_of(wildcards)}/exported.json", "cpu"),
        code=lambda wildcards: CODES.of("export_model", model=RUN.cell_of(wildcards).model),
    script:
        "../workflow/scripts/export_model.py"


rule quantise_model:
    input:
        unpack(DATASETS.read_of),
        exported=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported.json",
        exported_files=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported",
    output:
        quantised=f"{RESULTS}/models/{{experiment}}/{{cell}}/quantised.json",
        files=directory(f"{RESULTS}/models/{{experiment}}/{{cell}}/quantised"),
    log:
        f"{RESULTS}/logs/quantise_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_evaluation
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_evaluation,
        gpu=RUN.gpu_jobs,
    params:
        cell=RUN.identity_of,
        calibration=MODELS.calibration_of,
        attempt=lambda wildcards: RUN.attempt_at(f"{MODELS.folder_of(wildcards)}/quantised.json", "cpu"),
        code=lambda wildcards: CODES.of(
            "quantise_model",
            loader=RUN.cell_of(wildcards).loader,
            augment="none",
        ),
    script:
        "../workflow/scripts/quantise_model.py"


rule measure_inference:
    input:
        unpack(DATASETS.read_of),
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
        exported=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported.json",
        exported_files=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported",
        quantised=f"{RESULTS}/models/{{experiment}}/{{cell}}/quantised.json",
        quantised_files=f"{RESULTS}/models/{{experiment}}/{{cell}}/quantised",
    output:
        inference=f"{RESULTS}/inference/{{experiment}}/{{cell}}.json",
    log:
        f"{RESULTS}/logs/measure_inference/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_cell
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_cell,
        gpu=RUN.gpu_jobs,
    params:
        cell=RUN.identity_of,
        settings=MODELS.inference_of,
        attempt=lambda wildcards: RUN.attempt_at(
            f"{RESULTS}/inference/{wildcards.experiment}/{wildcards.cell}.json"
        ),
        code=lambda wildcards: CODES.of(
            "measure_inference",
            loader=RUN.cell_of(wildcards).loader,
            augment="none",
            model=RUN.cell_of(wildcards).model,
            backend=MODELS.inference_of(wildcards)["backends"],
        ),
    script:
        "../workflow/scripts/measure_inference.py"


rule plot_inference:
    input:
        lambda wildcards: MODELS.inferences_of(wildcards.experiment),
    output:
        table=report(
            f"{RESULTS}/tables/{{experiment}}/inference.csv",
            caption="../workflow/report/inference_table.rst",
            category="{experiment}",
            labels={"what": "models in use", "kind": "table"},
        ),
        figure=report(
            f"{RESULTS}/figures/{{experiment}}/inference.svg",
            caption="../workflow/report/inference.rst",
            category="{experiment}",
            labels={"what": "models in use", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot_inference/{{experiment}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=CODES.of_report("plot_inference"),
    script:
        "../workflow/scripts/plot_inference.py"
