"""The numbers of docs/lab/guides.md are those of the published records."""

import json
import re
from statistics import median

import pandas as pd
from data_fixtures import REPOSITORY
from test_shipped import CONFIG, REFERENCE, published, the

from gpufeed.report.claims import CLAIMS, notebook_claims
from gpufeed.report.sections import decoding_tables
from gpufeed.report.significance import standing
from gpufeed.system.statistics import SAME

PAGE = (REPOSITORY / "docs/lab/guides.md").read_text()


STEPS = "; ".join(CONFIG["experiments"]["hybrid_gpu"]["common"]["overrides"][0])


def said(sentence: str, page: str = PAGE) -> list[float]:
    """The numbers at each N of a text that the page has once."""
    pattern = re.sub(r"\bN\b", r"([\\d.,]*\\d)", re.sub(r"([^\w\s])", r"\\\1", sentence))
    found = re.findall(pattern, " ".join(page.split()))
    assert len(found) == 1, (sentence, found)
    numbers = [found[0]] if isinstance(found[0], str) else found[0]
    return [float(number.replace(",", "")) for number in numbers]


def spread(row: pd.Series, column: str = "images_per_s", digits: int = 0) -> list[float]:
    """Median, lowest and highest."""
    return [round(row[column + end], digits) for end in ("", "_min", "_max")]


def times(after: pd.Series, before: pd.Series, digits: int = 2) -> list[float]:
    """What a change is worth, and its range."""
    found = standing(after, before)
    return [round(number, digits) for number in (found.ratio.median, *found.bounds)]


def test_what_it_says_of_the_notebook_is_of_its_records():
    cells = published("pipelining")
    free = cells[cells["synchronise"] == "epoch"]
    waits = {workers: the(cells, workers=workers, synchronise="step", batch_size=32) for workers in (0, 2)}
    swept = free[(free["prefetch_factor"].fillna(2) == 2) & free["pin_memory"]]
    none = the(swept, loader="dataloader_sync")
    workers = {
        count: the(swept, loader="dataloader_workers", workers=count, persistent_workers=True)
        for count in (2, 4, 8)
    }
    assert said(
        "at N workers over N. JPEG files (one H200, n = 3): N (N to N) where the host waits after each "
        "phase, N (N to N) as"
    ) == [
        *(2, 0),
        *times(waits[2], waits[0]),
        *times(workers[2], none),
    ]
    answers = [verdict.answer for verdict in notebook_claims(cells)]
    assert answers == ["cannot be judged", "holds", "does not hold"]
    assert len(answers) == len(CLAIMS)
    assert said("is 8, N images/s (N to N) on N cores; 4 reach N") == [
        *spread(workers[8]),
        workers[8]["cores"],
        round(workers[4]["images_per_s"]),
    ]
    shares = [round(100 * share) for share in spread(workers[8], "wait_share", 4)]
    assert said("nothing to train on for N % (N to N) of the time") == shares
    four = free[(free["loader"] == "dataloader_workers") & (free["workers"] == 4)]
    lasting = four[four["persistent_workers"]]
    plain = the(lasting, prefetch_factor=2, pin_memory=False)
    pinned = workers[4]
    assert said("the copy takes N ms pinned, N ms not; images/s do not differ: N against N, ranges") == [
        *(round(cell["transfer_ms"], 1) for cell in (pinned, plain)),
        *(round(cell["images_per_s"]) for cell in (pinned, plain)),
    ]
    ahead = [the(lasting, prefetch_factor=count, pin_memory=True) for count in (1, 8)]
    assert said("N images/s with one batch ahead, N with eight") == [
        round(cell["images_per_s"]) for cell in ahead
    ]
    anew = the(four, prefetch_factor=2, pin_memory=True, persistent_workers=False)
    assert said("N images/s (N to N) against N (N to N), epochs of N batches") == [
        *spread(pinned),
        *spread(anew),
        16,
    ]
    assert standing(pinned, anew).ahead
    for one, other in ((pinned, plain), ahead):
        assert standing(one, other).how == SAME
    aside = the(swept, loader="overlap", workers=8)
    assert said("N images/s against N with N workers, ranges overlap (N x N)") == [
        round(aside["images_per_s"]),
        round(workers[8]["images_per_s"]),
        *(8, 224, 224),
    ]


def test_what_it_says_of_the_notebooks_own_loop_is_of_its_records():
    repeats = pd.read_csv(REFERENCE / "h100_cuda12/tables/notebook/side_by_side.csv")
    records = sorted((REFERENCE / "h100_cuda12/records/notebook").glob("*/*.json"))
    assert len(records) == len(repeats) == 12
    phases = ["load_ms", "transfer_ms", "train_ms", "total_ms"]
    without, with_ = (
        repeats[repeats["pipeline"] == f"{how} pipelining"].set_index("repeat") for how in ("without", "with")
    )
    assert said("load N ms, transfer N, train N, all N (one H100, CUDA 12 stack, n = N") == [
        *(round(with_[phase].median(), 2 if phase == "transfer_ms" else 1) for phase in phases),
        6,
    ]
    assert said("of the same: load N ms, transfer N, train N, all N") == [
        round(without[phase].median(), 1) for phase in phases
    ]

    def speed_up(column: str) -> list[float]:
        found = without[column] / with_[column]
        return [round(number, 2) for number in (found.median(), found.min(), found.max())]

    assert said("Its own images and loop (one H100, CUDA 12 stack, n = 6): N (N to N)") == speed_up(
        "total_ms"
    )
    assert said("it comes to N (N to N) on `notebook`'s cells") == speed_up("own_ms")

    def phase_means(how: str, phase: str) -> tuple[list[float], list[float]]:
        """Of batches 2 to 16: of each run of the notebook's own code, and of each repeat here."""
        lines = (REFERENCE / "h100_cuda12/bench/notebook_own.jsonl").read_text().splitlines()
        own = [json.loads(line)[how][phase][1:16] for line in lines]
        cell = (without if how == "without" else with_)["cell_id"].iloc[0]
        steps = sorted((REFERENCE / "h100_cuda12/records/notebook" / cell).glob("*.steps.parquet"))
        ours = [pd.read_parquet(path)[f"{phase}_ms"][1:16] for path in steps]
        return [sum(run) / 15 for run in own], [run.mean() for run in ours]

    off = []
    for how in ("with", "without"):
        for phase in ("load", "transfer", "train"):
            own, ours = phase_means(how, phase)
            assert len(own) == len(ours) == 6
            off.append(abs(median(ours) / median(own) - 1))
    assert said("differ by N % at most in load, transfer and train") == [round(100 * max(off))]


def hybrid(machine: str = "h200", **axes) -> pd.Series:
    """A cell of hybrid_gpu: the guide's steps on resident images by the plain loop, unless said otherwise."""
    usual = {"loader": "resident", "augment": "fused", "trainer": "plain", "precision": "fp16"}
    usual |= {"batch_size": 512, "cuda_graphs": False, "overrides": STEPS}
    return the(published("hybrid_gpu", machine), **{**usual, **axes})


def test_what_it_says_of_the_hybrid_pipeline_is_of_its_records():
    cells = published("hybrid_gpu")
    assert (set(cells["hardware"]), set(cells["n_repeats"])) == ({"NVIDIA H200"}, {3})
    chain, graphs = hybrid(augment="chain"), hybrid(cuda_graphs=True)
    host = times(chain, hybrid(augment="chain", overrides=f"{STEPS}; augment.exchange=host"))
    assert said("the same chain with DLPack is N times as fast (N to N)") == host
    assert said("N times the trip through the host (N to N)") == host
    fastai = spread(hybrid(trainer="fastai"), "epoch_s", 2)
    own_loader = spread(hybrid(trainer="fastai", loader="fastai"), "epoch_s", 2)
    assert said("fp16: N s (N to N); files read by fastai's own loader in each epoch: N s (N to N)") == [
        *fastai,
        *own_loader,
    ]
    fastest = spread(graphs, "epoch_s", 3)
    assert said("N s an epoch (N to N): one graph a step is worth N times (N to N)") == [
        *fastest,
        *times(graphs, hybrid()),
    ]
    assert said("N s (N to N) under fastai, N s (N to N) by the plain loop") == [*fastai, *fastest]
    batches = {size: hybrid(batch_size=size) for size in (128, 256, 1024)}
    assert said("N images/s with 128, N with 256, N (N to N) with 1,024") == [
        *(round(batches[size]["images_per_s"]) for size in (128, 256)),
        *spread(batches[1024]),
    ]
    precisions = {name: hybrid(cuda_graphs=True, precision=name) for name in ("fp32", "tf32", "fp16", "bf16")}
    gains = {name: times(cell, precisions["fp32"]) for name, cell in precisions.items()}
    assert said("fp16 N times fp32 (N to N), bf16 N, TF32 alone N (batch 512, CUDA graphs)") == [
        *gains["fp16"],
        gains["bf16"][0],
        gains["tf32"][0],
    ]
    assert said("**Holds**: N times fp32 (N to N) |") == gains["fp16"]
    assert said("N times torch's own operations (N to N)") == times(chain, hybrid(augment="torch"))
    assert standing(hybrid(), chain).how == SAME
    workers = {"loader": "dataloader_workers", "precision": "bf16", "overrides": "model.stem=imagenet"}
    moved = times(hybrid(**workers, augment="torch"), hybrid(**workers, augment="cpu"))
    assert said("N times the images/s (N to N; N workers, bf16, crops and flips)") == [*moved, 8]


def test_what_it_says_of_the_kernels_is_of_their_records():
    def kernels(experiment: str) -> pd.DataFrame:
        found = json.loads((REFERENCE / f"h200/kernels/{experiment}.json").read_text())
        assert found["environment"]["gpu"]["name"] == "NVIDIA H200"
        return pd.DataFrame(found["rows"])

    augments = kernels("hybrid_gpu")
    augments = augments[(augments["batch_size"] == 4096) & (augments["size"] == 64)]
    alone = [
        the(augments, work=work, implementation="chain")["share_of_copy"]
        for work in ("contrast", "salt_pepper", "rotation")
    ]
    assert said("each alone runs at N, N and N % of a copy's speed") == [
        round(100 * share) for share in alone
    ]
    passes = [the(augments, work="one_pass", implementation=name)["ms_median"] for name in ("fused", "chain")]
    assert said("alone takes N ms where `chain` takes N") == [round(ms, 3) for ms in passes]

    rows = kernels("accelerated_vit")

    def forward(form: str, columns: int, name: str) -> pd.Series:
        return the(rows, work="bias_gelu_forward", form=form, columns=columns, implementation=name)

    cases = [(form, columns) for form in ("tanh", "erf") for columns in (768, 1536, 3072)]
    for name, sentence in (
        ("eager", "N to N times gelu(x + bias) in bf16"),
        ("compiled", "Against torch.compile N to N times"),
    ):
        ratios = [
            forward(*case, name)["ms_median"] / forward(*case, "extension")["ms_median"] for case in cases
        ]
        assert said(sentence) == [round(end(ratios), 2 - (name == "eager")) for end in (min, max)]
    ours, eager, alone = (forward("tanh", 768, name) for name in ("extension", "eager", "gelu_alone"))
    assert said("runs at N % of the speed of a copy, torch's two operations at N %") == [
        round(100 * case["share_of_copy"]) for case in (ours, eager)
    ]
    assert said("gelu(x + bias) takes N ms, GELU alone N") == [
        round(case["ms_median"], 3) for case in (eager, alone)
    ]


def decoders(host: str) -> pd.DataFrame:
    points, troubles = decoding_tables.read_sweeps(
        sorted((REFERENCE / host / "sweeps/gpu_decoding").glob("*.json"))
    )
    assert troubles.empty
    found = decoding_tables.measured(points)
    assert set(found["n"]) == {3}
    return found[found["batch_size"] == 256]


def records_of(cell: pd.Series) -> list[int]:
    """Images/s of each repeat of a cell of the H100 with the CUDA 12 stack."""
    files = (REFERENCE / "h100_cuda12/records" / cell["experiment"] / cell["cell_id"]).glob("*.json")
    return [round(json.loads(path.read_text())["throughput"]["images_per_s"]) for path in sorted(files)]


def test_what_it_says_of_decoders_is_of_their_records():
    dali = published("gpu_decoding", "h100_cuda12")
    gpu, cpu = (records_of(the(dali, loader=loader, augment="dali")) for loader in ("dali_gpu", "dali_cpu"))
    assert said("`dali_gpu` N and N images/s, `dali_cpu` N and N (") == [*gpu, *cpu]

    def rate(decoder: str, side: int, cores: int = 16) -> pd.Series:
        return the(warm, decoder=decoder, side=side, cores=cores)

    points = decoders("h200")
    warm = points[points["cache"] == "warm"]
    one_core = [rate("opencv", side, cores=1) for side in (64, 256)]
    assert said("N images/s of 64 x 64 (N to N), N of 256 x 256 (N to N), one core") == [
        *spread(one_core[0]),
        *spread(one_core[1]),
    ]
    gpu = {
        name: [rate(name, side) for side in (64, 256)]
        for name in ("dali_gpu", "torchvision_cuda", "nvimgcodec")
    }
    for name, rates in gpu.items():
        assert said(f"`{name}`: N and N images/s") == [round(point["images_per_s"]) for point in rates]
    assert said("N images/s of 256 x 256 by `dali_gpu` (N to N)") == spread(gpu["dali_gpu"][1])
    over = [a["images_per_s"] / b["images_per_s"] for a, b in zip(gpu["dali_gpu"], one_core, strict=True)]
    assert said("N times at 64 x 64, N at 256 x 256 (two machines") == [round(ratio, 1) for ratio in over]
    many = [rate("simplejpeg", side) for side in (64, 256)]
    assert said("`simplejpeg` there decodes N and N images/s") == [
        round(point["images_per_s"]) for point in many
    ]
    strips, _ = decoding_tables.read_sweeps([REFERENCE / "h200/sweeps/gpu_decoding/strips.json"])
    strips = the(strips, side=64, cache="warm", batch_size=20000, cores=16)
    own = json.loads((REFERENCE / "h100/bench/own_jpeg.json").read_text())["images_per_s"]["own"]["20000"]
    assert said("N million images/s of 64 x 64 by strips (N to N)") == [
        round(number / 1e6, 1) for number in spread(strips)
    ]
    assert said("N million by our own kernels on an H100 (N to N, n = N)") == [
        *(round(own[name] / 1e6, 1) for name in ("median", "min", "max")),
        own["n"],
    ]
    h100 = decoders("h100")
    kept = []
    for side in (256, 64):
        both = h100[(h100["decoder"] == "dali_gpu") & (h100["side"] == side) & (h100["cores"] == 16)]
        cold, warm = (the(both, cache=cache)["images_per_s"] for cache in ("cold", "warm"))
        kept.append(round(100 * cold / warm))
    assert said("`dali_gpu` keeps N % of its rate at 256 x 256 and N % at 64 x 64") == kept


def test_what_it_says_of_building_a_set_once_is_of_its_records():
    def build(decoder: str, count: int) -> dict:
        cores = "one" if decoder == "opencv" else "all"
        document = json.loads((REFERENCE / f"h200/builds/tensor_cache/{decoder}-{cores}.json").read_text())
        assert document["cores"] == (1 if decoder == "opencv" else 16)
        (found,) = [one for one in document["builds"] if one["count"] == count]
        return found

    def seconds(decoder: str, count: int) -> float:
        rounds = build(decoder, count)["rounds_s"]
        assert len(rounds) == (2 if count > 20000 else 3)
        return float(f"{median(rounds):.3g}")

    assert said("**Not so slow here**: N s and N s (n = 2)") == [
        seconds("opencv", count) for count in (50000, 200000)
    ]
    assert said("by `dali_gpu` N s, by OpenCV on one core N s, by `simplejpeg` on 16 cores N s") == [
        seconds(decoder, 200000) for decoder in ("dali_gpu", "opencv", "simplejpeg")
    ]
    assert said("N s by `dali_gpu`, N s by OpenCV on one core: setting") == [
        seconds("dali_gpu", 1000),
        round(median(build("opencv", 1000)["rounds_s"]), 2),
    ]
    counts = (1000, 20000, 50000, 200000)
    names = ("dali_gpu", "torchvision_cuda", "nvimgcodec", "strips")
    most = [round(max(build(name, count)["gpu_buffers_mib"] for count in counts)) for name in names]
    points, _ = decoding_tables.read_sweeps([REFERENCE / "h200/sweeps/gpu_decoding/dali_gpu.json"])
    swept = decoding_tables.measured(points)
    assert (swept["side"].min(), swept["side"].max()) == (32, 1024)
    assert said(
        "DALI N MiB at any count of N x N, N to N in the sweep from N to N pixels; `torchvision_cuda` N"
    ) == [
        *(most[0], 64, 64),
        *(round(swept["buffers_mib"].dropna().agg(end)) for end in ("min", "max")),
        *(32, 1024),
        most[1],
    ]
    assert said("`nvimgcodec` N, `strips` up to N") == most[2:]
    assert len({build("dali_gpu", count)["gpu_buffers_mib"] for count in counts}) == 1


def test_what_it_says_of_shares_of_the_limit_is_of_its_records():
    def au(loader: str, workers: int = 0, model: str = "resnet18") -> float:
        cell = {
            "loader": loader,
            "workers": workers,
            "model": model,
            "augment": "torch",
            "batch_size": 256,
        }
        found = [json.loads(path.read_text()) for path in (REFERENCE / "h200/ceilings/feed").glob("*.json")]
        (found,) = [document for document in found if cell.items() <= document["cell"].items()]
        assert found["shares"]["au"]["n"] == 20
        return round(100 * found["shares"]["au"]["median"], 1)

    assert said("`dali_gpu` keeps N % of the limit, 16 workers N %") == [
        au("dali_gpu"),
        au("dataloader_workers", 16),
    ]
    assert said("`torchvision_cuda` (N %) and `nvimgcodec` (N %), file by file") == [
        au("torchvision_cuda"),
        au("nvimgcodec"),
    ]
    assert said("cached: N % of the limit") == [au("resident")]
    assert said("N keep N % of the limit under `vit_tiny` and N % under a ResNet-18 (batch N, N pairs)") == [
        16,
        *(au("dataloader_workers", 16, model) for model in ("vit_tiny", "resnet18")),
        *(256, 20),
    ]


def test_what_it_says_of_the_transformers_is_of_their_records():
    backends = pd.read_csv(REFERENCE / "h200/tables/inference/inference.csv")
    backends = backends[backends["model"] == "vit_lite"]
    graphs = the(backends, backend="compiled_graphs", precision="bf16")
    eager = the(backends, backend="eager", precision="bf16")
    int8 = the(backends, backend="torchao_int8")
    assert said("N ms by `compiled_graphs` in bf16, N ms eager") == [
        round(graphs["latency_device_ms_median"], 3),
        round(eager["latency_device_ms_median"], 2),
    ]
    assert said("N images/s by `torchao_int8`, N in bf16 by `compiled_graphs`") == [
        round(found["images_per_s_1024_median"]) for found in (int8, graphs)
    ]

    cells = published("accelerated_vit")
    cells = cells[cells["trainer"] == "plain"]
    step = cells[cells["batch_size"] == 256]
    forms = [
        the(step[step["overrides"].str.endswith(f"={form}")], compile=False) for form in ("bias_gelu", "gelu")
    ]
    assert said("in an eager training step of `vit_tiny` N times") == times(*forms)[:1]
    half = "model.activation=bias_gelu; model.residual=autocast"
    attention = [
        the(cells[cells["overrides"].str.endswith(end)], compile=True)
        for end in (f"{half}; model.sdpa=packed", half)
    ]
    assert said("makes a compiled step of `vit_tiny` N times as fast (n = N, batch N)") == [
        *times(*attention)[:1],
        2,
        1024,
    ]
    forms = published("accelerated_vit", "h100_cuda12")
    linear, conv = (
        records_of(the(forms[forms["compile"]], overrides=overrides))
        for overrides in sorted(set(forms[forms["compile"]]["overrides"]), key=len)
    )
    assert said("graphs: N and N images/s by it, N and N by the convolution") == [*linear, *conv]
    gpus = published("accelerated_vit", "h100")
    one, two, four = (the(gpus, devices=count, batch_size=512)["images_per_s"] for count in (1, 2, 4))
    assert said("N times on two and N times on four H100s") == [round(two / one, 2), round(four / one, 2)]

    def accuracy(model: str) -> list[float]:
        """By seed, after 160 epochs."""
        paths = sorted((REFERENCE / "h200/records/accuracy").glob(f"*{model}*/*.json"))
        found = [json.loads(path.read_text()) for path in paths]
        return [
            round(100 * one["epochs"][-1]["accuracy"]["top1"], 2)
            for one in found
            if one["cell"]["epochs"] == 160
        ]

    assert said("N %, N % and N % held out on `cifar10_gray_28`") == accuracy("vit_lite")
    three = accuracy("vit_tiny")
    assert said("N to N % on 40 classes, three seeds of 160 epochs") == [min(three), max(three)]
    assert len(three) == 3


def test_it_counts_the_kinds_of_files_as_they_are():
    text = (REPOSITORY / "docs/reference/decoders.md").read_text()
    table = text[text.index("| file |") :].split("\n\n")[0].splitlines()
    assert said("N kinds of files by thirteen decoders") == [len(table) - 2]
    assert table[0].count("`") == 2 * 13
