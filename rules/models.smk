# A cell -> a training for its model -> the model, its evaluation with a confusion matrix, and predictions.


rule train_model:
    input:
        unpack(DATASETS.needs_of),
    output:
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
        about=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.json",
    log:
        f"{RESULTS}/logs/train_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_cell
    resources:
        **RESOURCES.of_trainings(),
        cpus_per_task=RESOURCES.cores_of_cell,
        gpu=RESOURCES.gpus_of_cell,
    params:
        cell=RUN.identity_of,
        attempt=lambda wildcards: RUN.attempt_at(f"{MODELS.folder_of(wildcards)}/model.json"),
        code=CODES.of_training("train_model"),
    script:
        "../workflow/scripts/train_model.py"


rule evaluate_model:
    input:
        unpack(DATASETS.read_of),
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
    output:
        evaluation=f"{RESULTS}/models/{{experiment}}/{{cell}}/evaluation.json",
    log:
        f"{RESULTS}/logs/evaluate_model/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_evaluation
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_evaluation,
        gpu=RUN.gpu_jobs,
    params:
        cell=RUN.identity_of,
        attempt=lambda wildcards: RUN.attempt_at(f"{MODELS.folder_of(wildcards)}/evaluation.json"),
        code=CODES.of_training("evaluate_model"),
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
        code=CODES.of_report("plot_confusion"),
    script:
        "../workflow/scripts/plot_confusion.py"


rule predict:
    input:
        unpack(MODELS.images_to_predict),
        model=f"{RESULTS}/models/{{experiment}}/{{cell}}/model.pt",
    output:
        predictions=f"{RESULTS}/models/{{experiment}}/{{cell}}/predictions.csv",
    log:
        f"{RESULTS}/logs/predict/{{experiment}}/{{cell}}.log",
    conda:
        "../envs/gpufeed.yaml"
    threads: RESOURCES.cores_of_prediction
    resources:
        **RESOURCES.of_gpu_jobs(),
        cpus_per_task=RESOURCES.cores_of_prediction,
        gpu=RUN.gpu_jobs,
    params:
        # predictions do not depend on the device, so a node without a GPU may make them
        device=lambda wildcards: "auto" if config["device"] == "cuda" else config["device"],
        samples=MODELS.samples_of,
        code=lambda wildcards: CODES.of("predict", model=RUN.cell_of(wildcards).model, augment="none"),
    script:
        "../workflow/scripts/predict.py"
