"""The software around a number: a digest of all installed packages, and the container image."""

import hashlib
import os
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")  # set by Apptainer: the image's path
IN_DOCKER = Path("/.dockerenv")


@cache
def software() -> dict[str, Any]:
    """The `software` of an environment (gpufeed/core/schemas/record.schema.yaml) of this process."""
    lines = packages()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return {"packages": len(lines), "digest": digest, "container": container()}


def packages() -> list[str]:
    """`name==version` of each installed distribution, names normalised as by PyPA's specification, sorted."""
    found = set()
    for one in metadata.distributions():
        if name := one.metadata["Name"]:  # None in a folder that an aborted installation left
            found.add(f"{re.sub(r'[-_.]+', '-', name).lower()}=={one.version}")
    return sorted(found)


def container() -> str | None:
    """The file name of Apptainer's image, `docker` in a container of Docker, None outside of both."""
    for variable in IMAGE_VARIABLES:
        if image := os.environ.get(variable):
            return Path(image).name
    return "docker" if IN_DOCKER.exists() else None
