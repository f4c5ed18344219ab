"""Tile sizes of each kernel by length and head width. They are constants: nothing is tuned at run time.

They were chosen by ptxas's output for sm_90 (docs/lab/transformers.md): wgmma in every product, and no
spills. The exception is the backward of 65 to 128 tokens in heads of 128 (at most 56 bytes). For the shape of
vit_tiny, tests/bench/attention.py times FORWARDS and BACKWARDS next to torch's kernels, and the fastest on an
H200 was chosen. With heads of 128, turned tiles of 16 or 32 queries in one stage gave a wrong dq there
(Triton 3.6). One of 16 accessed memory out of bounds. tests/cuda/test_cuda_attention.py checks every choice.
Standard library only: used while planning.
"""

from dataclasses import dataclass

from gpufeed.core.vit_options import WIDTHS

MOST_TOKENS = 512
WHOLE = 256  # longest row of scores that is one tile


@dataclass(frozen=True)
class Tile:
    """rows: queries, columns: keys; both are powers of two.

    each: tiles of queries that a forward program computes with the keys that it holds. turned: see
    kernels.backward_keys.
    """

    rows: int
    columns: int
    warps: int
    stages: int = 1
    each: int = 1
    turned: bool = False

    def holds(self, tokens: int) -> bool:
        """Return whether all keys fit into one tile."""
        return tokens <= self.columns


@dataclass(frozen=True)
class Configuration:
    """The tiles for one length and width.

    queries None: backward_keys also computes dq (five products, not seven).
    """

    forward: Tile
    keys: Tile
    queries: Tile | None = None


def split(width: int) -> Configuration:
    """Return the kernels that split the keys into tiles, which work for every length."""
    if width == 128:
        return Configuration(Tile(128, 64, 8, 2), Tile(32, 128, 8, 2), Tile(128, 64, 8, 2))
    return Configuration(Tile(128, 128, 8, 2), Tile(64, 128, 8, 2), Tile(128, 64, 8, 2))


# (longest sequence, width of a head) -> the kernels
CHOSEN = {
    (64, 16): Configuration(Tile(64, 64, 4), Tile(64, 64, 4)),
    (64, 32): Configuration(Tile(64, 64, 4), Tile(64, 64, 4)),
    (64, 64): Configuration(Tile(64, 64, 4), Tile(64, 64, 4)),
    (64, 128): Configuration(Tile(64, 64, 4), Tile(64, 64, 8)),
    (128, 16): Configuration(Tile(64, 128, 4), Tile(64, 128, 8)),
    (128, 32): Configuration(Tile(64, 128, 4), Tile(64, 128, 8)),
    (128, 64): Configuration(Tile(64, 128, 4), Tile(64, 128, 8)),
    (128, 128): Configuration(Tile(128, 128, 8), Tile(64, 128, 8)),
    (WHOLE, 16): Configuration(Tile(64, WHOLE, 4), Tile(64, WHOLE, 8)),
    (WHOLE, 32): Configuration(Tile(64, WHOLE, 4), Tile(64, WHOLE, 8)),
    (WHOLE, 64): Configuration(Tile(64, WHOLE, 4, 2, each=4), Tile(32, WHOLE, 8, 2, turned=True)),
    (WHOLE, 128): Configuration(Tile(128, WHOLE, 8), split(128).keys, split(128).queries),
    **{(MOST_TOKENS, width): split(width) for width in WIDTHS},
}

# Candidates for vit_tiny's 256 tokens in heads of 64, timed on a GPU: forward and backward separately.
FORWARDS = {
    "64x256, 4 warps": Tile(64, 256, 4),
    "64x256, 4 warps, keys held": Tile(64, 256, 4, 2, each=4),
    "128x256, 8 warps": Tile(128, 256, 8),
    "128x256, 8 warps, keys held": Tile(128, 256, 8, 2, each=2),
    "128x128 running, 8 warps": split(64).forward,
}
BACKWARDS = {
    "whole 32, turned, 8 warps": (Tile(32, 256, 8, turned=True), None),
    "whole 32, turned, 8 warps, 2 stages": (Tile(32, 256, 8, 2, turned=True), None),
    "whole 32, 8 warps": (Tile(32, 256, 8), None),
    "whole 32, turned, 16 warps": (Tile(32, 256, 16, turned=True), None),
    "whole 16, turned, 8 warps, 2 stages": (Tile(16, 256, 8, 2, turned=True), None),
    "split 64x128 and 128x64, 8 warps": (Tile(64, 128, 8, 2), Tile(128, 64, 8, 2)),
    "split 64x64, 4 warps": (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    "split 64x128, 8 and 4 warps": (Tile(64, 128, 8, 2), Tile(64, 128, 4, 2)),
}


def choose(tokens: int, width: int) -> Configuration:
    """Return the kernels for a number of tokens (1 to MOST_TOKENS) in heads of a width in WIDTHS."""
    return next(chosen for (most, of), chosen in CHOSEN.items() if of == width and tokens <= most)
