"""Runs all checks at the same time; one that hangs or fails does not stop the others."""

import threading
import time
from collections.abc import Mapping, Sequence

from services.doctor import (
    bus,
    certificates,
    clock,
    configuration,
    disk,
    gpus,
    obedience,
    owner,
    permissions,
    store,
    unit,
)
from services.doctor.finding import Check, CheckContext, Finding, Reporter

#: A check that takes longer than this is reported as a problem.
LIMIT_S = 10.0
#: In the order in which they are shown.
CHECKS: Mapping[str, Check] = {
    "configuration": configuration.check,
    "bus": bus.check,
    "certificates": certificates.check,
    "clock": clock.check,
    "gpu": gpus.check,
    "owner": owner.check,
    "store": store.check,
    "disk": disk.check,
    "permissions": permissions.check,
    "cgroups": unit.check_cgroups,
    "service": unit.check,
    "agent": obedience.check,
}


def run_checks(
    context: CheckContext, checks: Mapping[str, Check] = CHECKS, limit_s: float = LIMIT_S
) -> list[Finding]:
    """Give what all checks find; one that does not end within the limit is a problem itself."""
    running = [_Running(name, check, context) for name, check in checks.items()]
    end_s = time.monotonic() + limit_s  # noqa: TID251  of waiting, not of the world
    found: list[Finding] = []
    for one in running:
        found += one.findings(max(0.0, end_s - time.monotonic()), limit_s)  # noqa: TID251
    order = list(checks)
    return sorted(found, key=lambda finding: order.index(finding.check))


def worst(findings: Sequence[Finding]) -> int:
    """Give the exit code: 1 if there is a problem, else 0."""
    return int(any(finding.verdict == "problem" for finding in findings))


class _Running:
    """One check in a thread of its own, which is abandoned if it hangs."""

    def __init__(self, name: str, check: Check, context: CheckContext) -> None:
        self._name, self._found = name, list[Finding]()
        self._thread = threading.Thread(target=self._run, args=(check, context), daemon=True)
        self._thread.start()

    def _run(self, check: Check, context: CheckContext) -> None:
        try:
            for finding in check(context):
                self._found.append(finding)
        except Exception as error:  # noqa: BLE001  a check that fails must not hide the others
            found = f"this could not be checked: {type(error).__name__}: {error}"
            fix = "report it, with the configuration; secrets taken out"
            if isinstance(error, OSError) and error.filename:
                found = f"{error.filename}: {error.strerror}"
                fix = "name another in the configuration, or see why this machine cannot use it"
            self._found.append(Reporter(self._name).problem(found, fix))

    def findings(self, wait_s: float, limit_s: float) -> list[Finding]:
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            return self._found
        late = Reporter(self._name).problem(
            f"no answer within {limit_s:.0f} s",
            "see whether what it names hangs: a disk of another machine, or a network",
        )
        return [*self._found, late]
