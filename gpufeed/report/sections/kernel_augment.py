"""The kernels of the augments in the report: sentences, claims, and a table of every batch and image size."""

from collections.abc import Iterable, Mapping

from gpufeed.core.plan_kernels import IMPLEMENTATIONS, WORKS
from gpufeed.report.load_records import finished
from gpufeed.report.sections import kernel_claims

TITLES = {
    "normalise": "normalise",
    "brightness": "brightness",
    "contrast": "contrast",
    "salt_pepper": "salt and pepper",
    "rotation": "rotation",
    "crop_flip": "crop, flip, normalise",
    "one_pass": "crop, flip, brightness, contrast, salt and pepper, normalise",
}
SHOWN = {(work,): TITLES[work] for work in WORKS}
INTRO = (
    "Work of the device on images that lie there, out of its L2 cache: medians over the launches, quartiles "
    "in brackets. A copy of as many bytes in the same process is the measure. Of other libraries only the "
    "least that the work needs is counted (“at least”), so that their share is a lower bound of what they "
    "move and a fair one of what they give. torchvision draws once for a whole batch, the others for each "
    "image. A call is timed without a pause, launching included."
)


def named(row: Mapping) -> str:
    """Return what a row measured, and its sizes, in words."""
    return f"{TITLES[row['work']]} at batch {row['batch_size']} of {row['size']} px"


def shown(found: dict, lines: Iterable[Mapping], prefix: str) -> dict:
    """Return sentences, claims and tables of one benchmark; `lines` of the config hold for no augment."""
    done = finished(found, "work", "implementation", "batch_size", "size")
    settings = found["settings"]
    return {
        "sentences": sentences(done, settings),
        "claims": kernel_claims.augment_claims(done, TITLES),
        "pictures": [],
        "tables": [table(done, settings, n) for n in settings["batch_size"]],
    }


def table(done: dict, settings: dict, n: int) -> dict:
    """Return the table of all works at one batch size, a column an image size."""
    caption = (
        f"Images per second at batch {n}, normalised images in {settings['dtype']}; at most "
        f"{settings['launches']} launches, {settings['flush_mib']} MiB written before each"
    )
    names = {name: name for name in IMPLEMENTATIONS}
    rows = kernel_claims.table_rows(done, SHOWN, names, [(n, size) for size in settings["size"]], cell)
    columns = [f"{size} px" for size in settings["size"]]
    return {"summary": f"Batch {n}", "caption": caption, "columns": columns, "rows": rows}


def sentences(done: dict, settings: dict) -> list[str]:
    """Return what the fused kernel gains, at the largest batch of each size and at the smallest one."""
    said = []
    smallest, largest = min(settings["batch_size"]), max(settings["batch_size"])
    for size in settings["size"]:
        rows = {name: done.get(("one_pass", name, largest, size)) for name in IMPLEMENTATIONS}
        fused, chain = rows["fused"], rows["chain"]
        if not fused:
            continue
        text = (
            f"{size} px, batch {largest}: all in one pass takes {fused['ms_median']:.3g} ms, "
            f"{fused['share_of_copy']:.0%} of the speed of a copy of as many bytes"
        )
        if chain:
            text += (
                f"; the chain of kernels moves {chain['bytes'] / fused['bytes']:.1f} times the bytes and "
                f"takes {chain['ms_median'] / fused['ms_median']:.1f} times as long"
            )
        for name in kernel_claims.LIBRARIES:
            if rows[name]:
                text += f"; {name} {rows[name]['ms_median'] / fused['ms_median']:.1f} times"
        few = [done.get(("one_pass", name, smallest, size)) for name in ("chain", "fused")]
        if chain and all(few):
            text += (
                f". At batch {smallest}, where launching decides, a call of the chain takes "
                f"{few[0]['call_ms'] / few[1]['call_ms']:.1f} times as long as a call of the one kernel"
            )
        said.append(text + ".")
    return said


def cell(row: dict) -> dict:
    """Return one measurement in words, the first the most important."""
    return {
        "first": f"{row['images_per_s']:,.0f}",
        "rest": [
            f"{row['share_of_copy']:.0%} of copy, {row['gb_per_s']:,.0f} GB/s",
            f"{row['ms_median']:.3g} ms ({row['ms_q1']:.3g} to {row['ms_q3']:.3g})",
            f"{row['call_ms']:.3g} ms a call",
        ],
    }
