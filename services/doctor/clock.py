"""Whether this machine's clock is right; leases and commands go by it."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

from services.doctor.finding import CheckContext, Finding, Reporter

_report = Reporter("clock")
#: What leases allow for, see `lease_margin_s` of the scheduler.
MARGIN_S = 60.0
#: Synchronised clocks differ by less, also with a store that rounds to seconds and answers late.
_WARN_S = 5.0
#: Of adjtimex(2) and linux/timex.h.
_TIME_ERROR, _STA_UNSYNC = 5, 0x0040
_US = 1_000_000


def check(_: CheckContext) -> Iterator[Finding]:
    """Ask the kernel."""
    found = kernel_clock()
    if found is None:
        yield _report.warning(
            "the kernel does not tell whether the clock is synchronised",
            "see on the host: timedatectl",
        )
    elif not found.synchronised:
        yield _report.warning(
            "the kernel says that nothing synchronises the clock",
            "run chrony or systemd-timesyncd here (in a container: on the host): timedatectl "
            "set-ntp true; a clock that is off by more than 60 s lets leases end too early or late",
        )
    else:
        yield _report.ok(f"synchronised, off by at most {found.error_max_s:.1f} s, says the kernel")


def against(other: str, skew_s: float) -> Finding:
    """Judge by how much this clock is ahead of (above 0) or behind another one."""
    way = "ahead of" if skew_s > 0 else "behind"
    said = f"{abs(skew_s):.0f} s {way} {other}"
    fix = (
        "synchronise both clocks (timedatectl set-ntp true): behind, an agent trains on when its "
        "lease has ended; ahead, it refuses commands and stops too early"
    )
    if abs(skew_s) > MARGIN_S:
        return _report.problem(f"{said}; leases allow for {MARGIN_S:.0f} s", fix)
    if abs(skew_s) > _WARN_S:
        return _report.warning(f"{said}; leases allow for {MARGIN_S:.0f} s", fix)
    return _report.ok(f"agrees with {other} to {max(1.0, abs(skew_s)):.0f} s")


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
    asked = _Timex()  # with `modes` 0 it is only read, which everybody may
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    good = state != _TIME_ERROR and not asked.status & _STA_UNSYNC
    return KernelClock(good, asked.maxerror / _US)
