"""The activation of a transformer's MLP: works on rows x columns, and their implementations.

`columns` is the width inside the MLP; the block around it has a fourth of it. All implementations compute the
same function of the same inputs, in their dtype and without autocast. They do the forward pass, the backward
pass (of a graph that is kept), or both. The device's clock does not see what autograd costs the host. A
result that differs from float64 is an error and has no time.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch.nn import functional as F

from gpufeed.augment.amounts import DTYPES
from gpufeed.benchmarks.kernels.kernel_clock import NotDone, Run, Task
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.plan_kernels import ACTIVATION_IMPLEMENTATIONS, ACTIVATION_WORKS, YARDSTICKS
from gpufeed.native import torch_reference

APPROXIMATE = {"erf": "none", "tanh": "tanh"}
EXPANSION = 4  # columns over the width of the block
SEED = 1
CHUNK = 4096  # rows that are compared with float64 at once: 100 MB per array at 3072 columns
EPSILONS = 2  # of the dtype: the allowed error relative to the largest value
LEAST_ERROR = 5e-5  # of a value of the extension: 7e-6 in its tail times the gradients drawn here
LEAST_TOLERANCE = 1e-4  # for float32, whose sums over all rows round many times

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Work:
    """passes: forward, backward or both. block: whether it takes the block's inputs, not just x and bias.

    arrays: of rows x columns that it reads and writes; None if multiplications dominate. multiplications:
    forward and backward together, each of rows x columns x width.
    """

    passes: str
    block: bool
    arrays: int | None
    multiplications: int


WORKS = {
    "bias_gelu_forward": Work("forward", False, 2, 0),
    "bias_gelu_backward": Work("backward", False, 3, 0),
    "linear_gelu": Work("forward", True, None, 1),
    "mlp": Work("both", True, None, 6),
}


@dataclass(frozen=True)
class Case:
    """The random inputs of all implementations."""

    rows: int
    columns: int
    dtype: torch.dtype
    device: torch.device

    @property
    def width(self) -> int:
        return self.columns // EXPANSION

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(SEED)

    def random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        made = torch.randn(shape, dtype=torch.float32, device=self.device, generator=self.generator)
        return made.mul_(scale).to(self.dtype)

    @cached_property
    def activation(self) -> Tensors:
        """x (rows, columns) and bias (columns,)."""
        return self.random(self.rows, self.columns), self.random(self.columns, scale=0.5)

    @cached_property
    def block(self) -> Tensors:
        """x (rows, width), then weight and bias of the two layers.

        These are (columns, width), (columns,), (width, columns) and (width,).
        """
        return (
            self.random(self.rows, self.width),
            self.random(self.columns, self.width, scale=self.width**-0.5),
            self.random(self.columns, scale=0.5),
            self.random(self.width, self.columns, scale=self.columns**-0.5),
            self.random(self.width, scale=0.5),
        )

    @cached_property
    def grad(self) -> torch.Tensor:
        """The gradient of the activation's result, (rows, columns)."""
        return self.random(self.rows, self.columns)

    @cached_property
    def grad_of_block(self) -> torch.Tensor:
        """The gradient of the block's result, (rows, width)."""
        return self.random(self.rows, self.width)


def tasks(settings: dict, device: torch.device) -> Iterator[Task]:
    """Yield all rows, the fewest columns first. settings: of gpufeed.core.plan_kernels."""
    for columns in settings["columns"]:
        yield from tasks_of(Case(settings["rows"], columns, DTYPES[settings["dtype"]], device))


def tasks_of(case: Case) -> Iterator[Task]:
    """Yield the rows of one case."""
    for work, forms in ACTIVATION_WORKS.items():
        for form in forms:
            for name in ACTIVATION_IMPLEMENTATIONS:
                yield task_of(case, work, form, name)


def task_of(case: Case, work: str, form: str, name: str) -> Task:
    """Return one row: its names, and what is known of it before the measurement."""
    moved, known = bytes_moved(case, work, name)
    flops = WORKS[work].multiplications * 2 * case.rows * case.columns * case.width or None
    names = {"work": work, "form": form, "implementation": name}
    return Task(
        names={**names, "rows": case.rows, "columns": case.columns},
        make=partial(make, case, work, form, name),
        facts={"bytes": moved, "bytes_are": known, "yardstick": YARDSTICKS.get(work), "flops": flops},
        bytes=moved,
        yardstick=YARDSTICKS.get(work),
        amounts={"gb_per_s": moved / 1e6 if moved else None, "tflop_per_s": flops / 1e9 if flops else None},
    )


def bytes_moved(case: Case, work: str, name: str) -> tuple[int | None, str | None]:
    """Return (bytes, "moved") if each array is known to pass once, else (bytes, "at least").

    (None, None) for matrix products. The partial sums of the bias's gradient do not count.
    """
    arrays = WORKS[work].arrays
    if arrays is None:
        return None, None
    itemsize = case.dtype.itemsize
    biases = {"forward": 1, "backward": 2}[WORKS[work].passes] if name != "gelu_alone" else 0
    moved = (arrays * case.rows + biases) * case.columns * itemsize
    return moved, "moved" if name in ("extension", "gelu_alone") else "at least"


# --- the implementations: each takes the inputs and returns (rows, columns) or (rows, width) ---


def bias_gelu(x: torch.Tensor, bias: torch.Tensor, approximate: str) -> torch.Tensor:
    return F.gelu(x + bias, approximate=approximate)


PLAIN = {
    "bias_gelu_forward": bias_gelu,
    "bias_gelu_backward": bias_gelu,
    "linear_gelu": torch_reference.linear_bias_gelu,
    "mlp": torch_reference.gelu_mlp,
}


def eager(case: Case, work: str, approximate: str) -> Function:
    return partial(PLAIN[work], approximate=approximate)


def compiled(case: Case, work: str, approximate: str) -> Function:
    if case.device.type == "cuda":
        import triton  # noqa: F401 (raises ModuleNotFoundError, which skips the row)
    torch.compiler.reset()  # the rows share a function, of which only a few compilations are cached
    return torch.compile(partial(PLAIN[work], approximate=approximate), dynamic=False)


def gelu_alone(case: Case, work: str, approximate: str) -> Function:
    """Return GELU without a bias, to measure what the addition costs."""
    if WORKS[work].block:
        raise NotDone
    return partial(F.gelu, approximate=approximate)


def extension(case: Case, work: str, approximate: str) -> Function:
    ops = extension_for(case.device)
    if not WORKS[work].block:
        return partial(ops.bias_gelu, approximate=approximate)

    def first_half(x, weight, bias):
        return ops.bias_gelu(F.linear(x, weight), bias, approximate)

    if work == "linear_gelu":
        return first_half
    return lambda x, weight1, bias1, weight2, bias2: F.linear(first_half(x, weight1, bias1), weight2, bias2)


def epilogue(case: Case, work: str, approximate: str) -> Function:
    if not WORKS[work].block or approximate != "tanh":
        raise NotDone
    ops = extension_for(case.device)
    return partial(ops.linear_bias_gelu if work == "linear_gelu" else ops.gelu_mlp, approximate=approximate)


MAKERS: dict[str, Callable[[Case, str, str], Function]] = {
    "extension": extension,
    "epilogue": epilogue,
    "compiled": compiled,
    "eager": eager,
    "gelu_alone": gelu_alone,
}


def load_extension(path: str | Path) -> None:
    """Load the built library, which the works by `extension` and `epilogue` need."""
    from gpufeed import native

    native.load(path)


def extension_for(device: torch.device):
    """Return gpufeed.native; raise Skip if it would use its reference on this device."""
    from gpufeed import native

    if sentence := native.status(device).sentence:
        raise Skip(sentence)
    return native


def make(case: Case, work: str, form: str, name: str) -> Run:
    """Set the work up, run it once and compare it with float64; raise GpufeedError if it is wrong."""
    passes, approximate = WORKS[work].passes, APPROXIMATE[form]
    function, inputs = MAKERS[name](case, work, approximate), inputs_of(case, work, name)
    grad = case.grad_of_block if work == "mlp" else case.grad
    # a kept graph runs many times, which compiled code allows only without donated buffers
    keep = name == "compiled" and passes == "backward"
    with torch._functorch.config.patch(donated_buffer=False) if keep else nullcontext():
        run = runner(function, inputs, grad, passes)
        results = run()
    plain = partial(F.gelu if name == "gelu_alone" else PLAIN[work], approximate=approximate)
    check(results, plain, inputs, grad, passes, closely=name == "extension" and not WORKS[work].block)
    return run


def inputs_of(case: Case, work: str, name: str) -> Tensors:
    """Return the inputs of a work; `gelu_alone` has no bias."""
    if work == "mlp":
        return case.block
    if work == "linear_gelu":
        return case.block[:3]
    return case.activation[:1] if name == "gelu_alone" else case.activation


def runner(function: Function, inputs: Tensors, grad: torch.Tensor, passes: str) -> Callable[[], Tensors]:
    """Return one launch: it returns the result (not for backward), and the gradients (not for forward).

    Gradients are in the order of the inputs.
    """

    def forward() -> Tensors:
        with torch.no_grad():
            return (function(*inputs),)

    if passes == "forward":
        return forward
    ours = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    if passes == "backward":
        kept = function(*ours)
        return lambda: torch.autograd.grad(kept, ours, grad, retain_graph=True)

    def both() -> Tensors:
        out = function(*ours)
        return out.detach(), *torch.autograd.grad(out, ours, grad)

    return both


# number of results with the rows of x; the others are sums over rows
BY_ROW = {"forward": 1, "backward": 1, "both": 2}


def check(
    results: Tensors, plain: Function, inputs: Tensors, grad: torch.Tensor, passes: str, closely: bool = False
) -> None:
    """Raise GpufeedError unless all results are those of `plain` in float64, up to rounding.

    Errors are compared with the largest value, which finds a wrong work but not the other form of GELU.
    closely: compare each value of a result with rows with itself, too, which finds the other form. This is
    not for implementations that round the sum of x and bias.

    Rows are compared in chunks, since float64 of all of them may not fit.
    """
    x, *others = inputs
    exact, by_row = tuple(tensor.double() for tensor in others), BY_ROW[passes]
    errors = [x.new_zeros((), dtype=torch.float64) for _ in results]
    largest, sums = list(errors), [0.0] * (len(results) - by_row)
    excess = x.new_zeros((), dtype=torch.float64)

    def compare(index: int, found: torch.Tensor, want: torch.Tensor) -> None:
        errors[index] = torch.maximum(errors[index], (found.double() - want).abs().max())
        largest[index] = torch.maximum(largest[index], want.abs().max())

    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        want = runner(plain, (x[part].double(), *exact), grad[part].double(), passes)()
        for index in range(by_row):
            compare(index, results[index][part], want[index])
            excess = torch.maximum(excess, beyond(results[index][part], want[index]))
        sums = [total + more for total, more in zip(sums, want[by_row:], strict=True)]
    for index, want in enumerate(sums, start=by_row):
        compare(index, results[index], want)
    allowed = max(EPSILONS * torch.finfo(x.dtype).eps, LEAST_TOLERANCE)
    for index, (error, size) in enumerate(zip(errors, largest, strict=True)):
        if not error <= allowed * size:  # true of NaN too
            raise GpufeedError(
                f"result {index + 1} of {len(results)} up to {float(error):.2g} away from float64",
                f"at most {float(allowed * size):.2g}",
                "do not use this implementation here, and report it",
            )
    if closely and not excess <= 0:
        raise GpufeedError(
            f"a value {float(excess):.2g} beyond its rounding away from float64",
            f"at most {torch.finfo(x.dtype).eps:.2g} of itself and {LEAST_ERROR:g}",
            "do not use this implementation here, and report it",
        )


def beyond(found: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return by how much the worst value exceeds its rounding and LEAST_ERROR; negative if none does."""
    allowed = torch.finfo(found.dtype).eps * want.abs() + LEAST_ERROR
    return ((found.double() - want).abs() - allowed).max()
