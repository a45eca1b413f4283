"""Real work through kills at chosen moments, over real brokers, under the eyes of a witness."""

import asyncio
from pathlib import Path

import pytest

from tests.brokers import need_brokers
from tests.chaos.real_work import Run, figures_of, keep_busy, show

pytestmark = [pytest.mark.slow, pytest.mark.broker]

#: Whom, and in the middle of what; all on one deployment.
CHOSEN = (
    ("agent", "starting"),
    ("agent", "uploading"),
    ("agent", "resizing"),
    ("agent", "fetching"),
    ("agent", "leaving"),
    ("agent", "checkpointing"),
    ("supervisor", "training"),
    ("worker", "training"),
    ("scheduler", "reclaiming"),
    ("reboot", "checkpointing"),
    ("zombie", "training"),
)


async def test_whoever_is_killed_in_the_middle_of_whatever_the_weights_are_the_same(
    tmp_path: Path,
) -> None:
    need_brokers()
    async with Run(tmp_path / "fleet", seed=1, steps=40) as going:
        busy = asyncio.create_task(keep_busy(going))
        try:
            for victim, phase in CHOSEN:
                while (await going.strike(victim, await going.steer(phase), 1.0)).problem:
                    assert not going.problems, "it only had ended by itself"
        finally:
            busy.cancel()
            await asyncio.wait([busy])
        account = await going.settle()
    figures = figures_of(going, account, 0.0)
    print(show(figures))  # noqa: T201 - shown when it fails
    assert figures["problems"] == []
    assert figures["kills"] == len(CHOSEN)
    assert figures["double_owners"] == figures["double_effects"] == figures["steps_lost"] == 0
    assert figures["steps_repeated_though_durable"] == figures["started_behind"] == 0
    assert figures["weights_equal"]
    assert figures["replay_identical"]
