"""What the kernel thinks of its own clock: the only module that asks adjtimex(2).

Source: adjtimex(2) and linux/timex.h. With `modes` 0 it only reads, which everybody may.
"""

import ctypes
from dataclasses import dataclass

_TIME_ERROR, _STA_UNSYNC = 5, 0x0040
_US = 1_000_000


class _Timex(ctypes.Structure):
    """`struct timex` as far as it is read; the kernel writes 208 bytes on 64-bit machines."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's opinion."""

    synchronised: bool
    #: The most that it may be wrong, in seconds, as whoever disciplines it says.
    error_max_s: float


def kernel_clock() -> KernelClock | None:
    """Ask the kernel; None where it is not permitted."""
    asked = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    good = state != _TIME_ERROR and not asked.status & _STA_UNSYNC
    return KernelClock(good, asked.maxerror / _US)
