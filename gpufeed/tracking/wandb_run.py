"""A run of Weights & Biases as a training sees it: lines to another process, and at most one warning."""

import json
import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

log = logging.getLogger("gpufeed")
PROGRAM = Path(__file__).with_name("wandb_process.py")
PATIENCE_S = 20  # for an answer of the server; sending all that is left has twice as long
LOCAL_S = 60  # for wandb itself, which takes some seconds to start and to end where nothing is sent


class Run:
    """Starts when it is made; nothing that goes wrong with it is an error of the training.

    name, group, job_type, config: of the run, as wandb.init has them. folder: where wandb/ is made. mode:
    offline | online; an online run that finds no key or no server is kept offline. patience_s: as PATIENCE_S.
    """

    def __init__(
        self,
        folder: str | Path,
        project: str,
        mode: str,
        name: str,
        group: str,
        job_type: str,
        config: Mapping[str, Any],
        patience_s: float = PATIENCE_S,
    ):
        self.process, self.patience_s = None, patience_s
        if find_spec("wandb") is None:
            self.warn("this node lacks the package wandb (pip install 'gpufeed[all]')")
            return
        run = {"project": project, "name": name, "group": group, "job_type": job_type, "config": dict(config)}
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # an interrupt is for the training, which then ends the run
            )
        except OSError as error:
            self.warn(f"it could not be started ({error})")
            return
        # a queue: a run that hangs must not hold up the training behind a full pipe
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._feed, name="gpufeed-tracking", daemon=True).start()
        run["dir"] = str(Path(folder).absolute())
        self._say({"run": run, "mode": mode, "patience_s": patience_s})

    def log(self, row: Mapping[str, Any]) -> None:
        """Sends an epoch's metrics; those that are None are left out."""
        self._say({key: value for key, value in row.items() if value is not None})

    def finish(self, summary: Mapping[str, Any], ok: bool = True) -> None:
        """Ends the run; waits until it is written or sent, at most LOCAL_S and three times patience_s."""
        if self.process is None:
            return
        limit_s = LOCAL_S + 3 * self.patience_s
        self._say({"summary": dict(summary), "exit_code": int(not ok)})
        self.lines.put(None)
        try:
            self.process.wait(limit_s)
            result = json.loads(self.process.stdout.read())
        except subprocess.TimeoutExpired:
            self.warn(f"it was not sent within {limit_s:.0f} s")
        except (OSError, ValueError):
            self.warn(f"its process ended with status {self.process.returncode}")
        else:
            if result["trouble"]:
                self.warn(result["trouble"])
            if result["folder"]:
                log.info("Weights & Biases: %s", result["folder"])
        finally:
            self._end()

    def warn(self, why: str) -> None:
        """The one line."""
        log.warning("The run for Weights & Biases: %s", why)

    def _say(self, message: Mapping[str, Any]) -> None:
        if self.process is not None:
            self.lines.put(json.dumps(message) + "\n")

    def _feed(self) -> None:
        try:
            while (line := self.lines.get()) is not None:
                self.process.stdin.write(line)
                self.process.stdin.flush()
            self.process.stdin.close()
        except (OSError, ValueError):  # it has ended; `finish` says so
            return

    def _end(self) -> None:
        """Leaves no process behind, nor those that wandb started."""
        if self.process.poll() is not None:
            return
        left = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait()
