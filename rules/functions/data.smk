# Where datasets come from, and how they lie in `data`.

from gpufeed.data.listing import NAMES, files_below, names_digest
from gpufeed.experiment import source_options
from gpufeed.registry import DERIVED

PACKED = config["data_form"] == "packed"


def files_written():
    """How the files of a prepared dataset lie in `data`."""
    images = f"{DATA}/{{dataset}}/images"
    if PACKED:
        return {"images": f"{images}.tar", "sidecar": f"{images}.json"}
    return {"images": directory(images)}


def files_of(dataset):
    """What a job that reads a dataset's files waits for beside the manifest: the archive where they are packed."""
    return [f"{DATA}/{dataset}/images.tar"] if PACKED else []


def archives_of(wildcards):
    """What a layout reads: the source's files, or the manifest of the dataset that it is made of."""
    room_checked(wildcards.dataset)
    if config["sources"][wildcards.dataset]["layout"] in DERIVED:
        return f"{DATA}/{source_options(config, wildcards.dataset)['of']}/manifest.parquet"
    files = config["sources"][wildcards.dataset].get("files", [])
    return [f"{DATA}/{wildcards.dataset}/archives/{file['name']}" for file in files]


def folder_of(wildcards):
    """A source's folder of images and a digest of their names, so that other ones are prepared anew; None without."""
    if not (folder := config["sources"][wildcards.dataset].get("folder")):
        return None
    path = Path(folder).expanduser()
    try:
        return {"path": str(path), NAMES: names_digest(files_below(path))}
    except GpufeedError as error:
        raise WorkflowError(f"dataset {wildcards.dataset} cannot be prepared\n{error}")


def files_made_of(wildcards):
    """The files of the dataset that a layout is made of."""
    source = config["sources"][wildcards.dataset]
    return files_of(source_options(config, wildcards.dataset)["of"]) if source["layout"] in DERIVED else []


def content_of(wildcards):
    """What makes a source file what it is. Where it comes from is not part of it: see download.py."""
    for file in config["sources"][wildcards.dataset].get("files", []):
        if file["name"] == wildcards.file:
            return {key: file.get(key) for key in ("name", "sha256", "size")}
    raise WorkflowError(f"found: no file {wildcards.file} in sources.{wildcards.dataset}")
