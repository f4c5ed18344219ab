"""Checks of scratch and data.

A user's quota on Lustre is a row of `lfs quota`, which is wrapped after a long name:

    FILESYSTEM kbytes quota limit grace files quota limit grace

Numbers over the limit have a *, incomplete ones are in [], and 0 means no limit.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from gpufeed.cluster.preflight.asked_plan import Plan
from gpufeed.cluster.preflight.finding import Finding
from gpufeed.cluster.preflight.login_node import Node, said_by
from gpufeed.cluster.preflight.site import Site
from gpufeed.cluster.preflight.software_checks import is_local
from gpufeed.core.dataset_size import Amount, amount_of, taken
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import existing
from gpufeed.core.image_listing import files_below, is_image

QUOTA_NUMBER = r"\s+\[?([0-9]{1,20})\]?\*?"
QUOTA_ROW = re.compile(rf"{QUOTA_NUMBER * 3}\s+\S+{QUOTA_NUMBER * 3}\s+\S+")
PACKED = 3  # the archive of a dataset, its sidecar and its manifest
ROOM = 4  # bytes of images, caches, strips and results per byte of an archive, approximately
CACHES = 2  # of decoded pixels: the reference and that of the loaders
LEAST_GIB = 5
COUNTING_S = 20


def folders(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    if not os.path.exists(site.scratch.folder):
        yield Finding(
            f"no folder {site.scratch.folder}",
            f"the scratch of {site.name}",
            "run preflight on a login node, or correct scratch in the site's site.yaml",
        )
    outside = outside_of_scratch(plan, site)
    better = {key: f"{site.scratch.folder}/gpufeed/{key}" for key in outside}
    for key, folder in outside.items():
        local = is_local(folder)
        yield Finding(
            f"{key} in {with_link_target(folder)}, "
            f"{'which compute nodes do not see' if local else 'outside of scratch'}",
            f"a folder below {site.scratch.folder}: the home folder is small, and slow from many nodes",
            "{config}",
            note=not local,
            config=better,
        )
    for key, folder in plan.folders.items():
        there = existing(folder)
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            yield Finding(
                f"{key} in {folder}: you may not write into {there}",
                "a folder in which your jobs may create folders and files",
                "name another folder: {config}",
                note=key == "data" and not missing(plan),  # prepared by another user, with caches
                config={key: better.get(key, "FOLDER")},
            )


def outside_of_scratch(plan: Plan, site: Site) -> dict[str, Path]:
    """Return which of `data` and `results` lie outside of the site's scratch, links followed."""
    scratch = site.scratch.folder.resolve()
    return {key: at for key, at in plan.folders.items() if not at.resolve().is_relative_to(scratch)}


def with_link_target(folder: Path) -> str:
    """Return the folder as text, with the target of links."""
    resolved = folder.resolve()
    return str(folder) if resolved == folder else f"{folder} (that is, {resolved})"


def space(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    folder = existing(plan.folders["data"])
    needed = max(LEAST_GIB, sum(bytes_of(plan, name) for name in missing(plan)) / 2**30)
    free, what = room(folder)
    if free < needed:
        moves = "data" in outside_of_scratch(plan, site)  # `folders` then suggests a better one
        yield Finding(
            f"{free:.1f} GiB {what} in {folder}",
            f"{needed:.0f} GiB, for the images, their caches and stores, and results",
            "make room there, or name another folder: {config}",
            config={"data": f"{site.scratch.folder}/gpufeed/data" if moves else "FOLDER"},
        )


def room(folder: Path) -> tuple[float, str]:
    """Return (GiB that this user may still write, whether they are "free" or left of a quota)."""
    stat, quota = os.statvfs(folder), quota_of(folder)
    free = stat.f_bavail * stat.f_frsize / 2**30
    if quota and quota.most_kib is not None:
        left = max(0, quota.most_kib - quota.kib) / 2**20
        if left < free:
            return left, f"left of your quota of {quota.most_kib / 2**20:.1f} GiB"
    return free, "free"


@dataclass(frozen=True)
class Quota:
    """A user's usage and limits on a file system; None: no limit.

    kib, most_kib: size of all files. files, most_files: their number, folders included. Soft limits count if
    there are any, since Lustre enforces them after a grace period.
    """

    kib: int
    most_kib: int | None
    files: int
    most_files: int | None


def quota_of(folder: Path) -> Quota | None:
    """Return this user's quota at a folder; None without Lustre, its command or an answer within 20 s."""
    return read_quota(said_by("lfs", "quota", "-u", str(os.getuid()), str(folder)) or "")


def read_quota(said: str) -> Quota | None:
    """Return the first row of `lfs quota`'s output; None without one."""
    row = QUOTA_ROW.search(said)
    if not row:
        return None
    kib, soft_kib, hard_kib, files, soft_files, hard_files = map(int, row.groups())
    return Quota(kib, soft_kib or hard_kib or None, files, soft_files or hard_files or None)


def file_count(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    new = sum(images_of(plan, name) for name in missing(plan))
    quota, most = quota_of(site.scratch.folder), site.scratch.files
    if quota and quota.most_files is not None:
        there, whole, most = quota.files, True, quota.most_files
    else:
        there, whole = count_files(site.scratch.folder, most)
    if there + new > most:
        packed = is_packed(plan)
        yield Finding(
            f"{there:,}{'' if whole else ' or more'} files in {site.scratch.folder}, and {new:,} new ones",
            f"at most {most:,} files",
            "pack (tar) what is not in use there, or measure fewer datasets at a time"
            if packed
            else "pack (tar) what is not in use there, or keep each dataset as one archive, "
            "which jobs unpack on their nodes: {config}",
            config={} if packed else {"data_form": "packed"},
        )
    elif not whole:
        yield Finding(
            f"more than {there:,} files in {site.scratch.folder} (counted for {COUNTING_S} s)",
            f"at most {most:,}, including the {new:,} new ones",
            "see the total with pace-quota",
            note=True,
        )


def data(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Check that archives are available: snakemake downloads them here, never on a compute node."""
    places = [Path(folder).expanduser() for folder in plan.config.get("archives") or []]
    names = missing(plan)
    yield from closed(places) if names else ()
    for name in names:
        try:
            images_in(plan.config["sources"][name])
        except GpufeedError as error:
            yield Finding(error.found, error.expected, error.remedy)
        own = plan.folders["data"] / name / "archives"
        files = [
            file
            for file in plan.config["sources"][name].get("files") or []
            if not any(os.path.exists(place / file["name"]) for place in (own, *places))
            and not any(reachable(url) for url in file.get("urls", ()))
        ]
        if files:
            urls = ", ".join(files[0].get("urls", ()))
            yield Finding(
                f"{', '.join(file['name'] for file in files)} of {name}: neither here nor downloadable",
                f"the files{f', or a download at {urls}' if urls else ', which have no URL'}",
                "put them into a folder, and list that folder in archives of the config",
            )


def closed(places: list[Path]) -> Iterator[Finding]:
    """Yield folders of `archives` that this user may not read, where preparing a dataset would fail."""
    found = [str(place) for place in places if not may_look_into(place)]
    if found:
        yield Finding(
            f"{', '.join(found)} in archives of the config, which you may not read",
            "folders that you may read",
            "ask their owner for access, or remove them from archives",
        )


def may_look_into(folder: Path) -> bool:
    """Return whether this user may see what a folder contains."""
    try:
        (folder / "any").stat()
    except PermissionError:
        return False
    except OSError:
        return True  # it does not exist
    return True


def reachable(url: str) -> bool:
    """Return whether a URL answers, or a file exists."""
    if not url.startswith(("http://", "https://")):
        return os.path.exists(Path(url.removeprefix("file://")).expanduser())
    try:
        with requests.get(url, stream=True, timeout=10) as answer:
            return answer.ok
    except requests.RequestException:
        return False


def missing(plan: Plan) -> list[str]:
    """Return the datasets of the plan that are not prepared yet."""
    data = plan.folders["data"]
    return [name for name in plan.datasets if not os.path.exists(data / name / "manifest.parquet")]


def images_of(plan: Plan, name: str) -> int:
    """Return the number of files that a dataset adds to `data`."""
    if is_packed(plan):
        return PACKED
    source = plan.config["sources"][name]
    options, times = source.get("options") or {}, source.get("times") or 1  # repeats samples, not files
    if "folder" in source:
        with suppress(GpufeedError):  # check `data` reports it
            return taken(Amount(images_in(source), 0, 0, 0), source).images // times
    return images_of(plan, options["of"]) if "of" in options else amount_of(plan.config, name).images // times


def images_in(source: Mapping) -> int:
    """Return the number of images in a source's folder, 0 without one; raise GpufeedError if unreadable."""
    return sum(map(is_image, files_below(Path(source["folder"]).expanduser()))) if "folder" in source else 0


def is_packed(plan: Plan) -> bool:
    """Return whether each dataset will be one archive."""
    return plan.config.get("data_form") == "packed"


def bytes_of(plan: Plan, name: str) -> int:
    """Return the bytes that a dataset adds to `data`, by its archives or by its images, whichever is more."""
    archives = sum(int(file.get("size") or 0) for file in plan.config["sources"][name].get("files") or [])
    amount = amount_of(plan.config, name)
    return max(ROOM * archives, amount.files + CACHES * 3 * amount.kept)


def count_files(folder: Path, most: int, seconds: float = COUNTING_S) -> tuple[int, bool]:
    """Return (files and folders below a folder, whether these are all); stop above `most` or in time."""
    end, count, rest = time.monotonic() + seconds, 0, [folder]
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(Path(entry.path))
        except OSError:
            continue  # removed meanwhile, or not readable
        if count > most or time.monotonic() > end:
            return count, not rest
    return count, True
