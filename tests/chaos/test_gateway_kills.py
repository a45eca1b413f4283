"""Gateways over real Kafka, killed at random moments while people ask."""

import os
from pathlib import Path

import pytest

from bus.options import KafkaOptions
from tests.brokers import fresh_namespace
from tests.chaos.gateway_kills import run, show

SEED = int(os.environ.get("TIDEGATE_SEED", "3"))

pytestmark = [pytest.mark.broker, pytest.mark.slow]


async def test_killed_at_random_moments_each_request_is_done_once_and_each_answer_is_true(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    kafka = KafkaOptions(kafka_bootstrap, namespace=fresh_namespace(), replication=1)
    figures = await run(40, SEED, kafka, tmp_path)
    print(show(figures))  # noqa: T201 - shown when it fails
    assert figures["problems"] == []
    assert figures["done"] + figures["refused"] == figures["requests"] == 40
    assert figures["gateways_killed"] > 1
    assert figures["asked_again"] > 0
