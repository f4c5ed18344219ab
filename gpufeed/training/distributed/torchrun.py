"""torchrun, which starts the ranks of one node: its command, its environment, and its end. Without torch."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

GRACE_S = 40.0  # from the request to end to the end by force; torchrun itself gives its ranks 30 s
KILLED_S = 5.0  # for the kernel to end it
ALONE = ("--standalone", "--local-addr=localhost")


def command(devices: int, folder: Path, rendezvous: tuple[str, ...] = ALONE) -> list[str]:
    """As many ranks on this node as it has devices, which say their rank with every line.

    rendezvous: how they meet those of other nodes; there are none without it.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous]
    told = ["--role=rank", "--tee=3", f"--log-dir={folder / 'logs'}"]
    return [
        *torchrun,
        f"--nproc-per-node={devices}",
        *told,
        "-m",
        "gpufeed.training.distributed.rank",
        str(folder),
    ]


def environment(threads: int | None = None) -> dict[str, str]:
    """That of this process, its import path included, without what describes the tasks of a Slurm job.

    threads: of torch in each rank; None leaves what the environment says.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI_"))}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # of the whole training, where torchrun would count those of its node
    prefix = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${role_name}${rank}]:"}
    own = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return kept | {"PYTHONPATH": path} | prefix | own


def stop(process: subprocess.Popen) -> None:
    """Ends a process and all that it started: by request, then by force. Nothing to do where it has ended."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # if a signal's exception has left its lock taken
            process.wait(KILLED_S)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
