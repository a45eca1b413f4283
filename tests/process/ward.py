"""A configuration for the doctor to look at, and what its checks say of it."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from services.config import load
from services.doctor.finding import Check, CheckContext, Finding


@dataclass
class Ward:
    """A configuration to change, and what a check then says."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)

    def context(self, **more: Any) -> CheckContext:
        return CheckContext(load(None, [f"{k}={v}" for k, v in self.settings.items()]), **more)

    def says(self, check: Check, **more: Any) -> list[Finding]:
        return list(check(self.context(clock=SystemClock(), **more)))

    def only(self, check: Check, **more: Any) -> Finding:
        (found,) = self.says(check, **more)
        assert bool(found.fix) == (found.verdict != "ok")
        return found


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    for name in ("runs", "store"):
        (tmp_path / name).mkdir()
    return Ward(
        tmp_path,
        {
            "bus": f"sqlite:{tmp_path}/bus.db",
            "agent.name": "edge-17",
            "agent.state_file": tmp_path / "agent.db",
            "agent.gpus": 2,
            "agent.speed_factor": 1.0,
            "agent.runs": "processes",
            "agent.owner": "none",
            "agent.workers.isolation": "none",
            "agent.workers.folder": tmp_path / "runs",
            "agent.workers.checkpoints": f"file://{tmp_path}/store",
        },
    )


#: Root may write everywhere: then it is asked as a user without rights, once all is imported.
_AS_NOBODY = """
import importlib, json, os, sys
from bus.clock import SystemClock
from services.config import load
from services.doctor.finding import CheckContext
check = importlib.import_module("services.doctor." + sys.argv[1])
context = CheckContext(load(None, sys.argv[2:]), SystemClock())
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([[f.check, f.verdict, f.found, f.fix] for f in check.check(context)]))
"""


def as_nobody(ward: Ward, check: str) -> list[Finding]:
    """Give what a check of the doctor's finds as a user without rights."""
    flags = [f"{key}={value}" for key, value in ward.settings.items()]
    command = [sys.executable, "-c", _AS_NOBODY, check, *flags]
    done = subprocess.run(command, capture_output=True, check=True)
    return [Finding(*one) for one in json.loads(done.stdout)]
