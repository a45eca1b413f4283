"""Who is promised to be in time, and what keeps the promise: floors on GPUs that nobody takes back.

A job is promised when it starts ("commitment on admission" in the literature of online
scheduling), a large one when its rest is small enough; until then it competes anew in every plan,
in each class the job with the least GPU time first, because that is how most of them can be met
(Moore and Hodgson, for one machine). It is never refused. A promise is backed by a course of GPUs
over time (`commitments`) that counts every pause it needs.

Differs from ElasticFlow (Gu et al., ASPLOS '23): a change of size costs a pause; jobs with time to
spare lend GPUs to short ones and are back in time; who finds no room now may find some later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from scheduler.policies.interface import PROMISED, Bools, Floats, Ints, Snapshot
from scheduler.policies.parts.reservations import earliest, free_now, reserve
from scheduler.policies.tide.commitments import (
    LOANS,
    Piece,
    Schedule,
    borrow,
    free_over_time,
    renewed,
    resume,
    written,
)
from scheduler.policies.tide.market import Market
from scheduler.policies.tide.quotas import Pledges, Quotas
from scheduler.policies.tide.slack import Slack, latest_return_s, slack_at

#: A plan may be followed so much too late: what is planned for later has this much to spare.
LATE_S = 60.0
#: Waiting jobs that find no room, until the rest is left for the next plan; and so many that run.
TRIES = 8
#: Jobs for which room is kept later on, smallest first.
AHEAD = 48
#: Instead of a site: all firm ones; none, for now.
_ANY, _APART = -1, -2
#: A large job, which has no promise, may lose in the next plan what others lend it. Then it borrows
#: none for so long: else they could take turns for hours, each at the price of a pause.
CALM_S = 1800.0
#: At so many sizes, from the least on, a job tries to borrow room.
LARGER = 3


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What one site's GPUs are kept for."""

    site: int
    #: Those with a deadline or a promise that wait or may be kept room here, ascending: of them are
    #: the next two.
    jobs: Ints
    slack: Slack
    schedule: Schedule

    def find(self, jobs: Ints | int) -> Ints:
        """Return where some of them are among them."""
        found: Ints = self.jobs.searchsorted(jobs)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Promises:
    """What is kept at all sites. r jobs."""

    bound: Ints  #: (r,) site that keeps room for the job, -1: none.
    floor: Ints  #: (r,) level it has there now.
    promised: Bools  #: (r,)
    apart: Ints  #: Jobs whose site has nothing to give while its gangs move: they wait for it.
    kept: tuple[Kept, ...]
    notes: dict[str, tuple[float, ...]]


def keep(seen: Snapshot, market: Market, pledge_s: float, quotas: Quotas) -> Promises:
    """Go on with what was promised, and plan who else can be in time.

    Args:
        seen: What is known.
        market: Who could do what.
        pledge_s: A promise is given once the rest needs no more than a whole site for so long,
            and no more GPU time than the median job there takes in all; a larger one runs
            without, and may still lose its GPUs to smaller ones.
        quotas: What tenants are guaranteed, and may have.
    """
    jobs, rows, r = seen.jobs, market.rows, len(market.rows)
    bound, floor = np.full(r, -1), np.zeros(r, dtype=np.int64)
    promised = np.zeros(r, dtype=np.bool_)
    due_s = jobs.deadline_s[rows]
    timed = np.isfinite(due_s)
    if not np.count_nonzero(timed):
        return Promises(bound, floor, promised, bound[:0], (), {})
    # All others are as if they were not there.
    some = (timed | (jobs.notes[rows, 0] == PROMISED)).nonzero()[0]
    was, due_s = jobs.notes[rows[some]], due_s[some]
    priority, attained = jobs.priority[rows[some]], jobs.attained_gpu_s[rows[some]]
    calm = (market.home[some] >= 0) | (jobs.changed_s[rows[some]] <= seen.now_s - CALM_S)
    at = _belongs(seen, market, some, was, due_s)
    # In time where it is, on GPUs of others: it may stay.
    home = market.home[some]
    in_s = market.now_s + market.takes_s[market.own[some], some, market.present[some]]
    fine = (home >= 0) & np.isfinite(due_s) & ~market.firm[home] & (in_s <= due_s)
    kept: list[Kept] = []
    notes: dict[str, tuple[float, ...]] = {}
    firm = market.firm.nonzero()[0].tolist()
    pledges = None
    if quotas.names:
        pledges = Pledges(quotas, int(market.gpus[market.firm].sum()))
    for site in firm:
        elsewhere = ((at != _ANY) & (at != site)) | (bound[some] >= 0)
        # Who runs and has its place elsewhere is as if it were not there.
        who: Ints | slice = slice(None)
        if len(firm) > 1:
            who = (~elsewhere | (home < 0)).nonzero()[0]
            elsewhere = elsewhere[who]
        own, mine = some[who], was[who, :3].copy()
        mine[mine[:, 2] <= 0, 1:] = math.nan  # has a place, and does not lend
        mine[elsewhere] = math.nan
        slack = slack_at(market, site, own, due_s[who])
        out = elsewhere | (fine[who] & (mine[:, 0] != PROMISED))
        slack.least[out] = 0
        schedule = resume(slack, mine)
        if pledges is not None:
            pledges.turn_to(own)
            _within(slack, schedule, pledges)
        small = _small(slack, attained[who], pledge_s)
        schedule = _plan(slack, schedule, priority[who], pledges, small | calm[who])
        here = schedule.kept
        floor[own[here]], bound[own[here]] = schedule.level[here], site
        given = here & (small | (mine[:, 0] == PROMISED))
        promised[own[given]] = True
        anew = np.zeros(len(own), dtype=np.bool_)
        anew[renewed(slack, schedule, given, mine)] = True
        # Of several sites, who lends all it has must find its way back: it notes its pool.
        pool = (_mark(seen.pools.ids[market.sites[site]]),) if len(firm) > 1 else ()
        if pool:
            anew |= given & (was[who, 3] != pool[0])
        for job in anew.nonzero()[0].tolist():
            note = written(slack, schedule, job)
            if pool:  # in the fourth place; 0 in the second and third says that it does not lend
                note = (*note, 0.0, 0.0)[:3] + pool
            notes[jobs.ids[rows[own[job]]]] = note
        kept.append(Kept(site, own, slack, schedule))
    for row, to, level in _elsewhere(market, bound, floor, promised, kept):
        bound[row], floor[row] = kept[to].site, level
        mark = _mark(seen.pools.ids[market.sites[kept[to].site]])
        notes[jobs.ids[rows[row]]] = (PROMISED, 0.0, 0.0, mark)
    return Promises(bound, floor, promised, some[at == _APART], tuple(kept), notes)


def _elsewhere(
    market: Market, bound: Ints, floor: Ints, promised: Bools, kept: Sequence[Kept]
) -> list[tuple[int, int, int]]:
    """Let promised jobs that lend all they have go to other sites whose GPUs nobody has.

    Each is promised the smallest size there with which it is in time, for as long as it takes, if
    that is no more than it would come back to.

    Args:
        market: Who could do what.
        bound: (r,) site that keeps room for the job, -1: none.
        floor: (r,) level it has there now.
        promised: (r,)
        kept: Of all firm sites; changed.

    Returns:
        Who of the jobs that have a promise goes to which of `kept`, at which level.
    """
    if len(kept) < 2 or not any(one.schedule.lending for one in kept):
        return []
    site = np.where(bound < 0, market.home, bound)
    level = np.where(site == market.home, np.maximum(market.present, floor), floor)
    idle = market.gpus - np.bincount(site + 1, market.sizes[level], len(market.gpus) + 1)[1:]
    found: list[tuple[int, int, int]] = []
    for own in kept:
        lends = (own.schedule.level == 0) & np.isfinite(own.schedule.until_s)
        lends &= promised[own.jobs] & (market.home[own.jobs] < 0)
        for job in (own.schedule.kept & lends).nonzero()[0].tolist():
            back, row = own.slack.sizes[own.schedule.back[job]], int(own.jobs[job])
            for at, other in enumerate(kept):
                slack, there = other.slack, int(other.find(row))
                least = int((slack.now_s + slack.takes_s[there] <= slack.due_s[there]).argmax())
                if other is own or not 0 < slack.sizes[least] <= min(idle[other.site], back):
                    continue
                tried = other.schedule.copy()
                tried.stay(there, least)
                tried.kept[there] = True
                if free_over_time(slack, tried).free.min() < 0:
                    continue
                other.schedule.stay(there, least)
                other.schedule.kept[there] = True
                own.schedule.stay(job, 0)
                own.schedule.kept[job] = False
                idle[other.site] -= int(slack.sizes[least])
                found.append((row, at, least))
                break
    return found


def _belongs(seen: Snapshot, market: Market, some: Ints, was: Floats, due_s: Floats) -> Ints:
    """Find for some jobs the firm site that keeps room for each, `_ANY`, or `_APART`.

    Where it runs, if it was promised or can be in time there. Who was promised and lends all it
    has belongs to the pool in its note, its fourth number; if that is no site now, because all its
    gangs move, the job waits for it.
    """
    at = np.full(len(was), _ANY)
    promised = was[:, 0] == PROMISED
    home = market.home[some]
    runs = ((home >= 0) & market.firm[home]).nonzero()[0]
    soonest_s = np.minimum.reduce(market.takes_s[market.own[some[runs]], some[runs]], axis=1)
    stays = runs[promised[runs] | (market.now_s + soonest_s <= due_s[runs])]
    at[stays] = home[stays]
    noted = (promised & (home < 0) & np.isfinite(was[:, 3])).nonzero()[0]
    if len(noted):
        marks = np.array([_mark(name) for name in seen.pools.ids])
        usable = np.isin(np.arange(len(marks)), seen.nodes.pool[seen.nodes.usable])
        apart = np.isin(was[noted, 3], marks[usable])
        at[noted] = np.where(apart, _APART, _ANY)
        for site in market.firm.nonzero()[0].tolist():
            at[noted[was[noted, 3] == marks[market.sites[site]]]] = site
    return at


def _mark(pool: str) -> float:
    """Return a number for a pool's name: its index may be another's in the next snapshot."""
    return float(crc32(pool.encode()))


def _within(slack: Slack, schedule: Schedule, pledges: Pledges) -> None:
    """Count what is promised; where a limit fell below it, the largest rests lose."""
    who = schedule.kept.nonzero()[0]
    most = slack.sizes[np.maximum(schedule.level, schedule.back)]
    for job in who[np.argsort(slack.area_gpu_s[who], kind="stable")].tolist():
        if pledges.within(job, int(most[job])):
            pledges.take(job, int(most[job]))
        else:
            schedule.kept[job] = False
            schedule.stay(job, 0)


def _plan(
    slack: Slack, schedule: Schedule, priority: Ints, pledges: Pledges | None, may_borrow: Bools
) -> Schedule:
    """Plan who can be in time beside those promised, by class, then least GPU time first."""
    able = (~schedule.kept & (slack.least > 0)).nonzero()[0]
    if not len(able):
        return schedule
    order = able[np.lexsort((able, slack.area_gpu_s[able], -priority[able]))]
    # Where all keep their sizes to the end, room now is room for ever.
    if not schedule.lending:
        room = slack.gpus - int(np.add.reduce(slack.sizes[schedule.level]))
        gpus = slack.sizes[slack.least[order]]
        now = order[: int(gpus.cumsum().searchsorted(room, side="right"))]
        if pledges is not None:
            now = now[: pledges.take_all(now.tolist(), gpus.tolist())]
        schedule.stay(now, slack.least[now])
        schedule.kept[now] = True
        order = order[len(now) :]
    if not len(order):
        return schedule
    places = _Room(slack, schedule)
    failed = [0, 0]  # of those who wait, of those who run: these must not lose theirs by the others
    for job in order.tolist():
        runs = int(slack.present[job] > 0)
        if failed[runs] >= TRIES:
            continue
        levels = (slack.now_s + slack.takes_s[job] <= slack.due_s[job]).nonzero()[0].tolist()
        if pledges is not None:
            levels = [one for one in levels if pledges.gives(job, int(slack.sizes[one]))]
            if not levels:
                continue
        level = places.place(job, levels, bool(may_borrow[job]))
        if level is None:
            failed[runs] += 1
        elif level and pledges is not None:
            pledges.take(job, int(slack.sizes[level]))
    return places.schedule


class _Room:
    """What those who are planned leave of a site over time, and who comes into it."""

    def __init__(self, slack: Slack, schedule: Schedule) -> None:
        self.schedule, self._level = schedule, schedule.level.copy()
        self._slack = slack
        self._latest_s: Floats | None = None  # from those levels, once it is asked for
        self._profile = free_over_time(slack, schedule)
        self._ahead: list[Piece] = []  # what is kept for who starts later
        self._checked = 0

    def place(self, job: int, levels: Sequence[int], may_borrow: bool) -> int | None:
        """Find room for a job at one of the levels at which it is in time.

        Returns:
            The level that it has from now on; 0 if it starts later; None if there is no room.
        """
        present = int(self._slack.present[job])
        # Who runs in time goes on if others can lend it room. To stop it, and to start it again
        # later, would cost a pause, and the next plan may find it room at once again.
        if present in levels:
            # Sizes below the least are just enough, and come last.
            first = sorted(levels, key=lambda one: one < self._slack.least[job])
            fewer = [one for one in reversed(levels) if one <= present]
            if level := self.now(job, first) or self.lent(job, fewer):
                return level
        for level in levels:
            if self.now(job, [level]):
                return level
            if self.later(job, level):
                return 0
        return (self.lent(job, levels[:LARGER]) if may_borrow else 0) or None

    def now(self, job: int, levels: Sequence[int]) -> int:
        """Give a job the first level that has room from now on to its end; 0 if none has."""
        slack = self._slack
        for level in levels:
            gpus, takes_s = int(slack.sizes[level]), float(slack.takes_s[job, level])
            if free_now(self._profile, gpus, takes_s):
                self.schedule.stay(job, level)
                self.schedule.kept[job] = True
                reserve(self._profile, gpus, slack.now_s, takes_s)
                return level
        return 0

    def later(self, job: int, level: int) -> bool:
        """Keep room for a job that can start later at a level, and be in time."""
        slack = self._slack
        gpus, takes_s = int(slack.sizes[level]), float(slack.takes_s[job, level])
        start_s = earliest(self._profile, gpus, takes_s)
        if len(self._ahead) >= AHEAD or start_s + LATE_S + takes_s > slack.due_s[job]:
            return False
        self._ahead.append((start_s, start_s + takes_s, gpus))
        reserve(self._profile, gpus, start_s, takes_s)
        return True

    def lent(self, job: int, levels: Sequence[int]) -> int:
        """Give a job the first level for which others lend it room to its end; 0 if none is."""
        for level in levels if self._checked < LOANS else ():
            if self._latest_s is None:
                self._latest_s = latest_return_s(self._slack, self._level)
            found = borrow(
                self._slack, self.schedule, self._latest_s, self._profile, job, level, LATE_S
            )
            if found is None:
                continue
            self._checked += 1
            left = free_over_time(self._slack, found, self._ahead)
            if left.free.min() >= 0:
                self.schedule, self._profile = found, left
                return level
        return 0


def _small(slack: Slack, attained_gpu_s: Floats, pledge_s: float) -> Bools:
    """Say whose rest is so small that hardly more than one other could be in time in its place.

    Of those who come about half need less than the median of those that are there. Where lengths
    differ much, those that are there are the long ones, so the site is a limit as well.
    """
    timed = slack.least > 0
    whole_gpu_s = np.sort(slack.area_gpu_s[timed] + attained_gpu_s[timed])
    many = len(whole_gpu_s)  # numpy's own median takes five times as long for so few
    middle = whole_gpu_s[(many - 1) // 2 : many // 2 + 1]
    median_gpu_s = float(middle.sum()) / len(middle) if many else 0.0
    small: Bools = slack.area_gpu_s <= min(median_gpu_s, pledge_s * slack.gpus)
    return small


def hold(promises: Promises, value: Floats) -> None:
    """Bind jobs to what is kept for them, in their worth: nothing that would end too late.

    Args:
        promises: Whose.
        value: (S, r, k) of `worth`; changed.
    """
    if len(promises.apart):
        value[:, promises.apart, 1:] = -math.inf
    who = (promises.bound >= 0).nonzero()[0]
    if not len(who):
        return
    site, floor = promises.bound[who], promises.floor[who]
    for kept in promises.kept:
        mine, at = who[site == kept.site], floor[site == kept.site]
        slack, own, which = kept.slack, value[kept.site], kept.find(mine)
        late = slack.due_s[which, None] < slack.now_s + slack.takes_s[which]
        late &= (at > 0)[:, None]
        late[np.arange(len(mine)), at] = False
        own[mine] = np.where(late, -math.inf, own[mine])
        own[mine, at] = np.maximum(own[mine, at], 0.0)  # what is kept, whatever it is worth
