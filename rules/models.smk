# A cell trained once more for its model -> the model, its evaluation with a confusion matrix, and predictions.


rule train_model:
    input:
        unpack(needs_of),
    output:
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
        about=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.json",
    log:
        f"{RESULTS}/logs/train_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_cell
    resources:
        **of_trainings(),
        cpus_per_task=cores_of_cell,
        gpu=gpus_of_cell,
    params:
        cell=identity_of,
        attempt=lambda wildcards: attempt_at(f"{models_path(wildcards)}/model.json"),
        code=lambda wildcards: digest(
            "trained/train.py", "trained/model_file.py", *code_of_training(wildcards)
        ),
    script:
        "../workflow/scripts/train_model.py"


rule evaluate_model:
    input:
        unpack(data_of),
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
    output:
        evaluation=f"{RESULTS}/models/{{experiment}}/{{cell}}/evaluation.json",
    log:
        f"{RESULTS}/logs/evaluate_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_evaluation
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_evaluation,
        gpu=GPU_JOBS,
    params:
        cell=identity_of,
        attempt=lambda wildcards: attempt_at(f"{models_path(wildcards)}/evaluation.json"),
        code=lambda wildcards: digest(
            "trained/evaluation.py", "trained/confusion.py", *code_of_training(wildcards)
        ),
    script:
        "../workflow/scripts/evaluate_model.py"


rule plot_confusion:
    input:
        f"{RESULTS}/models/{{experiment}}/{{cell}}/evaluation.json",
    output:
        confusion=report(
            f"{RESULTS}/models/{{experiment}}/{{cell}}/confusion.svg",
            caption="../workflow/report/confusion.rst",
            category="{experiment}",
            labels={"what": "confusion of {cell}", "kind": "figure"},
        ),
    log:
        f"{RESULTS}/logs/plot_confusion/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    params:
        code=ANALYSIS_CODE,
    script:
        "../workflow/scripts/plot_confusion.py"


rule predict:
    input:
        unpack(asked_about),
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
    output:
        predictions=f"{RESULTS}/models/{{experiment}}/{{cell}}/predictions.csv",
    log:
        f"{RESULTS}/logs/predict/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: cores_of_prediction
    resources:
        **of_gpu_jobs(),
        cpus_per_task=cores_of_prediction,
        gpu=GPU_JOBS,
    params:
        # a prediction does not depend on the device, so that a node without a GPU may make it
        device=lambda wildcards: "auto" if config["device"] == "cuda" else config["device"],
        samples=lambda wildcards: samples_to_predict(config, wildcards.experiment),
        code=lambda wildcards: digest(
            "trained/*.py", "data/manifest.py", "data/resize.py", "decode/pillow.py"
        ),
    script:
        "../workflow/scripts/predict.py"
