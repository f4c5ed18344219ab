"""One node of a training on several, as a task of srun.

`-m gpufeed.training.distributed.node_task FOLDER ADDRESS NODES DEVICES` ADDRESS: of the first node, where the
ranks meet. DEVICES: of each node. It locks the GPUs of its node, except on the node of the process that
started the step, which has locked them already.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from gpufeed.core.errors import Skip
from gpufeed.system import gpu_locks, sigterm_handler
from gpufeed.training.distributed import rank_commands

LOOK_S = 0.2
MEET_S = 300  # for ranks to meet, as for any process that does not answer
PORTS = range(20000, 32000)  # below Linux's ephemeral ports


def port(job: int, step: int) -> int:
    """Return the port on which the ranks of a step meet: the same on all nodes, another for the next step."""
    return PORTS[(job + 97 * step) % len(PORTS)]


def main() -> int:
    """Run torchrun; return its status or signal, 143 if asked to end, 1 without the node's GPUs."""
    folder, address, nodes, devices = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    place, job, step = (int(os.environ[f"SLURM_{name}"]) for name in ("NODEID", "JOB_ID", "STEP_ID"))
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.INFO)

    def goes_on() -> bool:
        """Return whether to go on; if this node was asked to end, note that in the folder."""
        if sigterm_handler.received():
            with suppress(OSError):  # the starter removes the folder
                rank_commands.note_end_request(folder, place)
        return not sigterm_handler.received()

    with sigterm_handler.handling():
        try:
            gpu_locks.take_part(devices, goes_on)
            gpu_locks.refuse()
        except Skip as lacking:
            from gpufeed.training.distributed.rank_files import write_failure  # imports torch

            write_failure(folder, place * devices, lacking)
            return 1
        meet = (f"--nnodes={nodes}", f"--node-rank={place}", f"--master-addr={address}")
        meet += (f"--master-port={port(job, step)}", f"--rdzv-conf=timeout={MEET_S}")
        process = subprocess.Popen(
            rank_commands.torchrun_command(devices, folder, meet),
            env=rank_commands.torchrun_environment(),
            stdin=subprocess.DEVNULL,
        )
        if place == 0:
            threading.Thread(target=until_alone, name="gpufeed-starter", daemon=True).start()
        try:
            while process.poll() is None and goes_on():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        finally:
            rank_commands.stop_torchrun(process)
        return abs(process.returncode) if goes_on() or process.returncode == 0 else sigterm_handler.STATUS


def until_alone() -> None:
    """Wait for the end of the input, which the starter holds open; then end this task."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
