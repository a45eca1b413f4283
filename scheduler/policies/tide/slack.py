"""How much time jobs have to spare at a site: the columns that promises are made of."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from scheduler.policies.interface import Bools, Floats, Ints
from scheduler.policies.tide.market import Market

Columns = TypeVar("Columns", Floats, Bools)
#: Seconds that rounding may cost.
HAIR_S = 1e-3
#: Who runs shrinks only to a size at which it would be in time if it took so much longer: what is
#: known of its speed changes a little all the time, and each time it would need the larger size
#: again, and pay for two changes.
SPARE = 0.01


@dataclass(slots=True, eq=False)
class Slack:
    """What some jobs could do at a site from now on. r jobs, k levels, level 0 is no GPU."""

    now_s: float
    gpus: int  #: for all of them.
    sizes: Ints  #: (k,) GPUs of each level.
    rate: Floats  #: (r, k) work per second.
    work: Floats  #: (r,)
    due_s: Floats  #: (r,) inf for best effort.
    pays: Bools  #: (r, k) as in `Market`.
    present: Ints  #: (r,) level now held.
    start_s: Floats  #: (r, k) pause of a change to each level.
    #: (r, k) the same, but for the present level what is left of the pause under way.
    pause_s: Floats
    takes_s: Floats  #: (r, k) time to the end at each level from now on; inf where it cannot run.
    #: (r,) smallest level that is in time from now on, one below the present with `SPARE`; 0: none
    #: is, or no deadline.
    least: Ints
    #: (r,) GPU time of its work at that level, without pauses: with them, two jobs would change
    #: places in the order of plans whenever one of them was moved. inf without a level.
    area_gpu_s: Floats

    def ends_s(self, who: Ints, level: Ints) -> Floats:
        """Return when jobs end that keep a level from now on."""
        return self.now_s + self.takes_s[who, level]


def slack_at(market: Market, site: int, jobs: Ints, due_s: Floats) -> Slack:
    """Work the columns out for one site.

    Args:
        market: Who could do what.
        site: Where.
        jobs: (r,) of those on the market, ascending: for whom.
        due_s: (r,) inf for best effort.
    """
    present = np.where(market.home[jobs] == site, market.present[jobs], 0)
    runs = present.nonzero()[0]
    # Levels first in memory, as in a market of many jobs: numpy takes rows of those faster.
    leave_s = np.empty((len(market.sizes), len(jobs))).T
    leave_s[:] = market.leave_s[site]
    leave_s[runs, present[runs]] = 0.0
    part, own = market.alike[site], market.own[jobs[runs]]
    others = runs[own != part]

    def there(columns: Columns) -> Columns:
        """(r, k) of such columns of the market."""
        found: Columns = columns[part].T.take(jobs, axis=1).T
        if len(others):
            found[others] = columns[-1, jobs[others]]
        return found

    takes_s = there(market.takes_s) + leave_s
    last_s = np.where(np.isfinite(due_s), due_s + HAIR_S / 10, -math.inf)
    lower = (np.arange(len(market.sizes))[:, None] < present).T
    sure_s = market.now_s + takes_s + SPARE * np.where(lower, takes_s, 0.0)
    least = (sure_s <= last_s[:, None]).argmax(axis=1)  # 0 never is: no GPU
    some = least.nonzero()[0]
    area = np.full(len(due_s), math.inf)
    work, rate = market.work[jobs], there(market.rate)
    area[some] = market.sizes[least[some]] * work[some] / rate[some, least[some]]
    return Slack(
        now_s=market.now_s,
        gpus=int(market.gpus[site]),
        sizes=market.sizes,
        rate=rate,
        work=work,
        due_s=due_s,
        pays=there(market.pays),
        present=present,
        start_s=market.start_s.T.take(jobs, axis=1).T,
        pause_s=there(market.pause_s) + leave_s,
        takes_s=takes_s,
        least=least,
        area_gpu_s=area,
    )


def latest_return_s(slack: Slack, level: Ints) -> Floats:
    """Return (r, k) until when jobs may be at lower levels and be in time back at `level`.

    -inf where that is never so, or the level is not lower. From

        work = rate(low) (s - now - pause(low)) + rate(level) (due - s - start(level)).
    """
    at = np.arange(len(level))
    fast, back_s = slack.rate[at, level][:, None], slack.start_s[at, level][:, None]
    awake_s = slack.now_s + np.where(np.arange(len(slack.sizes)) > 0, slack.pause_s, 0.0)
    timed = np.isfinite(slack.due_s)
    due_s, work = np.where(timed, slack.due_s, slack.now_s)[:, None], slack.work[:, None]
    low = (slack.pays & (slack.sizes <= slack.gpus)) | (slack.sizes == 0)
    low &= (np.arange(len(slack.sizes)) < level[:, None]) & (slack.rate < fast) & timed[:, None]
    latest = np.full(low.shape, -math.inf)
    gained = fast * (due_s - back_s) - work - slack.rate * awake_s
    np.divide(gained, fast - slack.rate, out=latest, where=low)
    # Back before it is awake at the lower level: it then did nothing there.
    idle = np.full(low.shape, -math.inf)
    np.divide(work, np.broadcast_to(fast, low.shape), out=idle, where=low)
    idle = np.where(low, np.minimum(due_s - back_s - idle, awake_s), -math.inf)
    return np.where(latest >= awake_s, latest, idle)
