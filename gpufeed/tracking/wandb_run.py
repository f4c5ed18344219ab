"""A Weights & Biases run as a training uses it: lines to another process, and at most one warning."""

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

from gpufeed.core.errors import install

log = logging.getLogger("gpufeed")
PROGRAM = Path(__file__).with_name("wandb_process.py")
PATIENCE_S = 20  # for an answer of the server; sending the rest has twice as long
LOCAL_S = 60  # for wandb itself, which takes seconds to start and to end even offline


class Run:
    """A run that starts at once; its errors never stop the training.

    name, group, job_type, config: as in wandb.init. folder: where wandb/ is created. mode: offline | online;
    an online run without a key or a server is kept offline. patience_s: as PATIENCE_S.
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
            self.warn(f"this node lacks the package wandb ({install('wandb')})")
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
                start_new_session=True,  # so that Ctrl-C reaches only the training
            )
        except OSError as error:
            self.warn(f"it could not be started ({error})")
            return
        # a queue: a hanging run must not block the training on a full pipe
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._feed, name="gpufeed-tracking", daemon=True).start()
        run["dir"] = str(Path(folder).absolute())
        self._say({"run": run, "mode": mode, "patience_s": patience_s})

    def log(self, row: Mapping[str, Any]) -> None:
        """Send an epoch's metrics, without those that are None."""
        self._say({key: value for key, value in row.items() if value is not None})

    def finish(self, summary: Mapping[str, Any], ok: bool = True) -> None:
        """End the run; wait until it is written or sent, at most LOCAL_S and three times patience_s."""
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
        """Log the warning."""
        log.warning("Weights & Biases run: %s", why)

    def _say(self, message: Mapping[str, Any]) -> None:
        if self.process is not None:
            self.lines.put(json.dumps(message) + "\n")

    def _feed(self) -> None:
        try:
            while (line := self.lines.get()) is not None:
                self.process.stdin.write(line)
                self.process.stdin.flush()
            self.process.stdin.close()
        except (OSError, ValueError):  # the process has ended; `finish` reports it
            return

    def _end(self) -> None:
        """Kill the process if it still runs, and those that wandb started."""
        if self.process.poll() is not None:
            return
        left = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait()
