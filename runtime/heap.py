"""How the C library keeps memory that was freed."""

import ctypes

_M_MMAP_THRESHOLD, _LEAST_BYTES = -3, 2**20


def give_back_large_blocks() -> None:
    """Have glibc give each block of a MiB or more back to the system once it is freed.

    Of itself it raises that limit with each block that is freed, and then keeps several parts of a
    checkpoint (16 MiB each) for every thread that held one, for good. Another C library is left as
    it is. Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LEAST_BYTES)
