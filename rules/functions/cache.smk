# What builds a cache.


def strips_for_cache(wildcards):
    return f"{DATA}/{wildcards.dataset}/strips/strips.bin" if wildcards.decoder == "strips" else []
