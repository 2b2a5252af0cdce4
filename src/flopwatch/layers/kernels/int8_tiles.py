"""The shapes in which GPUs compute int8 matmuls: what tuning tries, by the GPU's architecture.

Each fits into the registers and the shared memory of its architecture, as compiling shows
(`benchmarks/kernels.py`). sm_90 and sm_100 leave operands in shared memory, of which they have
most, and can copy whole tiles into it (TMA); sm_120 and its like have least of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """The result is computed in tiles of m x n, from k of the inner dimension at a time."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    splits: int = 1
    """Programs that share the inner dimension of a tile: for few tokens, whose tiles alone would
    leave most of the GPU idle."""
    persistent: bool = False
    """As many programs as fit at once go through all tiles, which are copied by TMA."""

    def __str__(self) -> str:
        words = [f"{self.m}x{self.n}x{self.k}", f"{self.stages} stages", f"{self.warps} warps"]
        if self.splits > 1:
            words.append(f"{self.splits} splits")
        if self.persistent:
            words.append("persistent")
        return ", ".join(words)


SHORTEST_SIDE = 64
"""Of a tile, for the narrowest matrix too."""
MULTIPLE = 16
"""Of the result's columns where programs stay: odd rows take more registers to write than are left
beside the next tile."""

TILES: dict[str, tuple[Tile, ...]] = {
    "sm_80": (
        Tile(128, 256, 64, 4, 8),
        Tile(256, 128, 64, 4, 8),
        Tile(128, 128, 128, 4, 8),
        Tile(128, 128, 64, 4, 4),
        Tile(128, 64, 64, 5, 4),
        Tile(64, 128, 64, 5, 4),
        Tile(64, 64, 128, 5, 4),
        Tile(64, 64, 128, 4, 4, splits=4),
        Tile(64, 64, 128, 4, 4, splits=16),
    ),
    "sm_90": (
        Tile(128, 256, 128, 3, 8, persistent=True),
        Tile(128, 128, 128, 4, 8, persistent=True),
        Tile(128, 256, 64, 4, 8),
        Tile(128, 256, 128, 4, 8),
        Tile(128, 128, 128, 4, 8),
        Tile(128, 128, 64, 4, 4),
        Tile(128, 128, 128, 3, 4),
        Tile(64, 256, 128, 3, 4),
        Tile(128, 64, 64, 5, 4),
        Tile(64, 128, 64, 5, 4),
        Tile(64, 64, 128, 5, 4),
        Tile(64, 64, 128, 4, 4, splits=4),
        Tile(64, 64, 128, 4, 4, splits=16),
    ),
    "sm_100": (
        Tile(128, 256, 64, 4, 8, persistent=True),
        Tile(128, 128, 128, 4, 8, persistent=True),
        Tile(128, 256, 64, 4, 8),
        Tile(128, 128, 128, 4, 8),
        Tile(128, 128, 64, 4, 4),
        Tile(128, 64, 64, 5, 4),
        Tile(64, 128, 64, 5, 4),
        Tile(64, 64, 128, 5, 4),
        Tile(64, 64, 128, 4, 4, splits=4),
        Tile(64, 64, 128, 4, 4, splits=16),
    ),
    "sm_120": (
        Tile(128, 256, 64, 3, 8),
        Tile(128, 128, 128, 2, 8),
        Tile(128, 128, 64, 4, 8),
        Tile(128, 128, 64, 3, 4),
        Tile(128, 64, 64, 4, 4),
        Tile(64, 128, 64, 4, 4),
        Tile(64, 64, 128, 4, 4),
        Tile(64, 64, 128, 3, 4, splits=4),
        Tile(64, 64, 128, 3, 4, splits=16),
    ),
    "gfx942": (
        Tile(256, 256, 64, 2, 8),
        Tile(256, 128, 64, 2, 8),
        Tile(128, 256, 64, 2, 8),
        Tile(128, 128, 128, 2, 4),
        Tile(128, 128, 64, 2, 4),
        Tile(128, 64, 128, 2, 4),
        Tile(64, 128, 128, 2, 4),
        Tile(64, 64, 128, 2, 4),
        Tile(64, 64, 128, 2, 4, splits=4),
        Tile(64, 64, 128, 2, 4, splits=16),
    ),
}
SMALL_SM_80 = (86, 89)
"""They multiply like sm_80, and have no more shared memory than sm_120."""


def find_architecture(backend: str, number: int | str) -> str:
    """The key of TILES for what Triton calls a target.

    >>> [find_architecture("cuda", number) for number in (80, 89, 90, 103, 121)]
    ['sm_80', 'sm_120', 'sm_90', 'sm_100', 'sm_120']
    >>> find_architecture("hip", "gfx950")
    'gfx942'
    """
    if backend == "hip":
        return "gfx942"
    if not isinstance(number, int) or number in SMALL_SM_80:
        return "sm_120"  # what fits there fits everywhere
    return f"sm_{max(lowest for lowest in (80, 90, 100, 120) if lowest <= max(number, 80))}"


def list_tiles(
    architecture: str, m: int, n: int, k: int, *, processors: int, contiguous: bool
) -> list[Tile]:
    """What is tried for m x n results over k; `contiguous`: b's columns lie in one piece each.

    Without tiles that would be more than half empty, and those that share the inner dimension only
    where tiles are too few and it is long enough.
    """
    return [
        tile
        for tile in TILES[architecture]
        if tile.m <= max(SHORTEST_SIDE, round_up(m))
        and tile.n <= max(SHORTEST_SIDE, round_up(n))
        and _suits(tile, m, n, k, processors=processors, contiguous=contiguous)
    ]


def _suits(tile: Tile, m: int, n: int, k: int, *, processors: int, contiguous: bool) -> bool:
    tiles = -(-m // tile.m) * -(-n // tile.n)
    if tile.persistent:
        return contiguous and n % MULTIPLE == 0 and k >= tile.k and tiles >= processors
    return tile.splits == 1 or (2 * tiles <= processors and k >= 2 * tile.splits * tile.k)


def round_up(number: int) -> int:
    """To a power of 2.

    >>> [round_up(number) for number in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << (number - 1).bit_length()
