"""Optimisers and learning-rate schedules, by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import OneCycleLR

from gpufeed.core.errors import require_known

OPTIMISERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("one_cycle", "constant")


def make_optimiser(
    parameters: Iterable[torch.nn.Parameter],
    options: Mapping[str, Any],
    device: torch.device,
    capturable: bool = False,
) -> torch.optim.Optimizer:
    """Return the optimiser that `options` names; raise GpufeedError for an unknown one.

    With `decay_matrices_only`, parameters of one dimension (biases and normalisation) are not decayed. On
    CUDA it is torch's fused one, which never waits for the device, even with a gradient scaler. With
    `torch_defaults` torch chooses. capturable: for a CUDA graph; the learning rate is then a tensor, which
    each replay reads.
    """
    name, fused = options["optimiser"], (True if device.type == "cuda" else None)
    require_known("trainer.optimiser", name, OPTIMISERS)
    if options.get("torch_defaults"):
        fused = None
    rate = float(options["learning_rate"])
    if options.get("decay_matrices_only") and options["weight_decay"]:
        parameters = decay_groups(parameters)
    common = {
        "lr": torch.tensor(rate, device=device) if capturable else rate,
        "weight_decay": float(options["weight_decay"]),
        "fused": fused,
    }
    own = {"momentum": float(options["momentum"])} if name == "sgd" else {"capturable": capturable}
    return OPTIMISERS[name](parameters, **own, **common)


def decay_groups(parameters: Iterable[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Return an optimiser's groups: parameters of two or more dimensions, and the rest without decay."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    rest = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next step, in place if it is a tensor that a CUDA graph reads."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def rate_at(rates: Sequence[float], step: int) -> float:
    """Return the rate of a step, counted from 0; after the schedule's end its last one."""
    return rates[min(step, len(rates) - 1)]


def learning_rates(options: Mapping[str, Any], total_steps: int) -> list[float]:
    """Return the learning rate of every step of a run.

    `one_cycle` rises over the first `warmup_share` of the steps to `learning_rate` and falls to nearly zero
    (torch's OneCycleLR with constant momentum). Raises GpufeedError for an unknown schedule.
    """
    rate, schedule = float(options["learning_rate"]), options["schedule"]
    require_known("trainer.schedule", schedule, SCHEDULES)
    if schedule == "constant" or total_steps < 2:
        return [rate] * total_steps
    # OneCycleLR divides by the length of the rise minus one step, so that it must exceed one step
    share = min(1.0, max(float(options["warmup_share"]), 1.5 / total_steps))
    stand_in = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    one_cycle = OneCycleLR(
        stand_in, max_lr=rate, total_steps=total_steps, pct_start=share, cycle_momentum=False
    )
    rates = []
    for _ in range(total_steps):
        rates.append(float(stand_in.param_groups[0]["lr"]))
        stand_in.step()
        if len(rates) < total_steps:
            one_cycle.step()
    return rates
