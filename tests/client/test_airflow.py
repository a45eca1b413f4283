"""What the example for Airflow waits with, without Airflow."""

import httpx

from examples.airflow_operator import TidegateTrigger, submit, watch
from tests.client.test_requests import Gateway
from tidegate_client import AsyncClient, Job


def client_of(gateway: Gateway) -> AsyncClient:
    return AsyncClient("http://127.0.0.1:1", "t", transport=httpx.MockTransport(gateway))


async def test_a_task_is_resumed_when_its_job_ends() -> None:
    gateway = Gateway()
    gateway.states = ["queued", "running", "completed"]
    async with client_of(gateway) as client:
        first = await submit(client, Job(), "dag-task-1")
        assert await submit(client, Job(), "dag-task-1") == first
        assert await watch(client, first, 60) == {"job": first, "good": True, "why": ""}
        gateway.states = ["failed"]
        event = await watch(client, first, 60)
        assert (event["good"], event["why"]) == (False, f"{first} is failed: its worker broke")
        gateway.states = ["queued"]
        assert "is queued after 0 s" in (await watch(client, first, 0))["why"]


def test_a_trigger_is_made_again_from_what_it_says() -> None:
    trigger = TidegateTrigger("prod", "job-1")
    _, fields = trigger.serialize()
    assert TidegateTrigger(**fields).serialize() == trigger.serialize()
