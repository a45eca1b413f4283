"""Whether a plan can be believed: types, names and sums, before anything of it is done.

A plan is malformed if it could not be carried out in any state of the cluster that it was made
for, or could not be journalled. Nothing of such a plan is adopted. What just cannot be had now, or
not by that job, is no such fault: the engine refuses that one target, which the policy sees in
`Jobs.refused`.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from scheduler.policies.interface import NOTE, Figure, Need, Plan, Reason, Snapshot, Target

#: Larger whole numbers are not the same to every reader of JSON.
_EXACT = 2**53


class MalformedPlan(ValueError):
    """A plan that no engine could carry out; says which part of it is wrong."""


class Names:
    """What a plan may name: read before a policy is asked, which may write on its snapshot."""

    jobs: Collection[str]
    gpus: dict[str, int]  #: By node.
    site: dict[str, str]  #: By node.

    def __init__(
        self,
        seen: Snapshot,
        jobs: Collection[str] | None = None,
        before: "Names | None" = None,
    ) -> None:
        """Read the names of a snapshot.

        Args:
            seen: The snapshot.
            jobs: Its jobs, where somebody has them ready to be looked up.
            before: The names of an earlier one, whose nodes often are the same.
        """
        nodes, pools = seen.nodes, seen.pools.ids
        self.jobs = frozenset(seen.jobs.ids) if jobs is None else jobs
        self._nodes = nodes.ids, pools, nodes.gpus.tolist(), nodes.pool.tolist()
        if before is not None and self._nodes == before._nodes:
            self.gpus, self.site = before.gpus, before.site
        else:
            _, _, gpus, sites = self._nodes
            self.gpus = dict(zip(nodes.ids, gpus, strict=True))
            self.site = {name: pools[m] for name, m in zip(nodes.ids, sites, strict=True)}


def checked(plan: object, names: Names) -> Plan:
    """Return the plan with plain numbers in the place of numpy's.

    Its reasons are left to `check_reasons`: most are not news, and nobody reads them.

    Args:
        plan: What a policy gave.
        names: Those of the snapshot that it was given.

    Raises:
        MalformedPlan: a part has another type than `Plan` says; it names a job, node or pool that
            is not in the snapshot, a node twice or in another pool; targets together exceed all
            GPUs of a node; a number is NaN, or infinite where it must not be; a note is too long.
    """
    if not isinstance(plan, Plan):
        raise MalformedPlan(f"plan() gave a {type(plan).__name__}, not a Plan")
    jobs, gpus = names.jobs, names.gpus
    _names("targets", plan.targets, jobs, Mapping)
    _names("lend", plan.lend, gpus, tuple)
    _names("reclaim", plan.reclaim, gpus, Mapping)
    _names("decline", plan.decline, jobs, tuple)
    _names("notes", plan.notes, jobs, Mapping)
    if type(plan.reasons) is not tuple:
        raise MalformedPlan(f"reasons: is a {type(plan.reasons).__name__}, not a tuple")
    return Plan(
        _targets(plan.targets, names),
        plan.lend,
        {name: _finite("reclaim", name, due_s) for name, due_s in plan.reclaim.items()},
        plan.decline,
        plan.reasons,
        _notes(plan.notes),
        _limits(plan.limits),
    )


def _limits(found: Any) -> Mapping[str, int]:
    if not isinstance(found, Mapping):
        raise MalformedPlan(f"limits: is a {type(found).__name__}, not a Mapping")
    for tenant, gpus in found.items():
        if type(tenant) is not str or type(gpus) is not int:
            raise MalformedPlan(f"limits: {_said(tenant)}: {_said(gpus)} is no tenant with GPUs")
    return found


def _names(part: str, found: Any, known: Collection[str], kind: type[Any]) -> None:
    if not isinstance(found, kind):
        raise MalformedPlan(f"{part}: is a {type(found).__name__}, not a {kind.__name__}")
    for name in found:
        if type(name) is not str or name not in known:
            raise MalformedPlan(f"{part}: there is no {_said(name)}")


def _targets(found: Mapping[str, Any], names: Names) -> Mapping[str, Target | None]:
    """Return the targets with plain numbers; those of most policies are plain already."""
    if not found:
        return found
    made, used = found, dict.fromkeys(names.gpus, 0)
    if not _are_plain_targets(made, names, used):
        made = {name: _target(name, found[name], names) for name in found}
        used = Counter()
        for target in made.values():
            used.update(dict(target.placement) if target is not None else {})
    for name, count in used.items():
        if count > names.gpus[name]:
            raise MalformedPlan(f"targets: {count} GPUs of {name}, which has {names.gpus[name]}")
    return made


def _are_plain_targets(found: Mapping[str, Any], names: Names, used: dict[str, int]) -> bool:
    """Whether none has to be looked at by itself; count what they use."""
    sites = names.site
    try:
        for target in found.values():
            if target is None:
                continue
            placement, pool = target.placement, target.pool
            for node, count in placement:
                if type(node) is not str or type(count) is not int or count < 1:
                    return False
                if sites[node] != pool:
                    return False
                used[node] += count
            if len(placement) != 1 and not 0 < len(dict(placement)) == len(placement):
                return False
            if type(target) is not Target or type(placement) is not tuple:
                return False
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True


def _target(name: str, target: Any, names: Names) -> Target | None:
    if target is None:
        return None
    if not isinstance(target, Target) or type(target.placement) is not tuple:
        raise MalformedPlan(f"targets[{name!r}]: {_said(target)} is no Target with a tuple")
    placement = dict[str, int]()
    parts: tuple[Any, ...] = target.placement
    for part in parts:
        if type(part) is not tuple or len(part) != 2 or type(part[0]) is not str:
            raise MalformedPlan(f"targets[{name!r}]: {_said(part)} is no (node, GPUs)")
        node, count = part
        if type(count) is not int and not isinstance(count, np.integer):
            raise MalformedPlan(f"targets[{name!r}]: {_said(count)} of {node} is no number")
        if count < 1 or node in placement or names.site.get(node) != target.pool:
            raise MalformedPlan(
                f"targets[{name!r}]: {count} GPUs of {_said(node)} in {_said(target.pool)}: "
                "must be at least 1, of each node once, of a node of that pool"
            )
        placement[node] = int(count)
    if not placement:
        raise MalformedPlan(f"targets[{name!r}]: names no node; None takes its GPUs away")
    return Target(target.pool, tuple(placement.items()))


def check_reasons(reasons: Sequence[Any]) -> None:
    """Find what could not be journalled as the reason it is; make numpy's numbers plain.

    Raises:
        MalformedPlan: a part has another type than `Reason` says, or a number is NaN.
    """
    if not _are_plain(reasons):
        for reason in reasons:
            _check_reason(reason)


def _are_plain(reasons: Sequence[Any]) -> bool:
    """Whether none has to be looked at by itself: a plan has tens of thousands of numbers."""
    texts: list[str] = []
    numbers: list[Any] = [0.0]
    try:
        for reason in reasons:
            if type(reason) is not Reason:
                return False
            if type(reason.lost_to) is not tuple or type(reason.figures) is not tuple:
                return False
            texts += (reason.subject, reason.verb, reason.rule)
            texts += reason.lost_to
            for figure in reason.figures:
                if type(figure) is not Figure:
                    return False
                texts.append(figure.name)
                numbers += (figure.value, figure.age_s)
            if type(reason.needs) is not tuple:
                return False
            for need in reason.needs:
                if type(need) is not Need:
                    return False
                texts.append(need.name)
                numbers += (need.have, need.want)
        if not set(map(type, numbers)) <= {int, float} or math.isnan(sum(numbers)):
            return False
        if max(numbers) > _EXACT or min(numbers) < -_EXACT:
            whole = [number for number in numbers if type(number) is int]
            if max(map(abs, whole), default=0) > _EXACT:
                return False
        return "".join(texts).isascii()
    except (AttributeError, TypeError, OverflowError):
        return False


def _check_reason(reason: Any) -> None:
    if type(reason) is not Reason:
        raise MalformedPlan(f"reasons: {_said(reason)} is no Reason")
    subject = reason.subject
    for part in (reason.lost_to, reason.figures, reason.needs):
        if type(part) not in (tuple, list):  # a set has no order, and could not be written
            raise MalformedPlan(f"reasons: of {_said(subject)}: {_said(part)} is no tuple")
    try:
        texts = [subject, reason.verb, reason.rule, *reason.lost_to]
        for figure in reason.figures:
            if type(figure) is not Figure:
                raise TypeError(f"{_said(figure)} is no Figure")
            texts.append(figure.name)
            figure.value, figure.age_s = _number(figure.value), _number(figure.age_s)
        for need in reason.needs:
            if type(need) is not Need:
                raise TypeError(f"{_said(need)} is no Need")
            texts.append(need.name)
            need.have, need.want = _number(need.have), _number(need.want)
        "".join(texts).encode()
    except (TypeError, ValueError) as error:
        raise MalformedPlan(f"reasons: of {_said(subject)}: {error}") from None


def _notes(found: Mapping[str, Any]) -> Mapping[str, tuple[float, ...]]:
    if (
        not set(map(type, found.values())) - {tuple}
        and max(map(len, found.values()), default=0) <= NOTE
    ):
        values = [value for note in found.values() for value in note]
        if not set(map(type, values)) - {int, float} and math.isfinite(sum(values)):
            return found
    return {name: _note(name, note) for name, note in found.items()}


def _note(name: str, note: Any) -> tuple[float, ...]:
    if not isinstance(note, tuple) or len(note) > NOTE:
        raise MalformedPlan(f"notes[{name!r}]: {_said(note)} is no tuple of at most {NOTE}")
    return tuple(_finite("notes", name, value) for value in note)


def _finite(part: str, name: str, value: Any) -> float:
    try:
        if math.isfinite(number := _number(value)):
            return number
        error = "is not finite"
    except (TypeError, ValueError) as wrong:
        error = str(wrong)
    raise MalformedPlan(f"{part}[{name!r}]: {_said(value)} {error}")


def _number(value: Any) -> float:
    """Return a plain number, whole if it was.

    Raises:
        TypeError: it is none.
        ValueError: it is NaN, or not the same number to every reader of JSON.
    """
    plain = value.item() if isinstance(value, np.integer | np.floating) else value
    if type(plain) is not int and type(plain) is not float:
        raise TypeError(f"{_said(value)} is no number")
    if math.isnan(plain) or (type(plain) is int and abs(plain) > _EXACT):
        raise ValueError("is NaN, or too large a whole number")
    return plain


def _said(value: object) -> str:
    return repr(value)[:100]
