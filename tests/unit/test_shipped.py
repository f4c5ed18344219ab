"""What the shipped experiments can answer by what they plan, and that the pages name all there is."""

import json
import re
from functools import cache
from itertools import pairwise

import pandas as pd
import pytest
from config_fixtures import merged
from data_fixtures import REPOSITORY

from gpufeed.core.config import planned
from gpufeed.core.plan_kernels import WORKS
from gpufeed.core.registry import AUGMENTS, KINDS, LOADERS
from gpufeed.report import load_records, tables
from gpufeed.report.sections import crossover, decoding_tables
from gpufeed.report.significance import standing
from gpufeed.system.statistics import SAME

CONFIG = merged("config.yaml")
PLAN = planned(CONFIG)
REFERENCE = REPOSITORY / "results/reference"
README = (REPOSITORY / "README.md").read_text()
GUIDE = REPOSITORY / "docs/guide"
RESULTS = (REPOSITORY / "docs/results.md").read_text()


# an experiment about models in use trains them by one pipeline; two side by side have no ceiling
OTHERS = {"inference", "side_by_side"}
ABOUT_PIPELINES = [name for name in PLAN.cells if not OTHERS & CONFIG["experiments"][name].keys()]


@pytest.mark.parametrize("name", ABOUT_PIPELINES)
def test_every_experiment_has_a_ceiling_and_a_pipeline_that_loads_files(name):
    loaders = {cell.loader for cell in PLAN.cells[name].values()}
    assert any(LOADERS[loader].ceiling for loader in loaders)
    assert any(LOADERS[loader].reads == "files" and not LOADERS[loader].ceiling for loader in loaders)


def test_models_in_use_are_of_three_kinds_and_judged_on_images_that_nothing_trains_on():
    found = [PLAN.cells["inference"][cell] for cell in PLAN.cells_for(CONFIG, "inference", "inference")]
    assert {cell.model for cell in found} == {"vit_lite", "vit_tiny", "resnet18"}
    assert all(cell.steps is None for cell in found)


def test_what_decoding_once_gives_can_be_said():
    cells = PLAN.cells["tensor_cache"].values()
    assert {"cache", "files", "strips"} <= {LOADERS[cell.loader].reads for cell in cells}
    assert (
        len({(cell.dataset, cell.augment, cell.model, cell.batch_size, cell.epochs) for cell in cells}) == 1
    )


def test_the_readmes_first_screen_has_the_answer_the_commands_and_a_picture_that_is_there():
    """In a window of 1280 x 800, which the picture alone would fill at its full width."""
    screen = (REPOSITORY / "README.md").read_text().split("\n")[:15]
    found = [
        next(place for place, line in enumerate(screen) if line.startswith(text))
        for text in ("**Which", "make demo", "make test", "<img width=")
    ]
    assert found == sorted(found)
    picture = re.search(r'src="([^"]+)"', screen[found[-1]])[1]
    drawn = (REPOSITORY / picture).read_text()
    for loader in ("host_cache", "resident", "dali_gpu", "ffcv", "dataloader_workers, 16 workers"):
        assert loader in drawn


PLACES = ("*.md", "docs/**/*.md", "config/*.md", "gpufeed/native/*.md", "results/reference/**/*.md")
PAGES = [path for place in PLACES for path in sorted(REPOSITORY.glob(place))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file(page):
    """To anchors, too: `make docs`, whose builder knows nothing of files that are no pages."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)
    paths = [(link or source).partition("#")[0] for link, source in links if ":" not in (link or source)]
    assert [path for path in paths if path and not (page.parent / path).is_file()] == []


@pytest.mark.parametrize("name", [*LOADERS, *AUGMENTS])
def test_the_docs_name_every_pipeline_and_augment(name):
    assert f"`{name}`" in (REPOSITORY / "docs/reference/report.md").read_text()


@pytest.mark.parametrize("name", [name for kind in KINDS.values() for name in kind])
def test_the_configs_readme_names_all_that_is_registered(name):
    assert f"`{name}`" in (REPOSITORY / "config/README.md").read_text()


def test_the_configs_readme_names_what_the_kernel_benchmark_measures():
    text = (REPOSITORY / "config/README.md").read_text()
    told = text[text.index("### `kernels`") : text.index("### `models`")]
    words = {"salt_pepper": "salt and pepper", "crop_flip": "crop and flip", "one_pass": "one pass"}
    for work in WORKS:
        assert words.get(work, work).replace("normalise", "normalisation") in told


@cache
def published(experiment: str, machine: str = "h200") -> pd.DataFrame:
    """The cells of an experiment's records on an H200, or an H100."""
    found = load_records.read_records(sorted((REFERENCE / machine / "records" / experiment).glob("*/*.json")))
    return tables.cells(found)


def the(rows: pd.DataFrame, **axes) -> pd.Series:
    """The one row that has these values."""
    for name, value in axes.items():
        rows = rows[rows[name] == value]
    assert len(rows) == 1
    return rows.iloc[0]


def claimed(pattern: str) -> list[float]:
    """The numbers at each N, in the one sentence of the results that matches."""
    found = re.findall(re.sub(r"\bN\b", r"([\\d.,]*\\d)", pattern), " ".join(RESULTS.split()))
    assert len(found) == 1, pattern
    numbers = [found[0]] if isinstance(found[0], str) else found[0]
    return [float(number.replace(",", "")) for number in numbers]


FED = {"resident": 0, "resident_jpeg": 0, "ffcv": 16, "strips": 0, "dali_cpu": 0, "dataloader_workers": 16}


def shares_in_percent(row: pd.Series) -> list[int]:
    """The median share of the ceiling, and the widest range that both ranges allow."""
    ends = (
        row["images_per_s_min"] / row["ceiling_images_per_s_max"],
        row["images_per_s_max"] / row["ceiling_images_per_s_min"],
    )
    return [round(100 * share) for share in (row["ceiling_share"], *ends)]


SHARE = r"(\d+) % \((\d+) to (\d+)\)"
TOLD = re.compile(rf"^\|[^|]*\| `(\w+)`[^|]*\| {SHARE} \|(?: {SHARE}( \*)?)? \| (H\d00) \|$", re.MULTILINE)


def of_the_limit(cells: pd.DataFrame, loader: str, cores: int, engines: float | None = None) -> list[int]:
    """Shares in percent; a limit that was measured with 16 cores alone is that with two as well."""
    limits = cells[cells["loader"] == "replay"]
    limit = the(limits, cores_asked=cores if cores in set(limits["cores_asked"]) else 16)
    load = cells["hw_decoder_load"]
    row = the(cells[load.isna() if engines is None else load == engines], loader=loader, cores_asked=cores)
    assert (row["dataset"], row["recipe"], row["batch_size"]) == ("imagenet_800", "random_resized_crop", 256)
    assert (row["precision"], row["compile"], row["n_repeats"]) == ("bf16", True, 3)
    ceiling = {f"ceiling_{key}": limit[key] for key in limit.index if key.startswith("images_per_s")}
    share = row["images_per_s"] / limit["images_per_s"]
    return shares_in_percent(pd.Series({**row, **ceiling, "ceiling_share": share}))


@pytest.mark.parametrize(
    ("page", "rows"),
    [(README, 6), ((GUIDE / "dali.md").read_text(), 7), ((GUIDE / "memory.md").read_text(), 7)],
)
def test_tables_of_shares_of_the_limit_are_of_their_records(page, rows):
    found = TOLD.findall(page)
    assert len(found) == rows
    for loader, *shares, star, card in found:
        cells = published("photographs", card.lower())
        cells = cells[(cells["model"] == "resnet18") & cells["cuda_graphs"]]
        assert list(map(int, shares[:3])) == of_the_limit(cells, loader, 16)
        if shares[3]:
            assert list(map(int, shares[3:])) == of_the_limit(cells, loader, 2)
            own_limit = 2 in set(cells.loc[cells["loader"] == "replay", "cores_asked"])
            assert own_limit == (not star)


@pytest.mark.parametrize("page", [README, RESULTS])
def test_what_is_said_of_a_resnet_50_is_of_its_records(page):
    cells = published("photographs")
    cells = cells[(cells["model"] == "resnet50") & cells["cuda_graphs"]]
    (found,) = re.findall(
        rf"a ResNet-50 keeps {SHARE} with `cuda_jpeg` and {SHARE} with `dali_gpu_reader` on the H200",
        " ".join(page.split()),
    )
    shares = [of_the_limit(cells, name, 16) for name in ("cuda_jpeg", "dali_gpu_reader")]
    assert list(map(int, found)) == [*shares[0], *shares[1]]


def test_what_the_page_on_dali_says_beside_its_table_is_of_the_records():
    text = " ".join((GUIDE / "dali.md").read_text().split())
    (found,) = re.findall(
        rf"under a ResNet-50, `dali_gpu_reader` keeps {SHARE} on the H200 with 16 cores", text
    )
    cells = published("photographs").query("model == 'resnet50' and cuda_graphs")
    assert list(map(int, found)) == of_the_limit(cells, "dali_gpu_reader", 16)
    (found,) = re.findall(rf"Without them `dali_gpu` keeps {SHARE} on that H100", text)
    cells = published("photographs", "h100").query("model == 'resnet18' and cuda_graphs")
    assert list(map(int, found)) == of_the_limit(cells, "dali_gpu", 16, engines=0)


def test_what_is_said_of_small_images_is_of_its_records():
    cells = published("peers")
    rows = {name: the(cells, loader=name, workers=count, cuda_graphs=True) for name, count in FED.items()}
    for row in rows.values():
        assert (row["hardware"], row["cores"], row["batch_size"]) == ("NVIDIA H200", 16, 256)
        assert (row["model"], row["dataset"], row["n_repeats"]) == ("resnet18", "tiny_imagenet_40", 2)
        assert len(row["repeats"]) == 2
    said = claimed(
        r"On one H200 with N cores, a ResNet-18 on N JPEGs of N x N in the page cache "
        r"\(batch N, CUDA graphs, n = N\) keeps N % of the limit with the images on the GPU, decoded or "
        r"as JPEGs, N % with FFCV, N % with strips of JPEGs, and N % \(N to N\) with N DataLoader workers"
    )
    shares = {name: round(100 * row["ceiling_share"]) for name, row in rows.items()}
    assert shares["resident"] == shares["resident_jpeg"]
    assert said == [
        *(16, 20000, 64, 64, 256, 2),
        *(shares[name] for name in ("resident", "ffcv", "strips")),
        *shares_in_percent(rows["dataloader_workers"]),
        16,
    ]
    neighbours = list(rows.values())[:5]
    assert all(standing(one, next_one).how == SAME for one, next_one in pairwise(neighbours))


def test_what_is_said_of_the_first_batch_of_an_epoch_is_of_its_records():
    folder = (
        REFERENCE
        / "h200/records/peers"
        / the(published("peers"), loader="dataloader_workers", workers=16, cuda_graphs=True)["cell_id"]
    )
    shares, lengths = [], set()
    for path in sorted(folder.glob("*.json")):
        record, steps = json.loads(path.read_text()), pd.read_parquet(path.with_suffix(".steps.parquet"))
        assert record["telemetry"]["host"]["page_cache_share"] == 1
        assert record["epochs"][0]["images"] == 20000
        first = steps["step"] == steps.groupby("epoch")["step"].transform("min")
        lengths.add(steps.groupby("epoch").size().max())
        timed = steps["step"] >= record["warmup"]["steps"]
        shares.append(100 * steps[timed & first]["total_ms"].sum() / steps[timed]["total_ms"].sum())
    said = claimed(r"With N workers the first of an epoch's N batches takes N to N % of the time")
    assert said == [16, *lengths, round(min(shares)), round(max(shares))]


def test_what_is_said_of_decoders_is_of_its_records():
    best = {}
    for host in ("h200", "h100"):
        points, troubles = decoding_tables.read_sweeps(
            sorted((REFERENCE / host / "sweeps/gpu_decoding").glob("*.json"))
        )
        assert troubles.empty
        found = crossover.sizes(points)
        pays = {cores: [size.side for size in found if size.gpu.beats(size.cpu[cores])] for cores in (8, 16)}
        sides = [size.side for size in found]
        said = claimed(
            r"sizes from N to N pixels a side, each twice the one before, the fastest of N libraries on the "
            r"GPU is ahead of 8 cores from N on and of 16 cores from N on, there and on an H100"
        )
        gpu = decoding_tables.measured(points).query("kind == 'gpu'")["decoder"].nunique()
        assert said[:3] == [sides[0], sides[-1], gpu]
        assert all(larger == 2 * side for side, larger in pairwise(sides))
        for cores, first in zip((8, 16), said[3:], strict=True):
            assert pays[cores] == sides[sides.index(first) :]
        for size in found:
            assert size.strips.beats(size.cpu[16])
            assert size.strips.beats(size.strips_cpu[16])
        # the highest of all batches
        at_64 = decoding_tables.measured(points)
        at_64 = at_64[(at_64["side"] == 64) & (at_64["cache"] == "warm") & (at_64["cores"] == 16)]
        best[host] = at_64.groupby("kind")["images_per_s"].max()
    said = claimed(
        r"at 64 x 64 N million images a second on the H200 and N on the H100, where 16 cores reach N and N "
        r"file by file, and the best GPU decoder N and N\."
    )
    pairs = [(round(best[host]["strips"] / 1e6, 1)) for host in best]
    for kind in ("cpu", "gpu"):
        pairs += [round(best[host][kind], -3) for host in best]
    assert said == pairs
    own = json.loads((REFERENCE / "h100/bench/own_jpeg.json").read_text())["images_per_s"]["own"]["20000"]
    said = claimed(r"Our own CUDA kernels decode N million \(N to N, n = N\) on an H100, all 20,000 files")
    assert said == [*(round(own[name] / 1e6, 1) for name in ("median", "min", "max")), own["n"]]


def test_what_is_said_of_cuda_graphs_is_of_its_records():
    axes = {
        "loader": "resident",
        "augment": "fused",
        "trainer": "plain",
        "precision": "fp16",
        "batch_size": 512,
    }
    eager, graphs = (the(published("hybrid_gpu"), **axes, cuda_graphs=graphs) for graphs in (False, True))
    found = standing(graphs, eager)
    assert found.ahead
    said = claimed(r"one CUDA graph a step is worth N times \(N to N, batch N, fp16\)")
    assert said == [*(round(number, 1) for number in (found.ratio.median, *found.bounds)), 512]
    assert claimed(r"An epoch takes N s") == [round(graphs["epoch_s"], 1)]


def test_what_is_said_of_shares_of_the_limit_is_of_its_records():
    def au(loader: str, workers: int = 0, augment: str = "torch", batch_size: int = 256) -> dict:
        cell = {"loader": loader, "workers": workers, "augment": augment, "batch_size": batch_size}
        cell |= {"model": "resnet18", "cuda_graphs": True}
        found = [json.loads(path.read_text()) for path in (REFERENCE / "h200/ceilings/feed").glob("*.json")]
        (found,) = [document for document in found if cell.items() <= document["cell"].items()]
        return found

    files = [au("torchvision_cuda"), au("nvimgcodec"), au("dataloader_workers", workers=16)]
    said = claimed(
        r"N % of the limit with `torchvision_cuda` and N % with `nvimgcodec`, N % with N workers \(N pairs"
    )
    shares = [document["shares"]["au"] for document in files]
    assert said == [*(round(100 * share["median"]) for share in shares), 16, shares[0]["n"]]
    assert max(share["ci95_high"] for share in shares[:2]) < shares[2]["ci95_low"]

    fused = au("resident", augment="fused", batch_size=512)
    said = claimed(
        r"in batches of N a ResNet-18 fed so keeps N % of its compute-only rate "
        r"\(N of N images a second, N pairs"
    )
    rates = [round(fused["images_per_s"][name]["median"]) for name in ("end_to_end", "compute_only")]
    assert said == [512, round(100 * fused["shares"]["au"]["median"], 1), *rates, fused["shares"]["au"]["n"]]


def test_the_table_of_workers_is_of_its_records():
    text = (GUIDE / "workers.md").read_text()
    counts, rates, waits = (
        [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line)]
        for start in ("workers", "images/s", "the GPU waits")
        for line in text.splitlines()
        if re.match(rf"\| {start} \| *\d", line)
    )
    cells = published("pipelining")
    cells = cells[(cells["prefetch_factor"].isna() | (cells["prefetch_factor"] == 2)) & cells["pin_memory"]]
    rows = [
        the(cells[cells["ceiling_share"].notna()], loader="dataloader_sync")
        if count == 0
        else the(
            cells[cells["ceiling_share"].notna()],
            loader="dataloader_workers",
            workers=count,
            persistent_workers=True,
        )
        for count in counts
    ]
    assert counts == [0, 1, 2, 4, 8, 16]
    assert rates == [round(row["images_per_s"]) for row in rows]
    assert waits == [round(100 * row["wait_share"]) for row in rows]
