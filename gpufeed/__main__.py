"""gpufeed COMMAND ...: one name for the commands of the project, each imported when it is asked for."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from gpufeed import __version__
from gpufeed.core.errors import unknown

COMMANDS = {  # name -> (module with a `main`, what it does)
    "init": ("gpufeed.cli.init_folder", "write config and profiles of your own into a folder, to run in it"),
    "run": ("gpufeed.cli.run_workflow", "measure every loader on your images, with your model"),
    "train": ("gpufeed.train", "train one model by hand; without arguments list the choices"),
    "predict": ("gpufeed.predict", "ask a kept model about image files"),
    "compare": ("gpufeed.compare", "hold results against others: which cells became slower"),
    "preflight": ("gpufeed.preflight", "show what a run would ask Slurm for"),
    "tune": ("gpufeed.tune", "find the fastest settings of a loader for one training"),
    "report": ("gpufeed.watch.__main__", "write a page about trainings that gpufeed.watch watched"),
}


def usage() -> str:
    """Return what --help prints."""
    lines = [f"  {name:10} {does}" for name, (_, does) in COMMANDS.items()]
    ends = ["", "gpufeed COMMAND --help says more; gpufeed --version prints the version."]
    return "\n".join(["gpufeed COMMAND ...", "", *lines, *ends])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    That is 2 for a name that is no command, and as in shells 130 after Ctrl-C and 141 if the reader of the
    output has closed it.
    """
    try:
        code = command(*list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def command(name: str, *rest: str) -> int:
    """Run the command of a name and return its exit code."""
    if name in ("-h", "--help", "--version"):
        print(f"gpufeed {__version__}" if name == "--version" else usage())
        return 0
    if name not in COMMANDS:
        print(unknown("command", name, COMMANDS, "gpufeed"), file=sys.stderr)
        return 2
    sys.argv = [f"gpufeed {name}", *rest]  # Hydra, and scripts that name themselves in errors, read it
    return import_module(COMMANDS[name][0]).main()


if __name__ == "__main__":
    sys.exit(main())
