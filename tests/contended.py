"""How contended a scenario's GPUs are."""

from simulator.scenario import Scenario, asked_gpu_s


def loads(scenario: Scenario) -> tuple[float, float]:
    """Give the GPU time asked for over what the training pool has, and over that with loans.

    Loans are all that lenders do not need, at their speed.
    """
    asked = asked_gpu_s(scenario.workload, scenario.hours)
    alone = scenario.pool("training").gpus * scenario.hours * 3600.0
    lent = 0.0
    for pool in scenario.pools:
        lenders = [pool.name] if pool.kind == "inference" else [name for name, _ in pool.nodes]
        for tide in (scenario.tides[name] for name in lenders if name in scenario.tides):
            idle = float((tide.capacity - tide.needed).sum() * tide.slot_s)
            lent += idle * pool.speed_factor
    return asked / alone, asked / (alone + lent)
