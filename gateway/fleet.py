"""The fleet as columns: what drawing ten thousand nodes needs, and no more."""

from collections.abc import Mapping
from typing import Any

from explain.measured import Heard
from explain.rows import nodes_of
from gateway.past import Moment, guarded
from gateway.sight import View
from gateway.views import framed, reading_of


async def measured_at(moment: Moment) -> dict[str, Heard]:
    """Read what nodes measured last; of a moment of the past nothing is known."""
    if moment.is_past:
        return {}

    async def find() -> dict[str, Heard]:
        return await moment.feed.meter.read(moment.feed.log.bus, [*moment.state.nodes])

    return await guarded(moment.feed, find)


def fleet_of(moment: Moment, view: View, heard: Mapping[str, Heard]) -> dict[str, Any]:
    """Give all nodes and who is on their GPUs, jobs and tenants as they are seen.

    Only jobs that have a GPU are named: no table of all jobs is gone through.
    """
    state = moment.state
    nodes = nodes_of(reading_of(moment))
    pools = {name: place for place, name in enumerate(sorted(state.pools))}
    places: dict[str | None, int] = {None: -1}
    jobs: list[dict[str, str]] = []
    gpus: list[int] = []
    for node in nodes:
        for holder in node.holder:
            place = places.get(holder)
            if place is None:
                assert holder is not None
                place = places[holder] = len(jobs)
                known = state.jobs.get(holder)
                # Who holds a GPU that no job accounts for has no tenant either.
                tenant = "" if known is None else view.tenant(known.tenant)
                jobs.append({"job": view.job(holder), "tenant": tenant})
            gpus.append(place)
    cordons, drains = state.standing.cordons, state.standing.drains
    measured = [heard.get(node.id) for node in nodes]
    return {
        **framed(moment),
        "pools": [{"pool": name, "kind": state.pools[name].kind} for name in pools],
        "nodes": {
            "name": [node.id for node in nodes],
            "pool": [pools[node.pool] for node in nodes],
            "gpus": [node.gpu_count for node in nodes],
            "state": [node.state for node in nodes],
            "loan": [node.loan_state for node in nodes],
            "due_s": [node.due_s for node in nodes],
            "cordoned": [node.id in cordons for node in nodes],
            "draining": [node.id in drains for node in nodes],
            "used": [None if one is None else one.used.busy for one in measured],
        },
        "jobs": jobs,
        "gpus": gpus,
    }
