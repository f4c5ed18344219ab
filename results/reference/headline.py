"""Every number with which README, results and two guides compare: where it stands, and what gives it.

A claim is a text of a page with N at each number (page_numbers.py). `publish.py` writes the numbers into the
pages, and all of them with n, range, card, commit and records into headline.json; a test compares both with
the records.
"""

import json
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
from page_numbers import Claim, Number
from published import PHOTOGRAPHS, Published, in_percent, same, the, times_as_fast

from gpufeed.report.sections import crossover, decoding_tables
from gpufeed.report.significance import standing
from gpufeed.system.statistics import MATTERS, SAME

ROOT = Path(__file__).resolve().parents[2]
README, RESULTS = "README.md", "docs/results.md"
DALI, MEMORY = "docs/guide/dali.md", "docs/guide/memory.md"
SHARE, TIMES = "N % (N to N)", "N to N times"
OURS = {"resident", "host_cache", "replay", "cuda_jpeg"}  # each of the others decodes in every epoch

ROWS = {  # page -> the loaders of its table of shares, and where n of its columns is
    README: (
        "resident host_cache cuda_jpeg dali_gpu_reader dali_gpu torchvision_cuda ffcv dataloader_workers",
        "medians and ranges with CUDA 13, n = N with 16 cores and n = N with 2 cores.",
    ),
    DALI: (
        "cuda_jpeg dali_gpu_reader dali_gpu torchvision_cuda ffcv dali_cpu dataloader_workers",
        "medians and ranges, n = N with 16 cores and n = N with 2 cores:",
    ),
    MEMORY: (
        "cuda_jpeg dali_gpu_reader torchvision_cuda ffcv dataloader_workers webdataset_resampled",
        "compiled, CUDA graphs, one H200, n = N with 16 cores and n = N with 2 cores.",
    ),
}


def shares_by_loader(of: Published) -> Iterable[Claim]:
    found = of.photographs("resnet18", "H200")
    measured = set(zip(found["loader"], found["cores_asked"], strict=True))
    for page, (loaders, caption) in ROWS.items():
        repeats = {16: set(), 2: set()}
        for loader in loaders.split():
            columns, numbers = "", []
            for cores, counted in repeats.items():
                if (loader, cores) in measured:
                    numbers.append(of.share("H200", loader, cores))
                    counted.add(numbers[-1].n)
                    columns += f" {SHARE} |"
                else:
                    columns += " |"
            shown = [n for number in numbers for n in number.shown]
            yield Claim(page, f"| `{loader}`... |{columns}", shown, numbers)
        each = [same(f"n of the rows of {page}", counted) for counted in repeats.values()]
        yield Claim(page, caption, each)


def photographs(of: Published) -> Iterable[Claim]:
    pair = [of.share("H200", loader, 16, "resnet50") for loader in ("cuda_jpeg", "dali_gpu_reader")]
    said = (
        f"under a ResNet-50 `cuda_jpeg` reaches {SHARE} of the limit and `dali_gpu_reader` {SHARE} on the "
        "H200 with N cores (n = N,"
    )
    for page in (README, RESULTS):
        yield Claim(page, said, [n for number in pair for n in number.shown] + [16, pair[0].n], pair)
    said = f"under a ResNet-50, `dali_gpu_reader` reaches {SHARE} on the H200 with N cores (n = N,"
    yield Claim(DALI, said, [*pair[1].shown, 16, pair[1].n], pair[1:])
    pair = [of.share("H100", "dali_gpu", 16, engines=0), of.share("H100", "torchvision_cuda", 16)]
    yield Claim(
        DALI,
        f"With them off, `dali_gpu` reaches {SHARE} on one H100 with N cores (n = N), a range that overlaps "
        f"that of `torchvision_cuda` there, {SHARE}",
        [*pair[0].shown, 16, same("n without engines", (number.n for number in pair)), *pair[1].shown],
        pair,
    )
    found = of.photographs("resnet18", "H200")
    bars = found.query("cores_asked == 16 and hw_decoder_load.isna()")
    repeats = int(same("n of the figure of photographs", bars["n_repeats"]))
    for page in (README, RESULTS):
        said = "batch N, bf16, compiled, CUDA graphs, one H200 with N cores at a time, n = N."
        yield Claim(page, said, [PHOTOGRAPHS["batch_size"], 16, repeats])
    fastest = bars[~bars["loader"].isin(OURS)].sort_values("images_per_s")["loader"].iloc[-1]
    named = ["host_cache", "cuda_jpeg", fastest, "dataloader_workers"]
    caption = [of.share("H200", loader, 16) for loader in named]
    _, own, best, _ = caption
    yield Claim(
        RESULTS,
        f"`cuda_jpeg` reaches {SHARE}, and the best of the others that decode in every epoch {SHARE}** "
        "(n = N, H200, N cores)",
        [*own.shown, *best.shown, min(own.n, best.n), 16],
        [own, best],
    )
    yield Claim(
        README,
        f"host_cache N % of the limit, cuda_jpeg N %, {fastest} N %, 16 DataLoader workers N %",
        [number.value for number in caption],
        caption,
    )
    few = [of.share("H200", one, 2) for one in ("cuda_jpeg", "dali_gpu", "ffcv", "dataloader_workers")]
    yield Claim(
        RESULTS,
        f"with N cores `cuda_jpeg` reaches {SHARE}, `dali_gpu` {SHARE}, `ffcv` {SHARE} and a DataLoader "
        f"with N workers {SHARE} of the limit (n = N)",
        [
            2,
            *(n for number in few[:3] for n in number.shown),
            *(2, *few[3].shown, same("n of 2 cores", (number.n for number in few))),
        ],
        few,
    )
    limits = [the(found, loader="replay", cores_asked=cores) for cores in (2, 16)]
    two, whole = (
        of.number(
            f"limit of a ResNet-18 with {cell['cores_asked']} cores, images/s",
            [round(cell["images_per_s" + end]) for end in ("", "_min", "_max")],
            cell,
        )
        for cell in limits
    )
    apart = round(100 * abs(limits[1]["images_per_s"] / limits[0]["images_per_s"] - 1), 1)
    said = "the limits with 2 and 16 cores differ by N % (N and N images/s)"
    yield Claim(DALI, said, [apart, two.value, whole.value], [two, whole])


def photographs_in_pairs(of: Published) -> Iterable[Claim]:
    found = of.photographs("resnet18", "H200").query("cores_asked == 16 and hw_decoder_load.isna()")
    others = found[~found["loader"].isin(OURS)].sort_values("images_per_s", ascending=False)
    if others["loader"].iloc[0] != "dali_gpu_reader":
        raise ValueError("the best of them is not DALI's own reader: change the sentences")
    ahead = [times_as_fast(of, the(found, loader="cuda_jpeg"), other) for _, other in others.iterrows()]
    reader, engines = (
        times_as_fast(of, the(found, loader=loader), the(found, loader="dataloader_workers"))
        for loader in ("dali_gpu_reader", "dali_gpu")
    )
    if standing(*(the(found, loader=loader) for loader in ("dali_gpu_reader", "dali_gpu"))).how != SAME:
        raise ValueError("pairs distinguish the two loaders of DALI: change the sentence")
    pairs = same("n of pairs", (one.n for one in (*ahead, reader, engines)))
    yield Claim(
        RESULTS,
        f"`cuda_jpeg` is faster than each of the N others that decode in every epoch, and {TIMES} as fast as "
        "the best of them, `dali_gpu_reader` (N % interval; N pairs in each of the N comparisons",
        [len(ahead), *ahead[0].shown[1:], 95, pairs, len(ahead)],
        ahead,
    )
    yield Claim(
        README,
        f"`cuda_jpeg` is {TIMES} as fast as `dali_gpu_reader`, which is {TIMES} as fast as N workers** "
        "(N % intervals of [N pairs]",
        [*ahead[0].shown[1:], *reader.shown[1:], 16, 95, pairs],
        [ahead[0], reader],
    )
    yield Claim(
        DALI,
        f"`dali_gpu` is {TIMES} as fast as N DataLoader workers, and `dali_gpu_reader` {TIMES}** "
        "(N % intervals of [N pairs]",
        [*engines.shown[1:], 16, *reader.shown[1:], 95, pairs],
        [engines, reader],
    )


SMALL = {  # what the texts name -> its cell of `peers`
    "resident": {"loader": "resident"},
    "resident_jpeg": {"loader": "resident_jpeg"},
    "dali_cpu": {"loader": "dali_cpu"},
    "cuda_jpeg": {"loader": "cuda_jpeg"},
    "ffcv": {"loader": "ffcv", "workers": 16},
    "dali_gpu": {"loader": "dali_gpu"},
    "simplejpeg": {"loader": "dataloader_workers", "workers": 16, "decoder": "simplejpeg"},
    "pillow": {"loader": "dataloader_workers", "workers": 16, "decoder": "pillow"},
}
WORKERS = ("simplejpeg", "pillow")  # by which the workers decode
LEVEL = {"dali_cpu", "dali_cpu_reader", "cuda_jpeg", "ffcv"}  # neighbours that are about equally fast


def small_images(of: Published) -> Iterable[Claim]:
    cells = of.cells("peers", "h200")
    limit = the(cells, loader="replay", cuda_graphs=True)
    rows = {name: the(cells, cuda_graphs=True, **axes) for name, axes in SMALL.items()}
    found = {
        name: of.number(
            f"share of the limit, resnet18 at 64 pixels, {name}, in percent",
            in_percent(cell, limit),
            cell,
            limit,
        )
        for name, cell in rows.items()
    }
    yield Claim(
        RESULTS,
        f"(batch N, bf16, CUDA graphs, n = N) reaches {SHARE} of the limit with decoded images on the GPU, "
        f"{SHARE} with the JPEGs on it, {SHARE} with `dali_cpu`, {SHARE} with `cuda_jpeg`, {SHARE} with "
        f"FFCV (16 threads), {SHARE} with `dali_gpu`, and with N DataLoader workers {SHARE} where they "
        f"decode with simplejpeg and {SHARE} with Pillow",
        [
            *(256, same("n of small images", (number.n for number in found.values()))),
            *(n for name, number in found.items() if name not in WORKERS for n in number.shown),
            16,
            *(n for name in WORKERS for n in found[name].shown),
        ],
        list(found.values()),
    )
    named = [found[name] for name in ("resident", "dali_cpu", "cuda_jpeg", *WORKERS)]
    *alone, fast, slow = (number.shown for number in named)
    yield Claim(
        README,
        f"JPEGs of 64 x 64 `resident` reaches {SHARE}, `dali_cpu` {SHARE}, `cuda_jpeg` {SHARE}, and N "
        f"workers {SHARE} with simplejpeg, {SHARE} with Pillow (ResNet-18, batch N, bf16, not compiled, "
        "H200 with N cores, n = N)",
        [*(n for shown in alone for n in shown), 16, *fast, *slow, 256, 16, named[0].n],
        named,
    )
    by_dali = [found["dali_cpu"], found["dali_gpu"]]
    yield Claim(
        DALI,
        f"at 64 x 64, `dali_cpu` reaches {SHARE} of the limit and `dali_gpu` {SHARE} "
        "(ResNet-18, batch N, bf16, one H200 with N cores, n = N;",
        [*(n for number in by_dali for n in number.shown), 256, 16, by_dali[0].n],
        by_dali,
    )
    fastest = cells[cells["cuda_graphs"]].sort_values("images_per_s", ascending=False)
    level = fastest.index[fastest["loader"].isin(LEVEL)]
    between = fastest.loc[level[0] : level[-1]]
    first, last = between["loader"].iloc[[0, -1]]
    if set(between["loader"]) != LEVEL:
        raise ValueError(f"others lie between {first} and {last}: change the sentence")
    neighbours = [standing(*rows) for rows in pairwise(row for _, row in between.iterrows())]
    if any(max(of_two.bounds[1], 1 / of_two.bounds[0]) >= MATTERS for of_two in neighbours):
        raise ValueError(f"neighbours from {first} to {last} differ by more: change the sentence")
    yield Claim(
        RESULTS,
        f"From `{first}` to `{last}` neighbouring rates differ by less than N % (N % intervals of N pairs)",
        [round(100 * (MATTERS - 1)), 95, same("n of pairs", (of_two.ratio.n for of_two in neighbours))],
    )
    waits = first_batch(of, rows["pillow"])
    yield Claim(
        RESULTS,
        "With N workers and Pillow the first of an epoch's N batches takes N to N % of the time",
        [16, math.ceil(20000 / 256), waits.low, waits.high],
        [waits],
    )


def first_batch(of: Published, cell: pd.Series) -> Number:
    """Return the share of the time that the first batch of each epoch takes, in percent."""
    shares = []
    for path in of.paths(cell):
        record, steps = json.loads(path.read_text()), pd.read_parquet(path.with_suffix(".steps.parquet"))
        first = steps["step"] == steps.groupby("epoch")["step"].transform("min")
        timed = steps["step"] >= record["warmup"]["steps"]
        shares.append(100 * steps[timed & first]["total_ms"].sum() / steps[timed]["total_ms"].sum())
    middle = round(pd.Series(shares).median())
    values = (middle, round(min(shares)), round(max(shares)))
    return of.number("time of the first batch of an epoch, workers with Pillow, in percent", values, cell)


def decoders(of: Published) -> Iterable[Claim]:
    numbers, said = {}, {}
    for card, node in {"H200": "h200", "H100": "h100"}.items():
        paths = sorted((of.folder / node / "sweeps/gpu_decoding").glob("*.json"))
        points, troubles = decoding_tables.read_sweeps(paths)
        if not troubles.empty:
            raise ValueError(f"not every decoder was measured on the {card}: {troubles.to_dict('records')}")
        found = crossover.sizes(points)
        sides = [int(size.side) for size in found]
        if any(larger != 2 * side for side, larger in pairwise(sides)):
            raise ValueError(f"found sizes {sides}, not each twice the one before: change the sentence")
        pays = [
            min(
                int(size.side)
                for size in found
                if all(s.gpu.beats(s.cpu[cores]) for s in found if s.side >= size.side)
            )
            for cores in (8, 16)
        ]
        libraries = decoding_tables.measured(points).query("kind == 'gpu'")["decoder"].nunique()
        passes = int(same("number of passes", decoding_tables.measured(points)["n"]))
        said[card] = [sides[0], sides[-1], libraries, *pays, passes]
        if not all(
            size.strips.beats(size.cpu[16]) and size.strips.beats(size.strips_cpu[16]) for size in found
        ):
            raise ValueError(f"strips are not the fastest at every size on the {card}: change the sentence")
        at_64 = decoding_tables.measured(points)
        at_64 = at_64[(at_64["side"] == 64) & (at_64["cache"] == "warm") & (at_64["cores"] == 16)]
        for kind, rows in at_64.groupby("kind"):
            best = rows.loc[rows["images_per_s"].idxmax()]
            path = next(path for path in paths if path.stem == best["decoder"])
            ends = [float(best["images_per_s" + end]) for end in ("", "_min", "_max")]
            numbers[card, kind] = of.number(
                f"decoder alone at 64 x 64, {best['decoder']}, images/s", ends, path, n=int(best["n"])
            )
    if said["H200"] != said["H100"]:
        raise ValueError(f"what decoding on the GPU is worth differs by card, {said}: change the sentence")
    first, last, libraries, *pays, passes = said["H200"]
    yield Claim(RESULTS, "n = N passes, whose ranges are compared", [passes])
    yield Claim(DALI, "(H200 and H100, n = N passes;", [passes])
    yield Claim(
        RESULTS,
        "sizes from N to N pixels a side (powers of two), the fastest of N libraries on the GPU "
        "is ahead of 8 cores from N on and of 16 cores from N on",
        [first, last, libraries, *pays],
    )
    yield Claim(
        DALI,
        "sizes from N to N pixels a side, the fastest library on the GPU is ahead of 8 cores from N on, "
        "and of 16 cores from N on",
        [first, last, *pays],
    )
    order = [(card, kind) for kind in ("strips", "cpu", "gpu") for card in NODES_IN_TEXT]
    shown = [
        round(numbers[key].value / 1e6, 1) if key[1] == "strips" else round(numbers[key].value, -3)
        for key in order
    ]
    yield Claim(
        RESULTS,
        "at 64 x 64 N million images a second on the H200 and N on the H100, where 16 cores reach N and N "
        "file by file, and the best GPU decoder N and N.",
        [int(n) if n >= 1000 else n for n in shown],
        [numbers[key] for key in order],
    )
    path = of.folder / "h100/bench/own_jpeg.json"
    bench = json.loads(path.read_text())
    own = bench["images_per_s"]["own"]["20000"]
    ends = [round(own[name] / 1e6, 1) for name in ("median", "min", "max")]
    yield Claim(
        RESULTS,
        "Our own CUDA kernels decode N million (N to N, n = N) on an H100",
        [*ends, own["n"]],
        [
            of.number(
                "our JPEG kernels alone, all 20,000 files of 64 x 64, million images/s",
                ends,
                path,
                n=own["n"],
            )
        ],
    )


NODES_IN_TEXT = ("H200", "H100")


def graphs(of: Published) -> Iterable[Claim]:
    axes = {
        "loader": "resident",
        "augment": "fused",
        "trainer": "plain",
        "precision": "fp16",
        "batch_size": 512,
    }
    eager, captured = (the(of.cells("hybrid_gpu", "h200"), **axes, cuda_graphs=on) for on in (False, True))
    found = standing(captured, eager)
    if not found.ahead:
        raise ValueError("CUDA graphs are not shown to be faster: change the sentence")
    ends = [round(number, 1) for number in (found.ratio.median, *found.bounds)]
    worth = of.number(
        "images/s with CUDA graphs over eager, resnet18, fp16, batch 512", ends, captured, eager
    )
    yield Claim(
        RESULTS, "as one CUDA graph makes it N times as fast (N to N, batch N, fp16", [*ends, 512], [worth]
    )
    yield Claim(RESULTS, "(H200s of two machines, n = N).", [worth.n])
    epoch = [round(captured["epoch_s" + end], 1) for end in ("", "_min", "_max")]
    number = of.number("seconds an epoch of CIFAR-10 with CUDA graphs, resnet18, fp16", epoch, captured)
    yield Claim(RESULTS, "An epoch then takes N s", [number.value], [number])


def limits(of: Published) -> Iterable[Claim]:
    usual = {"workers": 0, "augment": "torch", "batch_size": 256, "model": "resnet18", "cuda_graphs": True}

    def au(loader: str, digits: int = 0, **axes: Any) -> Number:
        path, document = of.ceilings(**{**usual, "loader": loader, **axes})
        share = document["shares"]["au"]
        ends = [round(100 * share[key], digits or None) for key in ("median", "ci95_low", "ci95_high")]
        return of.number(
            f"AU, {loader}, in percent; the range is its 95 % interval", ends, path, n=share["n"]
        )

    slow, slower, workers = au("torchvision_cuda"), au("nvimgcodec"), au("dataloader_workers", workers=16)
    if max(slow.high, slower.high) >= workers.low:
        raise ValueError("decoding file by file on the GPU is not shown to be slower: change the sentence")
    yield Claim(
        RESULTS,
        f"{SHARE} of the limit with `torchvision_cuda` and {SHARE} with `nvimgcodec`, beside {SHARE} with "
        "N workers (N % intervals of N pairs of epochs each, N cores",
        [*slow.shown, *slower.shown, *workers.shown, 16, 95, slow.n, 16],
        [slow, slower, workers],
    )
    fused = au("resident", 1, augment="fused", batch_size=512)
    path, document = of.ceilings(**{**usual, "loader": "resident", "augment": "fused", "batch_size": 512})
    rates = [
        of.number(
            f"{name}, resident, fused, batch 512, images/s",
            [round(document["images_per_s"][name][key]) for key in ("median", "min", "max")],
            path,
            n=fused.n,
        )
        for name in ("end_to_end", "compute_only")
    ]
    yield Claim(
        RESULTS,
        f"in batches of N a ResNet-18 fed this way reaches {SHARE} of the limit "
        "(N of N images a second; N % interval of N pairs",
        [512, *fused.shown, *(rate.value for rate in rates), 95, fused.n],
        [fused, *rates],
    )


GROUPS: list[Callable[[Published], Iterable[Claim]]] = [
    shares_by_loader,
    photographs,
    photographs_in_pairs,
    small_images,
    decoders,
    graphs,
    limits,
]


def claimed(folder: Path) -> list[Claim]:
    """Return all claims, from the published documents. folder: results/reference, unpacked."""
    of = Published(folder)
    return [claim for group in GROUPS for claim in group(of)]
