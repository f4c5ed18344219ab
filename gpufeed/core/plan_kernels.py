"""What the kernel benchmark measures, from the config. Used while planning.

A benchmark has one family of works. AUGMENT has the augments' kernels on batches of images. ACTIVATION has
the activation of a vision transformer's MLP on a matrix of rows x columns.
"""

from collections.abc import Mapping

from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import GpufeedError

AUGMENT, ACTIVATION = "augment", "activation"

STEPS = ("brightness", "contrast", "salt_pepper", "rotation")
WORKS = ("normalise", *STEPS, "crop_flip", "one_pass")
IMPLEMENTATIONS = ("fused", "chain", "torch", "torchvision", "kornia", "dali")

FORMS = ("tanh", "erf")
ACTIVATION_WORKS = {  # -> forms that are measured; a fused product has only one
    "bias_gelu_forward": FORMS,
    "bias_gelu_backward": FORMS,
    "linear_gelu": ("tanh",),
    "mlp": ("tanh",),
}
YARDSTICKS = {"bias_gelu_forward": "copy", "bias_gelu_backward": "triad"}  # works limited by bandwidth
ACTIVATION_IMPLEMENTATIONS = ("extension", "epilogue", "compiled", "eager", "gelu_alone")


def settings(config: Mapping, experiment: str) -> dict | None:
    """Return the `kernels` of an experiment with all defaults; None without it.

    `lines` are left out: changing them keeps existing measurements valid.
    """
    own = config["experiments"][experiment].get("kernels")
    if own is None:
        return None
    found = with_defaults(f"{own.get('family', AUGMENT)}_kernels", own)
    return {key: value for key, value in found.items() if key != "lines"}


def lines(config: Mapping, experiment: str) -> list[dict]:
    """Return the limits that the rows of an experiment's benchmark must meet."""
    return [dict(line) for line in config["experiments"][experiment].get("kernels", {}).get("lines", [])]


def check_lines(config: Mapping, experiment: str) -> None:
    """Raise GpufeedError for a line that no row could meet."""
    for number, line in enumerate(lines(config, experiment)):
        where = f"experiments.{experiment}.kernels.lines.{number}"
        work, form, remedy = line["work"], line["form"], f"correct {where}"
        if form not in ACTIVATION_WORKS[work]:
            only = " or ".join(ACTIVATION_WORKS[work])
            raise GpufeedError(
                f"form {form} of {work} in {where}", f"{only}, in which it is measured", remedy
            )
        if "share" in line and work not in YARDSTICKS:
            raise GpufeedError(
                f"share of {work} in {where}",
                f"`times`: a share of the copy bandwidth is measured for {' and '.join(YARDSTICKS)} only",
                remedy,
            )
        if line.get("implementation") == "epilogue" and work in YARDSTICKS:
            raise GpufeedError(
                f"{work} by the epilogue in {where}", "linear_gelu or mlp, which have a product", remedy
            )
