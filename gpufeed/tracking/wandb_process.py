"""One Weights & Biases run, in a process of its own: a program that imports nothing of gpufeed.

So no thread, memory or error of wandb affects a process that trains. Standard input has lines of JSON. The
first has `run` (arguments of wandb.init), `mode` and `patience_s`, the next ones are rows of metrics. The
last has `summary` and `exit_code`; without it the training was killed. Standard output is one line of JSON
with `folder` and `trouble`, a sentence or null.
"""

import json
import os
import sys
from typing import Any, TextIO


def settings(mode: str, patience_s: float) -> Any:
    """Return settings that send only what was logged: no output, code or load of this machine."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        **({"init_timeout": patience_s} if mode == "online" else {}),
        finish_timeout=2 * patience_s,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
    )


def begin(run: dict[str, Any], mode: str, patience_s: float) -> tuple[Any, str | None]:
    """Return the run, and why it is offline although `online` was asked for, or None."""
    import wandb

    try:
        return wandb.init(**run, mode=mode, settings=settings(mode, patience_s)), None
    except Exception as error:
        if mode == "offline":
            raise
        wandb.teardown()
        opened = wandb.init(**run, mode="offline", settings=settings("offline", patience_s))
        return opened, f"kept offline, for wandb sync, since {type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def send(lines: TextIO) -> dict[str, str | None]:
    """Write the run that the lines describe; return the answer for standard output."""
    run, trouble = begin(**json.loads(lines.readline()))
    end: dict[str, Any] = {"summary": {}, "exit_code": 1}
    for line in lines:
        message = json.loads(line)
        if "exit_code" in message:
            end = message
        else:
            run.log(message)
    run.summary.update(end["summary"])
    folder = run.settings.sync_dir
    run.finish(exit_code=end["exit_code"])
    return {"folder": folder, "trouble": trouble}


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to stderr
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    try:
        result = send(sys.stdin)
    except Exception as error:
        result = {"folder": None, "trouble": f"not written: {type(error).__name__}: {first_line(error)}"}
    print(json.dumps(result), file=answer, flush=True)


if __name__ == "__main__":
    main()
