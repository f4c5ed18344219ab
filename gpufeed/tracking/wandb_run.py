"""A run of Weights & Biases as a training sees it: what goes wrong is a warning, and never an error."""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpufeed.core.errors import one_line

log = logging.getLogger("gpufeed")
PATIENCE_S = 20  # for an answer of the server; sending all that is left has twice as long


def settings(mode: str, patience_s: float) -> Any:
    """Nothing but what was sent: no output, code or load of this machine; nobody is asked for a key."""
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
        self.run: Any = None
        if find_spec("wandb") is None:
            self.warn("this node lacks the package wandb (pip install 'gpufeed[tracking]')")
            return
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        about = {"dir": str(Path(folder).absolute()), "project": project, "name": name, "group": group}
        about |= {"job_type": job_type, "config": dict(config)}
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.run = self._begun(about, mode, patience_s)
        except Exception as error:  # a training does not end for its tracking
            self.warn(f"it could not be started ({one_line(error)})")

    def _begun(self, about: dict[str, Any], mode: str, patience_s: float) -> Any:
        import wandb

        # first: it would ask a terminal for a key
        wandb.setup(settings(mode, patience_s))
        try:
            return wandb.init(**about, mode=mode, settings=settings(mode, patience_s))
        except Exception as error:
            if mode == "offline":
                raise
            self.warn(f"kept offline, for wandb sync, since {one_line(error)}")
        wandb.teardown()
        return wandb.init(**about, mode="offline", settings=settings("offline", patience_s))

    def log(self, row: Mapping[str, Any]) -> None:
        """Sends an epoch's metrics; those that are None are left out."""
        self._attempt(lambda run: run.log({key: value for key, value in row.items() if value is not None}))

    def finish(self, summary: Mapping[str, Any], ok: bool = True) -> None:
        """Ends the run; waits until it is written or sent, or for twice patience_s."""

        def end(run: Any) -> None:
            import wandb

            run.summary.update(summary)
            run.finish(exit_code=int(not ok))
            wandb.teardown()
            log.info("Weights & Biases: %s", run.settings.sync_dir)

        self._attempt(end)

    def warn(self, why: str) -> None:
        """The one line."""
        log.warning("The run for Weights & Biases: %s", why)

    def _attempt(self, work: Callable[[Any], None]) -> None:
        """Does something with the run; after an error nothing more is tried."""
        if self.run is None:
            return
        try:
            work(self.run)
        except Exception as error:
            self.run = None
            self.warn(f"it was not written to its end ({one_line(error)})")
            with suppress(Exception):
                import wandb

                wandb.teardown()
