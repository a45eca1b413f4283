"""A lender by commands: drain and hand-back hooks, and commands that confirm them.

An operation is done when its hook and then the confirming command, if there is one, have exited
with 0. Hooks are repeated after failures and after a crash of the agent, so they must be
idempotent. A hook that a crash left behind is ended before its node's next hook begins.
"""

import math
from collections.abc import Generator, Sequence
from pathlib import Path

from pydantic.dataclasses import dataclass as checked

from runtime.executors.processes import Identity
from runtime.owners.lender import POLL_S, Operation, Outcome, filled
from runtime.owners.processes import (
    Child,
    SessionTermination,
    bound_log,
    last_line,
    recorded,
    start,
)
from schemas.options import CHECKED, Delay, LogBytes, Seconds


@checked(frozen=True, slots=True, config=CHECKED)
class HookOptions:
    """Commands, as argument lists in which `{node}` is replaced; no shell reads them."""

    #: The command that makes the owner leave a node.
    drain: tuple[str, ...]
    #: The command that brings the owner back.
    hand_back: tuple[str, ...]
    #: Confirms a drain: repeated until it exits with 0; empty: the hook's own exit is enough.
    confirm_drain: tuple[str, ...] = ()
    #: Confirms a hand-back in the same way.
    confirm_hand_back: tuple[str, ...] = ()
    #: How long a hook may take.
    timeout_s: Seconds = 120.0
    #: How long the confirmation may take after the hook, all tries together.
    confirm_timeout_s: Seconds = 120.0
    #: Time between two tries to confirm.
    confirm_every_s: Seconds = 2.0
    #: Time from SIGTERM to SIGKILL for a hook that takes too long or was cancelled.
    kill_after_s: Delay = 5.0
    #: The most that the log of a node's hooks may hold.
    log_bytes: LogBytes = 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("drain", "hand_back"):
            if not getattr(self, name):
                raise ValueError(f"{name}: name a command, as a list of its arguments")

    def commands(self, operation: Operation) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Give the hook of an operation and the command that confirms it."""
        if operation == "drain":
            return self.drain, self.confirm_drain
        return self.hand_back, self.confirm_hand_back


#: The steps of an operation: each yields when to go on; the result is the error, or "".
_Steps = Generator[float, None, str]


class _Node:
    """What runs for one node: one command at a time, and a log."""

    def __init__(self, name: str, options: HookOptions, folder: Path) -> None:
        self._name = name
        self._options = options
        self._record = folder / f"{name}.hook.json"
        self._log = folder / f"{name}.log"
        self._operation: Operation | None = None
        self._steps: _Steps | None = None
        self._child: Child | None = None
        self._now_s = 0.0
        self.due_s = math.inf

    def begin(self, operation: Operation, now_s: float) -> None:
        if self._operation != operation:
            self._operation, self._steps, self.due_s = operation, self._all(operation), now_s

    def poll(self, now_s: float) -> Outcome | None:
        if self._operation is None or self._steps is None or now_s < self.due_s:
            return None
        self._now_s = now_s
        try:
            self.due_s = next(self._steps)
        except StopIteration as end:
            operation, self._operation, self.due_s = self._operation, None, math.inf
            return Outcome(self._name, operation, end.value and f"{operation} hook: {end.value}")
        finally:
            bound_log(self._log, self._options.log_bytes)
        return None

    def _all(self, operation: Operation) -> _Steps:
        options = self._options
        hook, confirm = options.commands(operation)
        # A hook of the operation before, or of an agent that was killed, must not run beside this
        # one. If it has exited, its children may be the owner's server, which must not be ended.
        last = recorded(self._record)
        if last is not None and last.alive():
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
        # Its children, too: nothing of a failed operation may act after it was reported as failed.
        yield from self._end(child.identity)
        how = f"{argv[0]} {_ended(code)}"
        return f"{how}; {self._log} ends: {said}" if said else how

    def _end(self, who: Identity) -> Generator[float, None, None]:
        ending = SessionTermination(who, self._now_s, self._options.kill_after_s)
        while not ending.poll(self._now_s):
            yield self._now_s + POLL_S
        if self._child is not None:
            self._child.code()  # it is dead: this reaps it


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
        """Run hooks; keep their logs and identities in `folder`, which is made.

        Raises:
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._options = options
        self._folder = folder
        self._nodes: dict[str, _Node] = {}

    def begin(self, node: str, operation: Operation, now_s: float) -> None:
        known = self._nodes.setdefault(node, _Node(node, self._options, self._folder))
        known.begin(operation, now_s)

    def poll(self, now_s: float) -> list[Outcome]:
        ended = [node.poll(now_s) for node in self._nodes.values()]
        return [outcome for outcome in ended if outcome is not None]

    def next_due_s(self) -> float | None:
        due_s = min((node.due_s for node in self._nodes.values()), default=math.inf)
        return None if due_s == math.inf else due_s

    def problems(self) -> list[str]:
        return []
