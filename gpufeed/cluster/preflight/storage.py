"""Checks of scratch and data.

A user's quota on Lustre is what `lfs quota` prints: a row, broken after a long name, of

    FILESYSTEM kbytes quota limit grace files quota limit grace

with * behind what is too much, [] around what not all servers have reported, and 0 where there is no limit.
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
from gpufeed.core.image_listing import files_below, is_image

QUOTA_NUMBER = r"\s+\[?([0-9]{1,20})\]?\*?"
QUOTA_ROW = re.compile(rf"{QUOTA_NUMBER * 3}\s+\S+{QUOTA_NUMBER * 3}\s+\S+")
PACKED = 3  # the archive of a dataset, its sidecar and its manifest
ROOM = 4  # bytes of images, caches, strips and results for each byte of an archive, about
CACHES = 2  # of decoded pixels: the reference, and the loaders'
LEAST_GIB = 5
COUNTING_S = 20


def folders(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    if not is_there(site.scratch.folder):
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
    for key, folder in places_of(plan).items():
        there = existing(folder)
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            yield Finding(
                f"{key} in {folder}: you may not write into {there}",
                "a folder in which jobs of yours may make folders and files",
                "name another folder: {config}",
                note=key == "data" and not missing(plan),  # prepared by somebody else, caches included
                config={key: better.get(key, "FOLDER")},
            )


def places_of(plan: Plan) -> dict[str, Path]:
    """Folders of `data` and `results`, by key."""
    return {key: Path(plan.config[key]).expanduser().absolute() for key in ("data", "results")}


def outside_of_scratch(plan: Plan, site: Site) -> dict[str, Path]:
    """Those that lie outside of the site's scratch, links followed."""
    return {key: folder for key, folder in places_of(plan).items() if not below(folder, site.scratch.folder)}


def with_link_target(folder: Path) -> str:
    """The folder, and where links lead to."""
    resolved = folder.resolve()
    return str(folder) if resolved == folder else f"{folder} (that is, {resolved})"


def below(folder: Path, place: Path) -> bool:
    """Whether a folder lies in a place, links followed."""
    resolved = folder.resolve()
    return place.resolve() in (resolved, *resolved.parents)


def space(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    folder = existing(Path(plan.config["data"]).expanduser().absolute())
    needed = max(LEAST_GIB, sum(bytes_of(plan, name) for name in missing(plan)) / 2**30)
    free, what = room(folder)
    if free < needed:
        moves = "data" in outside_of_scratch(plan, site)  # `folders` names the better one then
        yield Finding(
            f"{free:.1f} GiB {what} in {folder}",
            f"{needed:.0f} GiB, for the images, their caches and stores, and results",
            "make room there, or name another folder: {config}",
            config={"data": f"{site.scratch.folder}/gpufeed/data" if moves else "FOLDER"},
        )


def room(folder: Path) -> tuple[float, str]:
    """(GiB that this user may still write there, what they are: free, or left of a quota)."""
    stat, quota = os.statvfs(folder), quota_of(folder)
    free = stat.f_bavail * stat.f_frsize / 2**30
    if quota and quota.most_kib is not None:
        left = max(0, quota.most_kib - quota.kib) / 2**20
        if left < free:
            return left, f"left of your quota of {quota.most_kib / 2**20:.1f} GiB"
    return free, "free"


@dataclass(frozen=True)
class Quota:
    """What a user has on a file system, and may have at most; None: no limit.

    kib, most_kib: of the files together. files, most_files: their number, folders included. Limits are the
    soft ones where there are any, since Lustre writes beyond them for a grace period alone.
    """

    kib: int
    most_kib: int | None
    files: int
    most_files: int | None


def quota_of(folder: Path) -> Quota | None:
    """This user's where a folder lies; None without Lustre and its command, or an answer within 20 s."""
    return read_quota(said_by("lfs", "quota", "-u", str(os.getuid()), str(folder)) or "")


def read_quota(said: str) -> Quota | None:
    """The first row of what `lfs quota` prints; None where there is none."""
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
            f"{there:,}{'' if whole else ' or more'} files in {site.scratch.folder}, {new:,} files to come",
            f"at most {most:,} files",
            "pack (tar) what is not in use there, or measure fewer datasets at a time"
            if packed
            else "pack (tar) what is not in use there, or keep each dataset as one archive, "
            "which jobs unpack on their nodes: {config}",
            config={} if packed else {"data_form": "packed"},
        )
    elif not whole:
        yield Finding(
            f"{there:,} files in {site.scratch.folder} after {COUNTING_S} s of counting, and more",
            f"at most {most:,}, the {new:,} files to come included",
            "see the whole number with pace-quota",
            note=True,
        )


def data(plan: Plan, site: Site, node: Node) -> Iterator[Finding]:
    """Archives are downloaded where snakemake runs, never by a compute node."""
    places = [Path(folder).expanduser() for folder in plan.config.get("archives") or []]
    names = missing(plan)
    yield from closed(places) if names else ()
    for name in names:
        try:
            images_in(plan.config["sources"][name])
        except GpufeedError as error:
            yield Finding(error.found, error.expected, error.remedy)
        own = Path(plan.config["data"]).expanduser() / name / "archives"
        files = [
            file
            for file in plan.config["sources"][name].get("files") or []
            if not any(is_there(place / file["name"]) for place in (own, *places))
            and not any(reachable(url) for url in file.get("urls", ()))
        ]
        if files:
            urls = ", ".join(files[0].get("urls", ()))
            yield Finding(
                f"{', '.join(file['name'] for file in files)} of {name}: neither here nor reachable",
                f"the files{f', or an answer at {urls}' if urls else ', which have no address'}",
                "put them into a folder of yours and name that folder in archives of the config",
            )


def closed(places: list[Path]) -> Iterator[Finding]:
    """Folders of archives that this user may not look into: preparing a dataset would end there."""
    found = [str(place) for place in places if not may_look_into(place)]
    if found:
        yield Finding(
            f"{', '.join(found)} in archives of the config, not readable to you",
            "folders that you may look into",
            "ask their owner for access, or take them out of archives",
        )


def may_look_into(folder: Path) -> bool:
    """Whether this user learns what is there and what is not."""
    try:
        (folder / "any").stat()
    except PermissionError:
        return False
    except OSError:
        return True  # there is nothing
    return True


def is_there(path: Path) -> bool:
    """Whether it is there, as far as this user may look."""
    try:
        return path.exists()
    except OSError:
        return False


def reachable(url: str) -> bool:
    """Whether there is an answer at an address, or a file at a path."""
    if not url.startswith(("http://", "https://")):
        return is_there(Path(url.removeprefix("file://")).expanduser())
    try:
        with requests.get(url, stream=True, timeout=10) as answer:
            return answer.ok
    except requests.RequestException:
        return False


def missing(plan: Plan) -> list[str]:
    """Datasets of the plan that are not prepared yet."""
    return [
        name for name in plan.datasets if not is_there(Path(plan.config["data"]) / name / "manifest.parquet")
    ]


def images_of(plan: Plan, name: str) -> int:
    """Files that a dataset comes to in `data`."""
    if is_packed(plan):
        return PACKED
    source = plan.config["sources"][name]
    options, times = source.get("options") or {}, source.get("times") or 1  # which repeats no file
    if "folder" in source:
        with suppress(GpufeedError):  # `data` tells it
            return taken(Amount(images_in(source), 0, 0, 0), source).images // times
    return images_of(plan, options["of"]) if "of" in options else amount_of(plan.config, name).images // times


def images_in(source: Mapping) -> int:
    """Images in the folder of a source, 0 without one; raises GpufeedError where it cannot be read."""
    return sum(map(is_image, files_below(Path(source["folder"]).expanduser()))) if "folder" in source else 0


def is_packed(plan: Plan) -> bool:
    """Whether each dataset is to be one archive."""
    return plan.config.get("data_form") == "packed"


def bytes_of(plan: Plan, name: str) -> int:
    """Bytes that a dataset comes to in `data`, by its archives or by its images, whatever is more."""
    archives = sum(int(file.get("size") or 0) for file in plan.config["sources"][name].get("files") or [])
    amount = amount_of(plan.config, name)
    return max(ROOM * archives, amount.files + CACHES * 3 * amount.kept)


def existing(folder: Path) -> Path:
    """The folder, or its nearest parent that is there."""
    return next(place for place in (folder, *folder.parents) if is_there(place))


def count_files(folder: Path, most: int, seconds: float = COUNTING_S) -> tuple[int, bool]:
    """(files and folders below a folder, whether these are all). Ends above `most` or after `seconds`."""
    end, count, rest = time.monotonic() + seconds, 0, [folder]
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(Path(entry.path))
        except OSError:
            continue  # gone meanwhile, or not ours to read
        if count > most or time.monotonic() > end:
            return count, not rest
    return count, True
