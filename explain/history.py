"""The history of a job, a line for each thing that happened to it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from explain.ends import failure, outputs_of
from explain.shares import counted
from explain.story import Event, Story
from explain.wording import Tone
from explain.work import Work, work_of


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a job's history."""

    at_s: float
    what: str  #: In words, such as `started`.
    detail: str
    tone: Tone
    event: Event


def history(story: Story) -> list[Line]:
    """Give the lines; several changes of size in a row are one."""
    lines: list[Line] = []
    sizes: list[int] = []
    left: Event | None = None
    events, work = _told(story.events), work_of(story.spec)
    for event, following in zip(events, [*events[1:], None], strict=True):
        fields = event.fields
        size = sum(map(len, fields.get("allocation", {}).values()))
        starts = following is not None and following.kind == "GangStarting"
        if event.kind == "JobMigrating" and starts:
            left = event
            continue
        if event.kind == "GangStarting":
            sizes = [size]
            if left is not None:
                lines.append(_moved(left, event, size, work))
                left = None
                continue
        if event.kind == "GangScaling":
            sizes.append(size)
            if following is not None and following.kind == "GangScaling":
                continue
            if len(sizes) > 2 and event.reason and event.reason.rule in _EBB:
                event = replace(event, reason=None)
            what, detail = "scaled", f"{_path(sizes)} GPU{'' if sizes[-1] == 1 else 's'}"
            if sizes[0] == sizes[-1] and len(sizes) <= 2:
                what, detail = "re-placed", _where(event, size)
            lines.append(Line(event.at_s, what, f"{detail}{_for(event)}", "change", event))
            sizes = [size]
            continue
        lines.append(_line(event, size, work))
    return lines


def _moved(left: Event, started: Event, size: int, work: Work) -> Line:
    """Tell a move between pools, from the stop in one to the start in the other."""
    line = _line(started, size, work)
    merged = replace(started, reason=left.reason or started.reason, reclaims=left.reclaims)
    return Line(started.at_s, "migrated", f"to{line.detail[2:]}{_for(left)}", "change", merged)


def _for(event: Event) -> str:
    """Say whose drain a gang moved for, if it did."""
    return f"; {event.fields['detail']}" if event.fields.get("detail") else ""


def _told(events: list[Event]) -> list[Event]:
    """Give the events without those that the next one says as well."""
    found: list[Event] = []
    for event in events:
        kind = event.kind
        if kind in ("GangRunning", "TargetSet"):
            continue
        if kind == "GangStopping" and event.fields["reason"] == "completed":
            continue
        if kind in ("JobQueued", "JobMigrating") and found and found[-1].kind in _LEAVING:
            before = found.pop()
            fields = {**event.fields, "since_s": before.at_s}
            detail = before.fields.get("detail", "")
            reason = before.reason
            event = Event(event.at_s, kind, {**fields, "detail": detail}, reason, before.reclaims)
        elif kind in _LEAVING and found and found[-1].kind in _LEAVING:
            if event.fields.get("detail"):  # it fails as it leaves
                found[-1] = replace(found[-1], kind=kind, fields=event.fields)
            continue
        elif kind == "JobFailed" and found and found[-1].kind in _LEAVING:
            found.pop()
        found.append(event)
    return found


#: Several changes in a row by such a rule are shown without a reason: each has another.
_EBB = (
    "elastic.marginal_return",
    "gang.backfilled",
    "market.price",
    "market.outbid",
    "market.quota",
    "quota.tenant",
)
_LEAVING = ("GangCheckpointing", "GangStopping")
#: Why a job waits again, in a word; else it was preempted.
_QUEUED = {
    "failed": "failed",
    "migrated": "move given up",
    "held": "held",
    "requeued": "requeued",
}
#: What people asked of a job, in a word.
_ASKED = {
    "JobHeld": "held",
    "JobReleased": "released",
    "JobRequeued": "asked to requeue",
    "JobPrioritised": "priority set",
    "JobSizeSet": "size set",
    "JobSizeFreed": "size freed",
    "JobCancelled": "cancelled",
    "CancelRequested": "asked to cancel",
}


def _path(sizes: list[int]) -> str:
    if len(sizes) < 7:
        return " → ".join(map(str, sizes))
    return (
        f"{sizes[0]} → {sizes[1]} → … → {sizes[-2]} → {sizes[-1]} "
        f"({len(sizes) - 1} changes, {min(sizes)} to {max(sizes)})"
    )


def _where(event: Event, size: int) -> str:
    nodes = ", ".join(sorted(event.fields["allocation"]))
    gpus = counted(size, "GPU")
    pool = event.fields.get("pool")  # of a start; it stays in one as its size or nodes change
    return f"{gpus} on {nodes}" if pool is None else f"{gpus} of {pool} ({nodes})"


def _line(event: Event, size: int, work: Work) -> Line:
    at_s, kind, fields = event.at_s, event.kind, event.fields
    if kind == "JobAccepted":
        return Line(at_s, "submitted", f"by {fields['spec']['tenant']}", "quiet", event)
    if kind == "GangStarting":
        step = f", from {work.place(fields['step'])}" if fields["step"] else ""
        return Line(at_s, "started", f"on {_where(event, size)}{step}", "good", event)
    if kind in _LEAVING:
        said = failure(str(fields["reason"]), str(fields.get("detail", "")))
        return Line(at_s, "told to leave", said, "bad", event)
    if kind == "JobQueued":
        why = _QUEUED.get(fields["reason"], "preempted")
        goes_on = f"goes on from {work.place(fields['step'])}" if fields["step"] else "begins anew"
        detail = f"waits again, {goes_on}"
        if fields.get("detail"):
            detail += f"; {fields['detail']}"
        return Line(at_s, why, detail, "bad", event)
    if kind == "JobMigrating":
        detail = f"left its GPUs with {work.place(fields['step'])} saved"
        return Line(at_s, "migrated", detail, "change", event)
    if kind == "JobCompleted":
        return Line(at_s, "completed", "", "good", event)
    if kind in _ASKED:
        return Line(at_s, _ASKED[kind], _asked(fields), "quiet", event)
    if kind == "JobFailed":
        said = failure(str(fields["reason"]), str(fields["detail"]))
        return Line(at_s, "failed for good", said, "bad", event)
    if kind == "TargetDropped":
        return Line(at_s, "claim given up", str(fields["reason"]), "quiet", event)
    if kind == "OutputsKept":
        said = str(outputs_of(fields))
        return Line(at_s, "outputs kept", said, "good" if fields["files"] else "quiet", event)
    if kind == "CheckpointMissed":
        return Line(at_s, "checkpoint failed", str(fields["error"]), "bad", event)
    return Line(at_s, "refused", str(fields.get("reason", "")), "bad", event)


def _asked(fields: Mapping[str, Any]) -> str:
    """Say what was asked for, by whom, and why."""
    if "by" not in fields:
        return ""
    what = f"{fields['priority']}, " if "priority" in fields else ""
    if (gpus := fields.get("gpus")) is not None:
        what = f"{counted(gpus, 'GPU')}, "
    why = f": {fields['reason']}" if fields.get("reason") else ""
    return f"{what}by {fields['by']}{why}"
