"""What the configuration says of servers that nobody hears."""

import pytest

from runtime.build import Options
from services.agents import options_of
from services.config import Config, ConfigError

WORKERS = {"folder": "/srv/runs", "checkpoints": "file:///srv/checkpoints"}


def configured(**agent: object) -> Config:
    return Config.model_validate({"agent": {"name": "e", **agent}})


@pytest.mark.parametrize(
    ("agent", "then"),
    [
        ({"runs": "processes", "workers": WORKERS}, "resume"),
        ({"runs": "processes", "workers": WORKERS, "limits": {"after_reboot": "report"}}, "report"),
        ({}, None),
        ({"limits": {"after_reboot": "resume"}}, "resume"),
        ({"runs": "slurm", "workers": WORKERS}, None),
    ],
)
def test_workers_of_this_machine_are_resumed_unless_told_otherwise(
    agent: dict[str, object], then: str | None
) -> None:
    assert options_of(configured(**agent), Options()).limits.after_reboot == then


def test_a_clusters_workers_do_not_go_with_the_agents_machine() -> None:
    config = configured(runs="slurm", workers=WORKERS, limits={"after_reboot": "resume"})
    with pytest.raises(ConfigError, match=r"agent\.limits\.after_reboot: .*take it out"):
        options_of(config, Options())


def test_edge_pools_may_have_a_lease_of_their_own() -> None:
    settings = {"lease_s": 1200, "edge_lease_s": 21_600}
    config = Config.model_validate({"scheduler": {"settings": settings}})
    found = config.scheduler.settings
    assert (found.lease_of("training"), found.lease_of("edge")) == (1200, 21_600)
    assert found.lease_of("inference") == 1200
