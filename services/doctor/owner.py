"""Whether the owner's hooks can be run, and the pages answer that its load is read from."""

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runtime.http_client import HttpError
from runtime.metering.fetch import fetch
from runtime.owners.hooks import HookOptions
from services.doctor.finding import CheckContext, Finding, Reporter
from services.install.layout import STATE
from services.machine_sections import OwnerSection, ServerSection

_report = Reporter("owner")
#: A page of metrics comes within this long, or its server counts as silent.
_ANSWER_S = 2.0
#: So many pages are asked at the same time.
_AT_ONCE = 16
_HOOKS = ("drain", "hand_back", "confirm_drain", "confirm_hand_back")


def check(context: CheckContext) -> Iterator[Finding]:
    """Look for the commands of `[agent.owner.hooks]`, and ask the servers of `[agent.load]`."""
    section = context.config.agent
    if isinstance(section.owner, OwnerSection) and section.owner.hooks is not None:
        # A relative path is relative to the folder that the agent starts in.
        folder = Path() if context.unit is None else STATE
        yield from _of_hooks(section.owner.hooks, folder, section.nodes or (section.name,))
    if section.load is not None:
        yield from _of_servers(section.load.server)


def _of_hooks(hooks: HookOptions, folder: Path, nodes: Sequence[str | None]) -> Iterator[Finding]:
    wrong = 0
    for name in _HOOKS:
        command: tuple[str, ...] = getattr(hooks, name)
        # Each node may have its own; an agent that has no name yet has no node.
        words = [word.replace("{node}", node) for word in command[:1] for node in nodes if node]
        for word in dict.fromkeys(words):
            said = _complaint(word, folder)
            if said is not None:
                wrong += 1
                yield _report.problem(f"agent.owner.hooks.{name}: {word} {said[0]}", said[1])
    if not wrong:
        yield _report.ok("the commands of its hooks are there")


def _complaint(word: str, folder: Path) -> tuple[str, str] | None:
    """Say what keeps a command from being run, and what to do; None: nothing does."""
    if "/" not in word:
        if shutil.which(word) is not None:
            return None
        return "is in no folder of PATH", "install it, or give its full path"
    path = folder / word
    if not os.access(path, os.F_OK):
        return "was not found", "correct the path, or install what it names"
    if not path.is_file():
        return "is no file", "name the command itself"
    if not os.access(path, os.X_OK):
        return "may not be run by the agent's user", f"make it executable: chmod a+x {path}"
    return None


def _of_servers(servers: tuple[ServerSection, ...]) -> Iterator[Finding]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        silent = list(pool.map(_silence, servers))
    for number, (server, said) in enumerate(zip(servers, silent, strict=True)):
        if said is None:
            continue
        lent = "" if server.node is None else f"; while {server.node} is lent, it may be down"
        yield _report.warning(
            f"agent.load.server.{number}.url ({server.name}): {said}",
            f"start the server, or correct the address of its metrics{lent}",
        )
    if not any(silent):
        count = len(servers)
        yield _report.ok(f"the metrics of {count} of {count} servers can be read")


def _silence(server: ServerSection) -> str | None:
    """Say why a server's page cannot be read; None: it can."""
    try:
        fetch(server.url, _ANSWER_S)
    except HttpError as error:
        return str(error)
    return None
