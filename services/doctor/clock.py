"""Whether this machine's clock is right; leases and commands go by it."""

from collections.abc import Iterator

from services.doctor.finding import CheckContext, Finding, Reporter
from services.doctor.kernel_clock import kernel_clock

_report = Reporter("clock")
#: What leases allow for, see `lease_margin_s` of the scheduler.
MARGIN_S = 60.0
#: Synchronised clocks differ by less, also with a store that rounds to seconds and answers late.
_WARN_S = 5.0


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
