"""What an engine did: starts, changes of size, stops, loans; and the first that differs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.core import facts

#: Deeds no further apart than this are the same, in seconds: what a log tells of the progress of
#: jobs is in whole steps, so that a branch meets moments to a fraction of one.
SAME_S = 1.0


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing done. `what` tells it from others about the same subject."""

    at_s: float
    entry: int
    subject: str  #: A job, or a node of a lender.
    kind: str
    what: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What two deeds must share to count as the same, beside their time."""
        return self.subject, self.kind, self.what

    def said(self) -> str:
        """Say it in a few words."""
        return f"{self.subject} {self.kind}" + (f" {self.what}" if self.what else "")


def deeds_of(at_s: float, entry: int, found: Iterable[object]) -> list[Deed]:
    """Give the deeds among the facts of an entry, in order."""
    return [Deed(at_s, entry, *deed) for fact in found if (deed := _deed(fact)) is not None]


def _deed(fact: object) -> tuple[str, str, str] | None:
    match fact:
        case facts.GangStarting():
            return fact.job, "starts on", _places(fact.allocation)
        case facts.GangScaling():
            return fact.job, "goes on with", _places(fact.allocation)
        case facts.GangCheckpointing():
            return fact.job, "saves and leaves", f"({fact.reason})"
        case facts.GangStopping() if fact.reason != "completed":
            return fact.job, "stops", f"({fact.reason})"
        case facts.JobCompleted():
            return fact.job, "is done", ""
        case facts.JobDeclined():
            return fact.job, "is declined", ""
        case facts.LoanRequested():
            return fact.node, "is asked for", ""
        case facts.ReclaimStarted():
            return fact.node, "is called back", ""
        case facts.LoanReturned():
            return fact.node, "is back with its owner", ""
        case _:
            return None


def _places(allocation: facts.Allocation) -> str:
    parts = (f"{node}:{','.join(map(str, gpus))}" for node, gpus in sorted(allocation.items()))
    return " ".join(parts)


def places_of(deed: Deed) -> dict[str, int]:
    """Give the GPUs that a gang has by a deed of its own, by node; none if it leaves them."""
    if deed.kind not in ("starts on", "goes on with"):
        return {}
    parts = (part.rsplit(":", 1) for part in deed.what.split())
    return {node: gpus.count(",") + 1 for node, gpus in parts}


def differences(ours: Sequence[Deed], theirs: Sequence[Deed], most: int) -> list[tuple[Deed, bool]]:
    """List the first deeds that only one side has, or has at another time, and if of `ours`.

    Of equal deeds each is compared with the earliest of the other side that is left. Deeds of one
    moment stay in the order in which their side did them.
    """
    place = {id(deed): number for side in (ours, theirs) for number, deed in enumerate(side)}
    alone: list[tuple[float, int, int, Deed]] = []
    for mine, others in _paired(ours, theirs):
        left, right = 0, 0
        while left < len(mine) or right < len(others):
            ours_s = mine[left].at_s if left < len(mine) else float("inf")
            theirs_s = others[right].at_s if right < len(others) else float("inf")
            if abs(ours_s - theirs_s) <= SAME_S:
                left, right = left + 1, right + 1
                continue
            side = 0 if ours_s < theirs_s else 1
            deed = others[right] if side else mine[left]
            alone.append((deed.at_s, side, place[id(deed)], deed))
            left, right = left + (side == 0), right + (side == 1)
    alone.sort(key=lambda one: one[:3])
    return [(deed, side == 0) for _, side, _, deed in alone[:most]]


def _paired(ours: Sequence[Deed], theirs: Sequence[Deed]) -> list[tuple[list[Deed], list[Deed]]]:
    """Give by key the deeds of both sides, in the order in which keys come up."""
    found: dict[tuple[str, str, str], tuple[list[Deed], list[Deed]]] = {}
    for side, deeds in enumerate((ours, theirs)):
        for deed in deeds:
            found.setdefault(deed.key, ([], []))[side].append(deed)
    return list(found.values())


def first_difference(ours: Sequence[Deed], theirs: Sequence[Deed]) -> tuple[Deed, bool] | None:
    """Give the first of the `differences`, and whether it is of `ours`; None if there is none."""
    return next(iter(differences(ours, theirs, 1)), None)
