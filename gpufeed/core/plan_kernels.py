"""What the kernel benchmark measures, from the config. Standard library only: read while planning.

A benchmark belongs to one family of works: the augments' kernels on batches of images, or the activation
of a vision transformer's MLP on a matrix of rows x columns.
"""

from collections.abc import Mapping

from gpufeed.core.errors import GpufeedError

AUGMENT, ACTIVATION = "augment", "activation"

STEPS = ("brightness", "contrast", "salt_pepper", "rotation")
WORKS = ("normalise", *STEPS, "crop_flip", "one_pass")
IMPLEMENTATIONS = ("fused", "chain", "torch", "torchvision", "kornia", "dali")

FORMS = ("tanh", "erf")
ACTIVATION_WORKS = {  # and the forms in which it is measured; fused into a product there is only one
    "bias_gelu_forward": FORMS,
    "bias_gelu_backward": FORMS,
    "linear_gelu": ("tanh",),
    "mlp": ("tanh",),
}
YARDSTICKS = {"bias_gelu_forward": "copy", "bias_gelu_backward": "triad"}  # where moving bytes decides
ACTIVATION_IMPLEMENTATIONS = ("extension", "epilogue", "compiled", "eager", "gelu_alone")

DEFAULTS = {
    AUGMENT: {"batch_size": [128, 512, 4096], "size": [32, 64, 224], "launches": 50, "dtype": "float16"},
    ACTIVATION: {"rows": 65536, "columns": [768, 1536, 3072], "launches": 50, "dtype": "bfloat16"},
}


def settings(config: Mapping, experiment: str) -> dict | None:
    """What the benchmark of an experiment is measured with: its `kernels` with all defaults, but for `lines`.

    None if it has none. Another line is another judgement of the same measurement.
    """
    own = config["experiments"][experiment].get("kernels")
    if own is None:
        return None
    family = own.get("family", AUGMENT)
    return {
        "family": family,
        **DEFAULTS[family],
        **{key: value for key, value in own.items() if key != "lines"},
    }


def lines(config: Mapping, experiment: str) -> list[dict]:
    """What the rows of the benchmark of an experiment are held to, as the config says."""
    return [dict(line) for line in config["experiments"][experiment].get("kernels", {}).get("lines", [])]


def check_lines(config: Mapping, experiment: str) -> None:
    """Raises GpufeedError for a line that no row could ever meet."""
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
