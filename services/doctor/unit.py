"""Whether the installed service lets workers outlive the agent, and what cgroups give."""

import os
from collections.abc import Iterator
from pathlib import Path

from runtime.executors.cgroups import GANGS, gangs_cgroup, make_cgroup
from services.doctor.finding import CheckContext, Finding, Reporter
from services.install.layout import CONFIG, UNIT, UNIT_NAME
from services.install.systemd import booted

_report = Reporter("service")
_cgroups = Reporter("cgroups")
_AGAIN = "tidegate edge-agent install writes the unit anew"
#: Where cgroup v2 is, on every machine with systemd.
_CGROUPS = Path("/sys/fs/cgroup")


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the unit; a configuration that is not the installed one needs none."""
    unit = context.unit
    if unit is None:
        if context.file == CONFIG and booted():
            yield _report.problem(
                f"{CONFIG} is there, and no {UNIT_NAME} that would start an agent with it",
                "tidegate edge-agent install makes it",
            )
        return
    wrong = False
    if booted() and not unit.said:
        wrong = True
        yield _report.problem(
            f"systemd cannot load {UNIT_NAME}, or does not answer",
            f"see why: systemctl status {UNIT_NAME}; systemd-analyze verify {UNIT}; {_AGAIN}",
        )
    if (mode := unit.get("KillMode") or "control-group") != "process":
        wrong = True
        yield _report.problem(
            f"KillMode is {mode}: a restart of the agent would end all workers",
            f"set KillMode=process (systemctl edit {UNIT_NAME}); {_AGAIN}",
        )
    if (restart := unit.get("Restart") or "no") != "always":
        wrong = True
        yield _report.warning(
            f"Restart is {restart}: an agent that fails stays away",
            f"set Restart=always (systemctl edit {UNIT_NAME}); {_AGAIN}",
        )
    if unit.said and not unit.active:
        wrong = True
        state = f"{unit.get('ActiveState')} ({unit.get('SubState')})"
        yield _report.problem(
            f"the service is {state}",
            f"see why with journalctl -u {UNIT_NAME}, then systemctl start {UNIT_NAME}",
        )
    if unit.said.get("UnitFileState", "enabled") != "enabled":
        wrong = True
        yield _report.warning(
            f"the service does not start with the machine: it is {unit.get('UnitFileState')}",
            f"systemctl enable {UNIT_NAME}",
        )
    if not wrong:
        state = unit.get("ActiveState") or "installed"
        yield _report.ok(f"{UNIT_NAME} is {state}; workers outlive the agent (KillMode=process)")


def check_cgroups(context: CheckContext) -> Iterator[Finding]:
    """Try to make a cgroup as a gang would get it; where it is refused, gangs run without."""
    section = context.config.agent
    workers = section.workers
    if section.runs != "processes" or workers is None:
        return
    parent = gangs_cgroup()
    if context.unit is not None and parent != GANGS:
        group = context.unit.get("ControlGroup")
        if not group:
            return  # there is one only while the service runs
        parent = _CGROUPS / group.lstrip("/")
    made, notes = make_cgroup(
        parent, f"tidegate-doctor-{os.getpid()}", workers.memory_mib, workers.cpus
    )
    if made is not None:
        made.remove()
    why = "; ".join(note.removeprefix("cgroup: ") for note in notes)
    if made is None:
        limits = workers.memory_mib is not None or workers.cpus is not None
        lost = " memory_mib and cpus do not hold," if limits else ""
        yield _cgroups.warning(
            f"gangs run without a cgroup:{lost} and all processes of one are found by other means "
            f"({why})",
            "tidegate edge-agent install makes services in which there are cgroups, if the kernel "
            "has cgroup v2; in a container nothing need be done",
        )
    elif notes:
        yield _cgroups.warning(
            f"gangs run without limits that are set ({why})",
            f"tidegate edge-agent install makes {GANGS.name} for them if the agent is root; it "
            "takes a cgroup v2 with memory and cpu (cat /sys/fs/cgroup/cgroup.controllers)",
        )
    else:
        yield _cgroups.ok("gangs can have cgroups of their own")
