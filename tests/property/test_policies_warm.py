"""What a policy keeps from plan to plan never changes one."""

import numpy as np
import pytest

from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.parts import loans
from scheduler.policies.registry import make_policy
from tests.property.test_policies import NOW_S, random_jobs, random_pools
from tests.snapshots import snapshot

ROUNDS = 12


def _forget() -> None:
    for kept in (loans._owned, loans._ahead, loans._forecast):
        kept.cache_clear()


def _seen(rng: np.random.Generator) -> Snapshot:
    pools = random_pools(rng)
    return snapshot(pools, random_jobs(rng, pools), now_s=NOW_S)


@pytest.mark.parametrize("policy", ["tide", "aryl"])
@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_the_same_whatever_was_planned_before(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = [_seen(rng) for _ in range(ROUNDS)]
    cold: list[Plan] = []
    for one in seen:
        _forget()
        cold.append(make_policy(policy).plan(one))
    kept = make_policy(policy)
    order = [*range(ROUNDS), *rng.permutation(ROUNDS).tolist()]
    assert [kept.plan(seen[at]) for at in order] == [cold[at] for at in order]
    assert loans._owned.cache_info().hits > 0
