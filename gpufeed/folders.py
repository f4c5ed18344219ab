"""The folders that a config names: where they are, and whether they can be."""

from pathlib import Path

from gpufeed.errors import GpufeedError


def settle_folders(config: dict) -> None:
    """Makes `~` in data and results the home folder, as archives have it.

    Raises GpufeedError where a file is in a folder's place, and where one may not look.
    """
    for key in ("data", "results"):
        folder = Path(config[key]).expanduser()
        try:
            wrong = next((f"{one} is a file" for one in (folder, *folder.parents) if one.is_file()), "")
        except OSError as error:
            wrong = str(error)
        if wrong:
            raise GpufeedError(
                f"{key}: {config[key]!r} in the config: {wrong}",
                "a folder, or a place where one can be made",
                f"name another: --config {key}=FOLDER",
            )
        config[key] = str(folder)
