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
    threads: cores_of_prediction
    resources:
        cpus_per_task=cores_of_prediction,
    params:
        cell=identity_of,
        # what is exported does not depend on the device
        attempt=lambda wildcards: attempt_at(f"{models_path(wildcards)}/exported.json", "cpu"),
        code=lambda wildcards: digest("inference/export.py", "inference/files.py", *code_of_model(wildcards)),
    script:
        "../workflow/scripts/export_model.py"


rule quantise_model:
    input:
        unpack(data_of),
        exported=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported.json",
        exported_files=f"{RESULTS}/models/{{experiment}}/{{cell}}/exported",
    output:
        quantised=f"{RESULTS}/models/{{experiment}}/{{cell}}/quantised.json",
        files=directory(f"{RESULTS}/models/{{experiment}}/{{cell}}/quantised"),
    log:
        f"{RESULTS}/logs/quantise_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_evaluation
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_evaluation,
        gpu=GPU_JOBS,
    params:
        cell=identity_of,
        calibration=lambda wildcards: inference_plan.calibration(config, wildcards.experiment),
        attempt=lambda wildcards: attempt_at(f"{models_path(wildcards)}/quantised.json", "cpu"),
        code=code_of_quantisation,
    script:
        "../workflow/scripts/quantise_model.py"


rule measure_inference:
    input:
        unpack(data_of),
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
    threads: cores_of_cell
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_cell,
        gpu=GPU_JOBS,
    params:
        cell=identity_of,
        settings=inference_of,
        attempt=lambda wildcards: attempt_at(
            f"{RESULTS}/inference/{wildcards.experiment}/{wildcards.cell}.json"
        ),
        code=code_of_inference,
    script:
        "../workflow/scripts/measure_inference.py"


rule plot_inference:
    input:
        lambda wildcards: inferences_of(wildcards.experiment),
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
        code=ANALYSIS_CODE,
    script:
        "../workflow/scripts/plot_inference.py"
