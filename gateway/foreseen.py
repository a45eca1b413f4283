"""What owners are forecast to need, as the policy in force sees it at a moment."""

from typing import Any
from weakref import WeakKeyDictionary

from gateway.feed import Feed
from gateway.past import Moment
from scheduler.core.state import ClusterState
from scheduler.core.view import View
from scheduler.policies.parts.lending import foreseen
from scheduler.policies.parts.loans import LoanOptions
from scheduler.policies.registry import make_policy

#: How old a forecast of the live state may be, in seconds of the log: the snapshot of a large cell
#: takes half a second.
_OLD_S = 30.0
#: By cell: after how many entries its newest forecast was made, when, and the forecast.
_NEWEST: WeakKeyDictionary[Feed, tuple[int, float, list[dict[str, Any]]]] = WeakKeyDictionary()


def forecast_of(moment: Moment) -> list[dict[str, Any]]:
    """Give by lender what it is forecast to need; nothing under a policy that does not lend."""
    state, feed = moment.state, moment.feed
    if moment.is_past:
        return _forecast(state)
    number, made_s, known = _NEWEST.get(feed, (-1, 0.0, []))
    if number == state.number or (0 <= number < state.number and state.now_s < made_s + _OLD_S):
        return known
    found = _forecast(state)
    _NEWEST[feed] = state.number, state.now_s, found
    return found


def _forecast(state: ClusterState) -> list[dict[str, Any]]:
    options = (
        getattr(make_policy(state.leader.policy), "loans", None) if state.leader.policy else None
    )
    if not isinstance(options, LoanOptions):
        return []
    seen = View().snapshot(state)
    return [
        {
            "lender": lender,
            "rows": [
                {"at_s": state.now_s + after_s, "need": need, "need_high": high}
                for after_s, need, high in rows
            ],
        }
        for lender, rows in foreseen(seen, options)
    ]
