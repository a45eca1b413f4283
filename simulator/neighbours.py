"""The pools beside the training pool, made from a seed: inference servers and edge servers.

Their owners' demand is that of `simulator.tides`, or of a trace of requests; it begins two days
before the run, so that forecasts have something to go by. Speeds, memory and paths are those of
the demo's fleet.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from scheduler.policies.interface import Kind
from simulator.pools import Load, SimulatedPool
from simulator.requests import load_of_requests
from simulator.tides import edge_tide, pool_tide

INFERENCE, EDGE = "serve", "edge"
_BEFORE_H = 48.0
#: The share of its GPUs that an inference pool needs at the peak of a trace, as of the tides.
_PEAK = 0.85
#: Hour of the week at which demand begins, so that the run begins with a Monday.
_FIRST_HOUR = 7 * 24 - _BEFORE_H


def neighbours(
    inference_nodes: int,
    edge_nodes: int,
    gpus_per_node: int,
    seed: int,
    hours: float,
    requests: Path | None = None,
) -> tuple[SimulatedPool, ...]:
    """Make the pools that have nodes.

    Args:
        inference_nodes: Servers of the inference pool, each with `gpus_per_node` GPUs.
        edge_nodes: Edge servers, of one GPU each.
        gpus_per_node: GPUs of an inference server.
        seed: The only chance. Each owner has a stream of its own: more servers leave the demand of
            the others as it was.
        hours: Length of the demand; after it, the last stays.
        requests: A trace of requests to the inference pool (Azure's format), instead of a tide:
            again and again, scaled so that its peak needs 85 % of the GPUs.

    Raises:
        WorkloadError: That trace cannot be used.
    """
    pools = []
    from_s, hours = -3600.0 * _BEFORE_H, hours + _BEFORE_H
    if inference_nodes:
        gpus = inference_nodes * gpus_per_node
        rng = np.random.Generator(np.random.PCG64([seed, 1]))
        load = (
            Load.of_tide(pool_tide(rng, gpus, hours, _FIRST_HOUR), from_s)
            if requests is None
            else _asked_by(requests, gpus, from_s, hours)
        )
        pools.append(
            SimulatedPool(
                INFERENCE,
                Kind.INFERENCE,
                inference_nodes,
                gpus_per_node,
                speed=0.8,
                memory_mib=40_960.0,
                transfer_mib_per_s=1_000.0,
                loads=(load,),
            )
        )
    if edge_nodes:
        loads = []
        for number in range(edge_nodes):
            rng = np.random.Generator(np.random.PCG64([seed, 2 + number]))
            loads.append(Load.of_tide(edge_tide(rng, 1, hours, _FIRST_HOUR), from_s))
        pools.append(
            SimulatedPool(
                EDGE,
                Kind.EDGE,
                edge_nodes,
                1,
                speed=0.4,
                memory_mib=16_384.0,
                transfer_mib_per_s=60.0,
                loads=tuple(loads),
            )
        )
    return tuple(pools)


def _asked_by(requests: Path, gpus: int, from_s: float, hours: float) -> Load:
    load = load_of_requests(requests)
    load = load.scaled(_PEAK * gpus / max(float(load.gpus.max()), 1e-9))
    return replace(load, from_s=from_s).repeated(from_s + 3600.0 * hours)
