"""Whether this machine's clock can be relied on; leases and commands are in its time."""

from collections.abc import Iterator

from services.doctor.finding import Finding, Patient, Teller
from services.doctor.kernel_clock import kernel_clock

_tell = Teller("clock")
#: What leases allow for, see `lease_margin_s` of the scheduler.
MARGIN_S = 60.0
#: Clocks that are synchronised differ by less; stores round to seconds, and answer late.
_WORTH_A_WORD_S = 5.0


def look(_: Patient) -> Iterator[Finding]:
    """Ask the kernel."""
    found = kernel_clock()
    if found is None:
        yield _tell.warning(
            "the kernel does not tell whether the clock is synchronised",
            "see on the host: timedatectl",
        )
    elif not found.synchronised:
        yield _tell.warning(
            "the kernel says that nothing synchronises the clock",
            "run chrony or systemd-timesyncd here (in a container: on the host): timedatectl "
            "set-ntp true; a clock that is off by more than 60 s lets leases end too early or late",
        )
    else:
        yield _tell.ok(f"synchronised, off by at most {found.error_max_s:.1f} s, says the kernel")


def against(other: str, skew_s: float) -> Finding:
    """Judge how far this clock is ahead (above 0) or behind of another one."""
    way = "ahead of" if skew_s > 0 else "behind"
    said = f"{abs(skew_s):.0f} s {way} {other}"
    fix = (
        "synchronise both clocks (timedatectl set-ntp true): behind, an agent trains on when its "
        "lease has ended; ahead, it refuses commands and stops too early"
    )
    if abs(skew_s) > MARGIN_S:
        return _tell.problem(f"{said}; leases allow for {MARGIN_S:.0f} s", fix)
    if abs(skew_s) > _WORTH_A_WORD_S:
        return _tell.warning(f"{said}; leases allow for {MARGIN_S:.0f} s", fix)
    return _tell.ok(f"agrees with {other} to {max(1.0, abs(skew_s)):.0f} s")
