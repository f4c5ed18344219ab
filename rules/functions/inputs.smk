# What the jobs of a cell or a gate read. One function for all, since Snakemake asks each of them of every job.


def data_of(wildcards):
    """The manifest of a cell's or a gate's dataset, and what its loader reads."""
    dataset, loader = read_by(wildcards)
    folder, reads = f"{DATA}/{dataset}", LOADERS[loader].reads
    return {
        "manifest": f"{folder}/manifest.parquet",
        # strips may have left some over, shards have not
        "files": [] if reads in ("cache", "shards") else files_of(dataset),
        "cache": f"{folder}/cache/{config['cache_decoder']}.npy" if reads == "cache" else [],
        "strips": f"{folder}/strips/strips.bin" if reads == "strips" else [],
        "shards": f"{folder}/shards/shards.json" if reads == "shards" else [],
        "extension": EXTENSION if LOADERS[loader].extension else [],
    }


def needs_of(wildcards):
    """What a cell's training reads or waits for, beside the cell itself."""
    found = data_of(wildcards)
    return found | {"gate": gate_of(wildcards), "extension": found["extension"] or extension_of(wildcards)}


def read_by(wildcards):
    """(dataset, loader) behind a path, of a cell or of a gate."""
    place = wildcards if hasattr(wildcards, "loader") else cell_of(wildcards)
    return place.dataset, place.loader
