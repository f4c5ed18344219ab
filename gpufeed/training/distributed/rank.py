"""One rank of a training: `-m gpufeed.training.distributed.rank FOLDER`, started by torchrun."""

import logging
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

from gpufeed.system import parent_watchdog, sigterm_handler
from gpufeed.system.host_memory import keep_freed_blocks
from gpufeed.training.distributed import rank_files
from gpufeed.training.distributed.process_group import joined

log = logging.getLogger("gpufeed")


def run(folder: Path) -> None:
    """Make the call in the folder and write rank 0's result there; raise the error that stops it."""
    import torch

    call, rank = rank_files.read_call(folder), int(os.environ["RANK"])
    keep_freed_blocks()
    torch.set_num_threads(call.threads)
    tell = {"on_epoch": partial(rank_files.tell_epoch, folder) if rank == 0 else None} if call.tells else {}
    module, _, function = call.work.partition(":")
    with joined(call.ranks, call.kind):
        result = getattr(import_module(module), function)(**call.arguments, **tell)
        if rank == 0:
            rank_files.write_result(folder, result)


def main() -> None:
    """Run the rank; if it raises, write the error to the folder and exit with status 1."""
    folder = Path(sys.argv[1])
    parent_watchdog.end_with()  # the ancestors: torchrun and its starter
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    try:
        run(folder)
    except sigterm_handler.Ended as ended:
        sys.stdout.flush()
        os._exit(ended.code)  # at once, since all ranks of the group end now
    except Exception as error:
        rank_files.write_failure(folder, int(os.environ["RANK"]), error)
        log.exception("this rank failed")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # at once, since leaving the group would wait for ranks that may never answer


if __name__ == "__main__":
    main()
