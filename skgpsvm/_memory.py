"""Set how many rows of a pass, and numbers of a matrix, are in memory at a time."""

CHUNK_ROWS = 4096  # rows of a pass over all rows
# Numbers in a block: 512 KiB, 4 MiB and 32 MiB in double precision. The small one fits the cache of
# a processor core, for results of many elementwise operations. The second one fits the cache that
# cores share, for matrices that are used once. The large one bounds the memory alone.
SMALL_BLOCK, CACHED_BLOCK, LARGE_BLOCK = 2**16, 2**19, 2**22
_DEVICE_BLOCKS = 16  # cached blocks at a time on other devices, which one would leave idle
HELD_BYTES = 2**28  # of rows, or of their features, that are kept for further passes
HELD_VALUE_BYTES = 2**26  # the same of values of functions, which are cheaper to compute again


def block_rows(width, size, min_rows=1):
    """Return the number of rows of a block of ``size`` numbers, at least ``min_rows``.

    A row has ``width`` numbers.
    """
    return max(size // max(width, 1), min_rows)


def n_cached_blocks(device):
    """Return how many blocks of `CACHED_BLOCK` numbers are computed at a time on a device."""
    return 1 if device.type == "cpu" else _DEVICE_BLOCKS
