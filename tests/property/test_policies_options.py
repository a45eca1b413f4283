"""What an option of a policy may be, a policy can decide with."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from scheduler.policies.registry import POLICIES, make_policy
from tests.property.test_policies import random_snapshot
from tests.snapshots import faults

#: Three small clusters in which every range that there is would be missed.
SEEDS = (7, 16, 17)
#: Ends of ranges, and what divides badly.
NUMBERS = ("-8", "0", "1e-9", "1", "8", "1000", "72000", "1e9")


def numbers(of: Any, path: str = "") -> Iterator[tuple[type, str, str]]:
    """Give the options that are numbers: of which dataclass, the field, and the whole path."""
    for one in fields(of):
        value = getattr(of, one.name)
        if is_dataclass(value):
            yield from numbers(value, f"{path}{one.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield type(of), one.name, f"{path}{one.name}"


def each_once() -> dict[str, list[str]]:
    """Give the options by policy, those of shared parts for the first one alone."""
    seen: set[tuple[type, str]] = set()
    found: dict[str, list[str]] = {}
    for name, make in POLICIES.items():
        for kind, field, path in numbers(make()):
            if (kind, field) not in seen:
                seen.add((kind, field))
                found.setdefault(name, []).append(path)
    return found


@pytest.mark.parametrize(("name", "paths"), each_once().items())
def test_what_is_accepted_can_be_decided_with(name: str, paths: list[str]) -> None:
    snapshots = [random_snapshot(np.random.default_rng(seed)) for seed in SEEDS]
    for path in paths:
        accepted = {}
        for number in NUMBERS:
            with suppress(ValueError):
                accepted[number] = make_policy(f"{name}:{path}={number}")
        assert 1 < len(accepted) < len(NUMBERS), f"{path} has no range"
        ends = list(accepted)
        for number in dict.fromkeys((*ends[:2], ends[-1])):
            for seen in snapshots:
                assert faults(seen, accepted[number].plan(seen)) == [], f"{path}={number}"
