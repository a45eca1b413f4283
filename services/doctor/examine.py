"""Runs all checks side by side; none can hold up the others, or us."""

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
    permissions,
    store,
    unit,
)
from services.doctor.finding import Finding, Look, Patient, Teller

#: Longer than this nothing takes that is well.
LIMIT_S = 10.0
#: In the order in which they are shown.
CHECKS: Mapping[str, Look] = {
    "configuration": configuration.look,
    "bus": bus.look,
    "certificates": certificates.look,
    "clock": clock.look,
    "gpu": gpus.look,
    "store": store.look,
    "disk": disk.look,
    "permissions": permissions.look,
    "cgroups": unit.look_at_cgroups,
    "service": unit.look,
}


def examine(
    patient: Patient, checks: Mapping[str, Look] = CHECKS, limit_s: float = LIMIT_S
) -> list[Finding]:
    """Give what all checks find; one that does not end within the limit is a problem itself."""
    running = [_Running(name, look, patient) for name, look in checks.items()]
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
    """One check in a thread of its own, which is left behind if it hangs."""

    def __init__(self, name: str, look: Look, patient: Patient) -> None:
        self._name, self._found = name, list[Finding]()
        self._thread = threading.Thread(target=self._run, args=(look, patient), daemon=True)
        self._thread.start()

    def _run(self, look: Look, patient: Patient) -> None:
        try:
            for finding in look(patient):
                self._found.append(finding)
        except Exception as error:  # noqa: BLE001  a check that fails must not hide the others
            self._found.append(
                Teller(self._name).problem(
                    f"this could not be looked at: {type(error).__name__}: {error}",
                    "report it, with the configuration; secrets taken out",
                )
            )

    def findings(self, wait_s: float, limit_s: float) -> list[Finding]:
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            return self._found
        late = Teller(self._name).problem(
            f"no answer within {limit_s:.0f} s",
            "see whether what it names hangs: a disk of another machine, or a network",
        )
        return [*self._found, late]
