"""A lender whose deeds are commands: drain and hand-back hooks, and commands that confirm them.

A deed is done when its hook has left with status 0 and then, if there is one, the confirming
command has too. Hooks are repeated after failures and after a crash of the agent, so they must
bear it. One that a crash left behind is ended before its node's next hook begins.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.owners.lender import POLL_S, Deed, Outcome, filled
from runtime.owners.processes import (
    Child,
    Ending,
    Identity,
    bound_log,
    is_alive,
    last_line,
    recorded,
    start,
)


@dataclass(frozen=True, slots=True)
class HookOptions:
    """Commands, as argument lists in which `{node}` is replaced; no shell reads them."""

    #: Makes the owner leave a node.
    drain: tuple[str, ...]
    #: Brings it back.
    hand_back: tuple[str, ...]
    #: Run again and again until it leaves with 0; empty: the hook's own 0 is enough.
    confirm_drain: tuple[str, ...] = ()
    #: The same after a hand-back.
    confirm_hand_back: tuple[str, ...] = ()
    #: How long a hook may take.
    timeout_s: float = 120.0
    #: How long the confirmation may take after that, all tries together.
    confirm_timeout_s: float = 120.0
    #: Between two tries to confirm.
    confirm_every_s: float = 2.0
    #: Between SIGTERM and SIGKILL of a hook that takes too long or is no longer wanted.
    kill_after_s: float = 5.0
    #: Of each node's log, which hooks' output goes to.
    log_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("drain", "hand_back"):
            if not getattr(self, name):
                raise ValueError(f"{name}: name a command, as a list of its arguments")
        for name in ("timeout_s", "confirm_timeout_s", "confirm_every_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be positive")
        if self.kill_after_s < 0 or self.log_bytes < 1024:
            raise ValueError("kill_after_s: must not be negative; log_bytes: at least 1024")

    def commands(self, deed: Deed) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Give the hook of a deed and the command that confirms it."""
        if deed == "drain":
            return self.drain, self.confirm_drain
        return self.hand_back, self.confirm_hand_back


#: The steps of a deed: each says when to go on; in the end, what is wrong, or "" if nothing is.
_Steps = Generator[float, None, str]


class _Node:
    """What runs for one node: one command at a time, and a log."""

    def __init__(self, name: str, options: HookOptions, folder: Path) -> None:
        self._name = name
        self._options = options
        self._record = folder / f"{name}.hook.json"
        self._log = folder / f"{name}.log"
        self._deed: Deed | None = None
        self._steps: _Steps | None = None
        self._child: Child | None = None
        self._now_s = 0.0
        self.due_s = math.inf

    def begin(self, deed: Deed, now_s: float) -> None:
        if self._deed != deed:
            self._deed, self._steps, self.due_s = deed, self._all(deed), now_s

    def poll(self, now_s: float) -> Outcome | None:
        if self._deed is None or self._steps is None or now_s < self.due_s:
            return None
        self._now_s = now_s
        try:
            self.due_s = next(self._steps)
        except StopIteration as end:
            deed, self._deed, self.due_s = self._deed, None, math.inf
            return Outcome(self._name, deed, end.value and f"{deed} hook: {end.value}")
        finally:
            bound_log(self._log, self._options.log_bytes)
        return None

    def _all(self, deed: Deed) -> _Steps:
        options = self._options
        hook, confirm = options.commands(deed)
        # Of the deed before, or of an agent that was killed: two hooks at once would quarrel.
        # If it has left, what it started may be the owner's server; that is not ours to end.
        last = recorded(self._record)
        if last is not None and is_alive(last):
            yield from self._end(last)
        error = yield from self._run(hook, self._now_s + options.timeout_s)
        until_s = self._now_s + options.confirm_timeout_s
        while confirm and not error:
            wrong = yield from self._run(confirm, until_s)
            if not wrong:
                break
            if self._now_s + options.confirm_every_s < until_s:
                yield self._now_s + options.confirm_every_s
            else:
                error = f"not confirmed within {options.confirm_timeout_s:g} s: {wrong}"
        return error

    def _run(self, template: Sequence[str], until_s: float) -> _Steps:
        """Run a command to its end or the time limit; return what is wrong with it."""
        argv = filled(template, node=self._name)
        try:
            self._child = child = start(argv, record=self._record, log=self._log)
        except OSError as error:
            return f"cannot run {argv[0]}: {error}"
        while (code := child.code()) is None and self._now_s < until_s:
            yield min(self._now_s + POLL_S, until_s)
        if code == 0:
            self._record.unlink(missing_ok=True)
            return ""
        said = last_line(self._log)
        # What it left behind, too: nothing of a failed deed may act after it is called failed.
        yield from self._end(child.identity)
        how = f"{argv[0]} {_ended(code)}"
        return f"{how}; {self._log} ends: {said}" if said else how

    def _end(self, who: Identity) -> Generator[float, None, None]:
        ending = Ending(who, self._now_s, self._options.kill_after_s)
        while not ending.poll(self._now_s):
            yield self._now_s + POLL_S
        if self._child is not None:
            self._child.code()  # it is dead: this takes it off the kernel's list


def _ended(code: int | None) -> str:
    match code:
        case None:
            return "took too long and was ended"
        case 126:
            return "may not be run (status 126); make it executable"
        case 127:
            return "was not found (status 127); give its full path"
        case _:
            return f"left with status {code}" if code > 0 else f"died of signal {-code}"


class HookLender:
    """A Lender by commands."""

    def __init__(self, options: HookOptions, folder: Path) -> None:
        """Run hooks; keep their logs, and who they are, in `folder`, which is made.

        Raises:
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._folder = folder
        self._nodes: dict[str, _Node] = {}

    def begin_drain(self, node: str, now_s: float) -> None:
        self._begin(node, "drain", now_s)

    def begin_hand_back(self, node: str, now_s: float) -> None:
        self._begin(node, "hand_back", now_s)

    def poll(self, now_s: float) -> list[Outcome]:
        ended = [node.poll(now_s) for node in self._nodes.values()]
        return [outcome for outcome in ended if outcome is not None]

    def next_due_s(self) -> float | None:
        due_s = min((node.due_s for node in self._nodes.values()), default=math.inf)
        return None if due_s == math.inf else due_s

    def problems(self) -> list[str]:
        return []

    def _begin(self, name: str, deed: Deed, now_s: float) -> None:
        node = self._nodes.setdefault(name, _Node(name, self._options, self._folder))
        node.begin(deed, now_s)
