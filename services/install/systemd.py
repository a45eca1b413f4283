"""A thin wrapper of systemctl, so that everything else can be tested without it."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.install.layout import UNIT, UNIT_NAME, Layout

#: The timeout of systemctl: a stop waits until the agent has published its last messages.
_ANSWER_S, _STOP_S = 10.0, 90.0
_ASKED = (
    *("LoadState", "ActiveState", "SubState", "UnitFileState", "NRestarts"),
    *("KillMode", "Restart", "Delegate", "User", "ControlGroup", "Result"),
)


class SystemdError(ValueError):
    """systemctl failed; the text is its own."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is known of the installed unit."""

    #: What systemd says by the names of systemctl(1); empty where it does not run this machine.
    said: Mapping[str, str]
    #: The unit's file, with what was added to it.
    text: str

    def get(self, name: str) -> str:
        """Give a property: from systemd, else the last one in the file; empty if none."""
        if name in self.said:
            return self.said[name]
        lines = [line.strip() for line in self.text.splitlines()]
        given = [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]
        return given[-1].strip() if given else ""

    @property
    def active(self) -> bool:
        """Whether systemd counts the agent as active; one in a restart loop is not."""
        going = self.said.get("ActiveState") in ("active", "activating", "reloading")
        return going and self.said.get("SubState") != "auto-restart"


def booted() -> bool:
    """Whether systemd runs this machine; the test is that of sd_booted(3)."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def find_unit(layout: Layout) -> Unit | None:
    """Look for the installed unit; None if there is none."""
    file = layout.here(UNIT)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    for added in sorted(file.with_name(file.name + ".d").glob("*.conf")):
        try:
            text += "\n" + added.read_text(encoding="utf-8")
        except OSError:
            continue
    return Unit(_shown() if booted() and not layout.staged else {}, text)


def _shown() -> dict[str, str]:
    try:
        text = systemctl("show", f"--property={','.join(_ASKED)}", UNIT_NAME)
    except SystemdError:
        return {}
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return said if said.get("LoadState") == "loaded" else {}


def systemctl(*words: str) -> str:
    """Run it and give what it says.

    Raises:
        SystemdError: it failed, or did not answer.
    """
    program = shutil.which("systemctl") or "systemctl"
    stops = words[0] in ("stop", "restart") or "--now" in words
    wait_s = _STOP_S if stops else _ANSWER_S
    command = f"systemctl {' '.join(words)}"
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, timeout=wait_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise SystemdError(f"{command}: no answer within {wait_s:.0f} s; see journalctl") from None
    except OSError as error:
        raise SystemdError(f"{command}: {error.strerror}") from None
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise SystemdError(f"{command}: {why}; see journalctl -u {UNIT_NAME}")
    return done.stdout
