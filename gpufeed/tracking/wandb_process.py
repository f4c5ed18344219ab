"""One run for Weights & Biases, in a process of its own: a program, which imports nothing of gpufeed.

So no thread, no memory and no trouble of wandb's comes into a process that trains. Standard input: a line of
JSON with `run` (what wandb.init takes), `mode` and `patience_s`, one a row of metrics, a last one with
`summary` and `exit_code`; without that one the training was killed. Standard output: one line of JSON with
`folder` and `trouble`, a sentence or null.
"""

import json
import os
import sys
from typing import Any, TextIO


def settings(mode: str, patience_s: float) -> Any:
    """Nothing but what was sent: no output, code or load of this machine."""
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
    """The run, and why it is not `online` though that was asked for."""
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
    """Writes the run that the lines tell of; returns what goes to standard output."""
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
    os.dup2(2, 1)  # what a library prints is no answer
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    try:
        result = send(sys.stdin)
    except Exception as error:
        result = {"folder": None, "trouble": f"not written: {type(error).__name__}: {first_line(error)}"}
    print(json.dumps(result), file=answer, flush=True)


if __name__ == "__main__":
    main()
