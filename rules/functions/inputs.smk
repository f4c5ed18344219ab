# What the jobs of a cell or a gate read. One function for all, which names nothing that a job does not read, since
# Snakemake asks each function, and goes through each name, of every job.

# What loaders read beside the manifest, in the folder of the dataset.
BUILT = {
    "cache": f"cache/{config['cache_decoder']}.npy",
    "strips": "strips/strips.bin",
    "shards": "shards/shards.json",
    "beton": "beton/images.beton",
}


def data_of(wildcards):
    """The manifest of a cell's or a gate's dataset, and what its loader reads."""
    dataset, loader = read_by(wildcards)
    folder, reads = f"{DATA}/{dataset}", LOADERS[loader].reads
    found = {"manifest": f"{folder}/manifest.parquet"}
    if reads in BUILT:
        found[reads] = f"{folder}/{BUILT[reads]}"
    if PACKED and reads in ("files", "strips"):  # strips may have left some over, shards have not
        found["files"] = files_of(dataset)
    if LOADERS[loader].extension:
        found["extension"] = EXTENSION
    return found


def needs_of(wildcards):
    """What a cell's training reads or waits for, beside the cell itself."""
    waits = {"gate": gate_of(wildcards), "extension": extension_of(wildcards)}
    return data_of(wildcards) | {name: path for name, path in waits.items() if path}


def needs_of_repeat(wildcards):
    """As needs_of; a second record waits for the first, and is made again where that is."""
    needs, first = needs_of(wildcards), wildcards.repeat.removesuffix(AGAIN)
    if first != wildcards.repeat:
        needs["first"] = f"{RESULTS}/records/{wildcards.experiment}/{wildcards.cell}/{first}.json"
    return needs


def read_by(wildcards):
    """(dataset, loader) behind a path, of a cell or of a gate."""
    place = wildcards if hasattr(wildcards, "loader") else cell_of(wildcards)
    return place.dataset, place.loader
