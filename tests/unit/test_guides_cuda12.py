"""The pages: what they say of hybrid_gpu with the CUDA 12 stack is of its records."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
from data_fixtures import REPOSITORY
from test_guides_numbers import STEPS, hybrid, records_of, said, spread
from test_shipped import PLAN, REFERENCE, published


def machines_of(cell: pd.Series) -> set[str]:
    """The machines of its repeats."""
    files = (REFERENCE / "h100_cuda12/records" / cell["experiment"] / cell["cell_id"]).glob("*.json")
    return {json.loads(path.read_text())["environment"]["machine"] for path in files}


def first_steps(machine: str) -> list[list[float]]:
    """compile_s of each repeat of hybrid_gpu: in a lower precision, and in fp32."""
    files = (REFERENCE / machine / "records/hybrid_gpu").glob("*/*.json")
    found = [json.loads(path.read_text()) for path in files]
    of = [(one["cell"]["precision"] == "fp32", one["phases"]["compile_s"]) for one in found]
    return [[seconds for full, seconds in of if full is wanted] for wanted in (False, True)]


def test_what_it_says_of_the_hybrid_pipeline_with_the_cuda_12_stack_is_of_its_records():
    cuda12 = partial(hybrid, "h100_cuda12")
    fastai, graphs = cuda12(trainer="fastai"), cuda12(cuda_graphs=True)
    own_loader = cuda12(trainer="fastai", loader="fastai")
    epochs = [round(fastai["epoch_s" + end], 2) for end in ("_min", "_max")]
    assert said("N s and N s on two machines with an H100 (n = N), N s by fastai's own loader (n = N)") == [
        *epochs,
        len(machines_of(fastai)),
        round(own_loader["epoch_s"], 2),
        own_loader["n_repeats"],
    ]
    fastest = spread(graphs, "epoch_s", 3)
    assert said("with an H100 N s and N s, and N s twice") == [*epochs, *set(fastest)]
    turned = STEPS.replace(STEPS.split("; ")[0], f"{STEPS.split('; ')[0]}; augment.rotate_degrees=15")
    by = [cuda12(augment=augment, overrides=turned) for augment in ("chain", "torch")]
    rates = [rate for cell in by for rate in records_of(cell)]
    assert said("N and N images/s by `chain`, N and N by `torch` (CIFAR-10") == rates
    assert all(len(machines_of(cell)) == 2 for cell in (*by, fastai, graphs))
    both = [hybrid(cuda_graphs=True), graphs]
    sentence = "is at N % and N % of its own machine's limit, not distinguishable from it (n = N and N;"
    assert said(sentence) == [
        *(round(100 * cell["ceiling_share"]) for cell in both),
        *(cell["n_repeats"] for cell in both),
    ]
    assert {cell["against_ceiling"] for cell in both} == {"not distinguishable"}


def test_what_it_says_of_the_kept_model_is_of_its_evaluation():
    (path,) = (REFERENCE / "h100_cuda12/models").glob("*/*/evaluation.json")
    kept = json.loads(path.read_text())
    predicted = pd.read_csv(path.with_name("predictions.csv"))
    right = sum(Path(row.file).parent.name == row.class_1 for row in predicted.itertuples())
    assert said("N % of the N images of the test split, and N of N sample images") == [
        round(100 * kept["correct"] / kept["n"], 2),
        kept["n"],
        right,
        len(predicted),
    ]
    assert (kept["split"], kept["cell"]["epochs"], kept["cell"]["trainer"]) == ("test", 3, "fastai")
    assert not list(REFERENCE.rglob("model.pt"))


def test_what_the_page_says_of_that_run_is_of_its_records():
    page = (REPOSITORY / "docs/lab/cuda12.md").read_text()
    cuda12 = partial(hybrid, "h100_cuda12")
    rates = [records_of(cuda12(cuda_graphs=graphs)) for graphs in (True, False)]
    sentence = "`fused`: N and N images/s with CUDA graphs, N and N without (the latter two on one machine)"
    assert said(sentence, page) == [*rates[0], *rates[1]]
    assert len(machines_of(cuda12())) == 1
    by_torch, h200 = cuda12(augment="torch"), hybrid(augment="torch")
    assert len(machines_of(by_torch)) == 2
    sentence = "augment `torch` N and N images/s (on H200s with the CUDA 13 stack N to N, n = N)"
    ranges = [round(h200["images_per_s" + end]) for end in ("_min", "_max")]
    assert said(sentence, page) == [*records_of(by_torch), *ranges, h200["n_repeats"]]
    repeats = published("hybrid_gpu", "h100_cuda12")["n_repeats"]
    planned = len(PLAN.cells["hybrid_gpu"])
    assert said("**`hybrid_gpu`** (commit fc56a81): N of its N cells, N of them twice", page) == [
        len(repeats),
        planned,
        (repeats == 2).sum(),
    ]
    low, (full,) = first_steps("h100_cuda12")
    sentence = "N to N s in the N repeats of `hybrid_gpu` in fp16, bf16 and TF32, N s in the one in fp32"
    assert said(sentence, page) == [round(min(low)), round(max(low)), len(low), round(full, 1)]
    both = first_steps("h200")
    assert said("it was N to N s, and N to N s in fp32", page) == [
        round(end(seconds), 1) for seconds in both for end in (min, max)
    ]


def test_what_its_readme_says_of_two_repeats_is_of_the_records():
    page = (REFERENCE / "h100_cuda12/README.md").read_text()
    twice = published("hybrid_gpu", "h100_cuda12").query("n_repeats == 2")
    apart = twice["images_per_s_max"] / twice["images_per_s_min"]
    assert said("Cells with CUDA graphs agree within N %", page) == [
        round(100 * (apart[twice["cuda_graphs"]].max() - 1), 1)
    ]
    assert said("two repeats of a cell differ by up to N times", page) == [round(apart.max(), 2)]
    on_both = sum(len(machines_of(cell)) == 2 for _, cell in twice.iterrows())
    assert said("in N of the N cells one on each machine", page) == [on_both, len(twice)]


def test_the_check_of_resident_passes_with_the_tolerance_of_today():
    found = [
        json.loads(path.read_text()) for path in (REFERENCE / "h100_cuda12/gate/cifar10_jpeg").glob("*/*")
    ]
    assert {one["status"] for one in found} == {"passed"}
    resident = [one for one in found if one["loader"] == "resident"]
    sizes = sorted(one["settings"]["batch_size"] for one in resident)
    page = (REPOSITORY / "docs/reference/decoders.md").read_text()
    assert said("each with batches of N, N, N and N images (commit fc56a81)", page) == sizes
    (mean,), (largest,) = ({one[key] for one in resident} for key in ("mean_difference", "max_difference"))
    assert said("N on 60,000 of 32 x 32, and the largest is N", page) == [round(mean, 2), largest]
