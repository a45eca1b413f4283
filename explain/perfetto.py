"""A stretch of a log as a trace that Perfetto opens (ui.perfetto.dev): its JSON, event by event.

A node is a process, each of its GPUs a track, and a job on it a slice; what happens to loans and
what people ask for are instants, and the tide is counters. What is remembered is what is open, so
that a trace of any length can be written as it is made. The format is the Trace Event Format, in
microseconds since the Unix epoch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from explain.acts import act_of
from explain.tide import tide_of
from explain.wording import Wording, reason_from
from scheduler.core.state import ClusterState, Job, Node
from schemas.values import MAX_GPUS_PER_NODE

Event = dict[str, Any]
#: Counters have a value for each so many seconds.
SAMPLE_S = 60.0
#: The process that stands for the cell; those of nodes come after it.
_CELL = 1
#: Numbers of tracks are above those of all processes, and no two processes share one.
_TRACKS = 1_000_000
_ASKED = _TRACKS  #: What people ask for.
_LOANS: Mapping[str, str] = {
    "LoanRequested": "its owner is asked for it",
    "LoanGranted": "lent",
    "LoanRefused": "its owner keeps it",
    "ReclaimStarted": "called back",
    "LoanReturned": "back with its owner",
    "LoanLost": "lost while on loan",
}


@dataclass(slots=True)
class _Open:
    """A job on a GPU, since a moment."""

    holder: str
    epoch: int
    since_us: int
    pool: str
    args: Event


class Trace:
    """Makes the events of a cell's stretch: `begin`, then `take` of each entry, then `end`."""

    def __init__(self, cell: str, origin_s: float) -> None:
        """Begin empty; the log began at `origin_s`."""
        self._cell, self._voice = cell, Wording(origin_s)
        self._processes: dict[str, int] = {}
        self._open: dict[tuple[str, int], _Open] = {}
        self._sampled_s = -SAMPLE_S
        self.slices = 0  #: That were made so far.

    def begin(self, state: ClusterState, at_s: float) -> Iterator[Event]:
        """Give what there is at the beginning, in the state that the entries before have left."""
        yield _named("process_name", _CELL, 0, f"cell {self._cell}")
        yield _named("thread_name", _CELL, _ASKED, "asked by people")
        for node in sorted(state.nodes.values(), key=lambda node: (node.pool, node.id)):
            yield from self._track(node)
            yield from self._look(state, node, at_s, state.number - 1)
        for one in self._open.values():
            one.args["began before"] = True
        if state.number:
            yield from self._counters(state, at_s)

    def take(
        self,
        state: ClusterState,
        number: int,
        at_s: float,
        stimulus: Mapping[str, Any],
        decision: Mapping[str, Any],
    ) -> Iterator[Event]:
        """Go on with an entry, of its number and moment; the state is as it has left it."""
        touched: dict[str, None] = {}
        told = []
        for kind, fields in decision.get("facts", ()):
            if isinstance(name := fields.get("node"), str):
                touched[name] = None
                if kind in _LOANS:
                    told.append((kind, name, fields))
            touched |= dict.fromkeys(fields.get("allocation") or ())
        for name in touched:
            if (node := state.nodes.get(name)) is not None:
                yield from self._track(node)
                yield from self._look(state, node, at_s, number)
        for kind, name, fields in told:
            yield from self._loan(kind, name, fields, number, at_s, decision)
        if (act := act_of(number, at_s, stimulus, decision)) is not None:
            args = {
                "entry": number, "who": act.subject, "role": act.role, "tenant": act.tenant,
                "about": act.about, "result": act.result, "refused because": act.refused_because,
                "reason": act.reason,
            }  # fmt: skip
            name = f"{act.verb} {act.about}".rstrip()
            yield _instant(name, "asked", _CELL, _ASKED, at_s, args)
        if at_s - self._sampled_s >= SAMPLE_S:
            yield from self._counters(state, at_s)

    def end(self, state: ClusterState, at_s: float) -> Iterator[Event]:
        """End what is open."""
        for (name, gpu), one in self._open.items():
            yield from self._close(name, gpu, one, at_s, goes_on=True)
        self._open = {}
        if state.number:
            yield from self._counters(state, at_s)

    # --- slices -------------------------------------------------------------------------------

    def _track(self, node: Node) -> Iterator[Event]:
        if node.id in self._processes:
            return
        number = self._processes[node.id] = _CELL + 1 + len(self._processes)
        yield _named("process_name", number, 0, node.id)
        yield _event("M", "process_labels", number, 0, args={"labels": node.pool})
        yield _event("M", "process_sort_index", number, 0, args={"sort_index": number})
        for gpu in range(node.gpu_count):
            yield _named("thread_name", number, _track_of(number, gpu), f"GPU {gpu}")

    def _look(self, state: ClusterState, node: Node, at_s: float, number: int) -> Iterator[Event]:
        """Compare who is on a node's GPUs with who was; a job that changes its size begins anew."""
        for gpu, holder in enumerate(node.holder):
            epoch, one = node.epoch[gpu], self._open.get((node.id, gpu))
            if one is not None and (holder != one.holder or epoch != one.epoch):
                del self._open[node.id, gpu]
                yield from self._close(node.id, gpu, one, at_s)
                one = None
            if one is None and holder is not None:
                self._open[node.id, gpu] = _Open(
                    holder,
                    epoch,
                    _us(at_s),
                    node.pool,
                    self._about(holder, state.jobs.get(holder), epoch, number),
                )

    def _about(self, name: str, job: Job | None, epoch: int, number: int) -> Event:
        args: Event = {"entry": number, "job": name, "epoch": epoch}
        if job is None:
            return args
        args |= {"tenant": job.tenant, "model": job.model, "gpus": job.size, "step": job.step}
        if job.why is not None:
            reason = reason_from(job.why)
            args |= {"rule": reason.rule, "reason": self._voice.sentence(reason)}
        return args

    def _close(
        self, name: str, gpu: int, one: _Open, at_s: float, *, goes_on: bool = False
    ) -> Iterator[Event]:
        length = _us(at_s) - one.since_us
        if length <= 0:  # it came and went within an entry
            return
        self.slices += 1
        number = self._processes[name]
        args = {**one.args, "goes on": True} if goes_on else one.args
        yield {
            **_event("X", one.holder, number, _track_of(number, gpu), args=args),
            "cat": one.pool,
            "ts": one.since_us,
            "dur": length,
        }

    # --- instants and counters ------------------------------------------------------------------

    def _loan(
        self,
        kind: str,
        name: str,
        fields: Mapping[str, Any],
        number: int,
        at_s: float,
        decision: Mapping[str, Any],
    ) -> Iterator[Event]:
        process = self._processes.get(name)
        if process is None:  # a node that nobody has seen since
            return
        args: Event = {"entry": number, "node": name}
        if "due_s" in fields:
            args["due in s"] = round(fields["due_s"] - at_s, 3)
        if fields.get("reason"):
            args["reason"] = fields["reason"]
        for document in decision.get("reasons", ()):
            if document["subject"] == name:
                reason = reason_from(document)
                args |= {"rule": reason.rule, "reason": self._voice.sentence(reason)}
        yield _instant(_LOANS[kind], "loan", process, 0, at_s, args)

    def _counters(self, state: ClusterState, at_s: float) -> Iterator[Event]:
        self._sampled_s, tide = at_s, tide_of(state)
        gpus = {
            "need": tide.need, "owned": tide.owned, "lent": tide.lent, "unused": tide.unused,
            "used": tide.used,
        }  # fmt: skip
        for name, args in (("GPUs", gpus), ("jobs", {"queued": tide.queue})):
            yield {**_event("C", name, _CELL, 0, args=args), "ts": _us(at_s)}


#: What a trace's file begins and ends with; between them stand events, each as `line` writes it.
HEAD = b'{"displayTimeUnit":"ms","otherData":{"source":"tidegate"},"traceEvents":[\n'
TAIL = b"\n]}\n"


def line(event: Event, *, is_first: bool = False) -> bytes:
    """Write an event of the file."""
    return (b"" if is_first else b",\n") + orjson.dumps(event)


def lines(events: Iterator[Event]) -> bytes:
    """Write events that others go before."""
    return b"".join(map(line, events))


def _event(phase: str, name: str, process: int, track: int, *, args: Event) -> Event:
    return {"ph": phase, "name": name, "pid": process, "tid": track, "args": args}


def _named(what: str, process: int, track: int, name: str) -> Event:
    return _event("M", what, process, track, args={"name": name})


def _instant(name: str, kind: str, process: int, track: int, at_s: float, args: Event) -> Event:
    scope = "t" if track else "p"
    event = _event("i", name, process, track, args=args)
    return {**event, "cat": kind, "ts": _us(at_s), "s": scope}


def _track_of(process: int, gpu: int) -> int:
    return _TRACKS + process * MAX_GPUS_PER_NODE + gpu


def _us(at_s: float) -> int:
    return round(at_s * 1e6)
