"""What `tidegate submit` tells of a job that is allowed, and rarely meant so."""

from types import SimpleNamespace
from typing import Any

import pytest

from console.submission import hints
from schemas.events import JobSubmitted

NODES: Any = [
    SimpleNamespace(pool="train", agent="a", gpu_count=4, gpu_memory_mib=memory)
    for memory in (24_000, 48_000)
]


def told(**over: Any) -> list[str]:
    rates = [{"gpus": 1, "samples_per_s": 1.0}, {"gpus": 8, "samples_per_s": 6.0}]
    fields = {
        "job": "j", "tenant": "t", "model": "m", "gpus_min": 1, "gpus_max": 8,
        "samples_per_step": 1.0, "rates": rates, **over,
    }  # fmt: skip
    return list(hints(JobSubmitted.model_validate(fields), NODES))


def test_what_the_fleet_has_needs_no_word() -> None:
    assert told(memory_mib=48_000) == []


@pytest.mark.parametrize(
    ("over", "word"),
    [
        (
            {"gpus_min": 8, "gpus_max": 16, "memory_mib": 48_001},
            "It waits until a GPU has 48001 MiB: now the largest has 48000 MiB.",
        ),
        ({"gpus_max": 64}, "It grows to 8 GPUs at most: no site has 64 now."),
        (
            {"rates": [{"gpus": 2, "samples_per_s": 300.0}, {"gpus": 4, "samples_per_s": 100.0}]},
            "By its rates it is slower on 4 GPUs than on 2; is that so?",
        ),
        (
            {"rates": [{"gpus": 2, "samples_per_s": 100.0}, {"gpus": 4, "samples_per_s": 300.0}]},
            "By its rates 4 GPUs are 3 times as fast as 2; is that so?",
        ),
    ],
)
def test_what_it_has_not_is_told(over: dict[str, Any], word: str) -> None:
    assert word in told(**over)


def test_a_size_that_no_site_has_is_told() -> None:
    rates = [{"gpus": 16, "samples_per_s": 1.0}]
    (word,) = told(gpus_min=16, gpus_max=16, rates=rates)
    assert word == "It waits until a site has 16 GPUs: now the largest has 8."
