"""What the kernels of the MLP's activation are held to: the `lines` of the config, judged on one benchmark.

As in `kernel_claims`: medians with the range that the quartiles of the launches allow.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpufeed.report.sections.kernel_claims import Claim, Measured, judged

WORKS = {
    "bias_gelu_forward": "bias and GELU, forward",
    "bias_gelu_backward": "bias and GELU, backward with the bias's gradient",
    "linear_gelu": "linear and GELU, forward",
    "mlp": "MLP block (linear, bias, GELU, linear), forward and backward",
}
WHO = {
    "extension": "extension",
    "epilogue": "cuBLASLt epilogue",
    "compiled": "torch.compile",
    "eager": "eager",
    "gelu_alone": "F.gelu without bias",
}

Rows = Mapping[tuple[str, str, str, int], Mapping]  # done rows by (work, form, implementation, columns)


def claims(done: Rows, lines: Iterable[Mapping], columns: Sequence[int]) -> list[Claim]:
    """A claim a line and width; a line of several numbers gives one for each."""
    found = []
    for line in lines:
        for width in columns:
            found += claims_at(done, line, width)
    return found


def claims_at(done: Rows, line: Mapping, width: int) -> list[Claim]:
    """The claims of one line at one width."""
    work, form, who = line["work"], line["form"], line.get("implementation", "extension")
    row, found = done.get((work, form, who, width)), []
    name = f"{WHO[who]}, {WORKS[work]}, {form}, {width} columns"
    if "share" in line:
        share = row and Measured(*(row["copy_ms"] / row[f"ms_{end}"] for end in ("median", "q3", "q1")))
        yardstick = row["yardstick"] if row else "copy or triad"
        said = f"at least {line['share']:.0%} of {yardstick}"
        found.append(judged(name, said, share, line["share"], float("inf"), "{:.0%}".format))
    for other, times in line.get("times", {}).items():
        lead = faster(row, done.get((work, form, other, width)))
        said = f"at least {times:g} times as fast as {WHO[other]}"
        found.append(judged(name, said, lead, times, float("inf"), "{:.2f} times".format))
    return found


def faster(row: Mapping | None, other: Mapping | None) -> Measured | None:
    """How many times as long as a row another takes; None if one of them has no time."""
    if not row or not other:
        return None
    return Measured(
        other["ms_median"] / row["ms_median"],
        other["ms_q1"] / row["ms_q3"],
        other["ms_q3"] / row["ms_q1"],
    )
