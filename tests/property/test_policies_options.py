"""What an option of a policy may be, a policy can decide with."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from scheduler.policies.registry import POLICIES, make_policy
from tests.property.test_policies import random_snapshot
from tests.snapshots import Job, Pool, decide, faults, snapshot

#: Three small clusters in which every range that there is would be missed.
SEEDS = (7, 16, 17)
#: Ends of ranges, what divides badly, and what is not to be taken for 0.
NUMBERS = ("-8", "-1e-308", "0", "1e-308", "1e-9", "1", "2", "8", "1000", "72000", "1e9")


def numbers(of: Any, path: str = "") -> Iterator[tuple[type, str, str]]:
    """Give the options that are numbers: of which dataclass, the field, and the whole path."""
    for one in fields(of):
        value = getattr(of, one.name)
        if is_dataclass(value):
            yield from numbers(value, f"{path}{one.name}.")
            continue
        first = value[0] if isinstance(value, tuple) and value else value
        if isinstance(first, int | float) and not isinstance(first, bool):
            yield type(of), one.name, f"{path}{one.name}"


def options_by_policy() -> dict[str, list[str]]:
    """Give the options by policy, those of shared parts for the first one alone."""
    seen: set[tuple[type, str]] = set()
    found: dict[str, list[str]] = {}
    for name, make in POLICIES.items():
        for kind, field, path in numbers(make()):
            if (kind, field) not in seen:
                seen.add((kind, field))
                found.setdefault(name, []).append(path)
    return found


def ends_of(name: str, path: str) -> list[str]:
    """Give the policy with this option at its least, at what comes next, and at its most."""
    value: Any = make_policy(name)
    for part in path.split("."):
        value = getattr(value, part)
    accepted = []
    for number in NUMBERS:
        said = f"[{','.join([number] * len(value))}]" if isinstance(value, tuple) else number
        with suppress(ValueError):
            make_policy(f"{name}:{path}={said}")
            accepted.append(f"{name}:{path}={said}")
    assert 1 < len(accepted) < len(NUMBERS), f"{path} has no range"
    return list(dict.fromkeys((*accepted[:2], accepted[-1])))


@pytest.mark.parametrize(("name", "paths"), options_by_policy().items())
def test_what_is_accepted_can_be_decided_with(name: str, paths: list[str]) -> None:
    snapshots = [random_snapshot(np.random.default_rng(seed)) for seed in SEEDS]
    for path in paths:
        for line in ends_of(name, path):
            for seen in snapshots:
                assert faults(seen, make_policy(line).plan(seen)) == [], line


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("gpus", [8, 512])
def test_a_job_alone_is_given_gpus(name: str, gpus: int) -> None:
    """However little its smallest size is of a large pool."""
    sizes = [2**power for power in range(10) if 2**power <= gpus]
    job = Job("j", sizes=sizes, power=1.0)
    seen = snapshot([Pool("p", nodes=gpus // 8)], [job], sizes=sizes)
    assert decide(make_policy(name), seen).targets["j"] is not None
