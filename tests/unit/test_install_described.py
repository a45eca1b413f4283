"""What is written of the GPUs of a server that is installed."""

import sys
import tomllib
from dataclasses import replace

import pytest

from services.agents import MEMORY_UNKNOWN
from services.install.described import described
from services.install.layout import Layout
from services.install.wanted import InstallError, Request
from tests.metering.fake_nvml import NOT_SUPPORTED, Card, FakeNvml

REQUEST = Request("e", "mqtt://b", "file:///srv/c", owner="none")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml([Card("GPU-1"), Card("GPU-2")])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_gpus_are_counted_and_their_memory_is_written(driver: FakeNvml) -> None:
    (file,) = described(REQUEST, Layout(), 0.0).files
    agent = tomllib.loads(file.content.decode())["agent"]
    assert (agent["gpus"], agent["gpu_memory_mib"]) == (2, 81_559)


@pytest.mark.parametrize("gpus", [None, 1])
def test_no_configuration_is_written_that_starts_no_agent(
    driver: FakeNvml, gpus: int | None
) -> None:
    for card in driver.cards:
        card.errors["memory"] = NOT_SUPPORTED
    with pytest.raises(InstallError) as refused:
        described(replace(REQUEST, gpus=gpus), Layout(), 0.0)
    said = f"--gpus: {MEMORY_UNKNOWN}, in a configuration that you give by --config"
    assert refused.value.lines == (said,)
    slots = replace(REQUEST, gpus=2, gpu_type="cpu")
    assert described(slots, Layout(), 0.0).config.agent.gpus == 2
