"""Answers that are made of states alone: rows of jobs and nodes, and differences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson

from explain.answer import Reading
from explain.progress import outlook, share_done
from explain.rows import JobRow
from gateway.past import Moment
from gateway.problems import Problem, wrong_field
from gateway.sight import Named
from scheduler.core.state import ClusterState, Job, Node
from scheduler.core.transitions import JobState

#: Fields of a job row, any of which may be asked for.
JOB_FIELDS = tuple(one.name for one in fields(JobRow))
_Document = dict[str, Any]
#: By name, what jobs can be sorted by.
_SORTS: Mapping[str, Callable[[Job, float], Any]] = {
    "submitted": lambda job, _: job.number,
    "job": lambda job, _: job.id,
    "tenant": lambda job, _: job.tenant,
    "state": lambda job, _: job.state.value,
    "gpus": lambda job, _: job.size,
    "priority": lambda job, _: job.priority,
    "progress": lambda job, now_s: share_done(job, now_s),
    "slack": lambda job, now_s: None if job.deadline_s is None else outlook(job, now_s).slack_s,
    "ends": lambda job, now_s: outlook(job, now_s).ends_s,
}
SORTS = tuple(_SORTS)
#: Those of them that are names, in the order of `gateway.sight.Named`.
_NAMED = ("job", "tenant")
_JOB_COMPARED = (
    "state", "pool", "allocation", "target", "step", "checkpoint_step", "priority",
    "deadline_s", "preemptions", "migrations", "failures", "cancel_requested",
)  # fmt: skip
_NODE_COMPARED = (
    "state", "agent", "pool", "gpu_count", "holder", "claim", "loan", "loan_state", "due_s",
)  # fmt: skip


def reading_of(moment: Moment) -> Reading:
    """Give a moment as `explain` reads states."""
    return moment.feed.reading(moment.state)


def framed(moment: Moment) -> _Document:
    """Say which state an answer is about."""
    return {
        "cell": moment.feed.name,
        "entry": moment.entry,
        "now_s": moment.state.now_s,
        "origin_s": moment.feed.origin_s,
    }


def told(moment: Moment, found: Any) -> _Document:
    """Give a dataclass of `explain` as an answer about a moment."""
    return {**{one.name: getattr(found, one.name) for one in fields(found)}, **framed(moment)}


def written(rows: Any) -> orjson.Fragment:
    """Write rows at once: the live state, parts of which they are, goes on at the next wait."""
    return orjson.Fragment(orjson.dumps(rows))


def chosen_jobs(
    state: ClusterState,
    *,
    states: Sequence[str],
    tenant: str | None,
    pool: str | None,
    text: str | None,
    sort: str,
    named: Named,
) -> list[Job]:
    """Choose jobs and sort them; `-` before the sort's name turns it round. Ties: as submitted.

    Jobs without a value, such as slack without a deadline, are last either way. `named` gives a
    job's names as who asks sees them: a filter tells no others.

    Raises:
        Problem: nothing is sorted by that.
    """
    name = sort.removeprefix("-")
    if name not in _SORTS:
        known = ", ".join(SORTS)
        raise Problem(400, f"sort={sort}: choose one of {known}; - before it turns it round",
                      parameter="sort")  # fmt: skip
    wanted = None if text is None else text.casefold()
    # Members, and no look at each one's value: there may be fifty thousand jobs.
    members = tuple(map(JobState, states))
    found = [
        job
        for job in state.jobs.values()
        if (not members or job.state in members)
        and (tenant is None or named(job)[1] == tenant)
        and (pool is None or job.pool == pool)
        and (wanted is None or _matches(wanted, *named(job)))
    ]
    value, now_s = _SORTS[name], state.now_s
    if name in _NAMED:
        place = _NAMED.index(name)
        found.sort(key=lambda job: job.number)
        return sorted(found, key=lambda job: named(job)[place], reverse=sort.startswith("-"))
    keyed = [(value(job, now_s), job) for job in sorted(found, key=lambda job: job.number)]
    have = [one for one in keyed if one[0] is not None]
    have.sort(key=lambda one: one[0], reverse=sort.startswith("-"))
    return [job for _, job in have] + [job for key, job in keyed if key is None]


def chosen_nodes(
    nodes: Sequence[Node], *, state: str | None, pool: str | None, text: str | None
) -> list[Node]:
    """Choose nodes, in their order; one that has just this name first: of many it is meant."""
    wanted = None if text is None else text.casefold()
    found = [
        node
        for node in nodes
        if (state is None or node.state.value == state)
        and (pool is None or node.pool == pool)
        and (wanted is None or _matches(wanted, node.id, node.agent, node.gpu_type))
    ]
    return sorted(found, key=lambda node: node.id != text)


def _matches(wanted: str, *texts: str) -> bool:
    return any(wanted in text.casefold() for text in texts)


def wanted_states(text: str | None) -> tuple[str, ...]:
    """Read which states are asked for; none: all.

    Raises:
        Problem: one of them is none.
    """
    known = [one.value for one in JobState]
    names = () if text is None else tuple(sorted(set(text.split(","))))
    for name in names:
        if name not in known:
            reason = f"{name!r} is no state of a job; choose among {', '.join(known)}"
            raise wrong_field("state", reason, 400)
    return names


def wanted_fields(text: str | None) -> tuple[str, ...] | None:
    """Read which fields of jobs are asked for; None: all.

    Raises:
        Problem: one of them is none.
    """
    if text is None:
        return None
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in JOB_FIELDS:
            known = ", ".join(JOB_FIELDS)
            raise wrong_field("fields", f"{name!r} is no field of a job; there are {known}", 400)
    return names


def diff(before: Moment, after: Moment, most: int) -> _Document:
    """Say which jobs and nodes differ, at most so many of each, and what the sums grew by."""
    old, new = before.state, after.state
    jobs = _changed(old.jobs, new.jobs, _JOB_COMPARED)
    nodes = _changed(old.nodes, new.nodes, _NODE_COMPARED)
    sums, past = asdict(new.totals), asdict(old.totals)
    return {
        "cell": before.feed.name,
        "entry": before.entry,
        "vs": after.entry,
        "entry_s": old.now_s,
        "vs_s": new.now_s,
        "jobs": jobs[:most],
        "jobs_total": len(jobs),
        "nodes": nodes[:most],
        "nodes_total": len(nodes),
        "totals": {name: sums[name] - past[name] for name in sums if sums[name] != past[name]},
    }


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], compared: Sequence[str]
) -> list[_Document]:
    found = []
    for name in sorted({*old, *new}):
        if name not in old or name not in new:
            change = "added" if name in new else "removed"
            found.append({"name": name, "change": change, "fields": {}})
            continue
        one, other = old[name], new[name]
        different = {
            field: [getattr(one, field), getattr(other, field)]
            for field in compared
            if getattr(one, field) != getattr(other, field)
        }
        if different:
            found.append({"name": name, "change": "changed", "fields": different})
    return found
