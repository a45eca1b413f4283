"""docs/configuration.md and docs/metrics.md: up to date, and a meaning for each key."""

import re
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup, TyperOption

from console.verbs import make_app
from services import reference
from services.config import Config
from services.metrics import ALL as METRICS_ROLES, METRICS
from services.process import PORTS


def test_the_pages_are_what_the_code_says() -> None:
    assert reference.main(["--check"]) == 0, "run python -m services.reference"


def test_every_key_has_a_meaning_and_every_section_a_table() -> None:
    text = reference.page()
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.*) \|$", text, re.MULTILINE)
    assert [key for key, _, _, meaning in rows if not meaning] == []
    assert len(rows) == text.count("\n| `")
    sections = set(re.findall(r"^## `\[+([^\]]+)\]+`$", text, re.MULTILINE))
    of_agents = (
        *("schedule", "limits", "spool", "simulated", "workers", "meter", "load", "load.server"),
        *("load.demand", "owner", "owner.hooks", "owner.webhook", "owner.replica"),
        *("owner.replicas", "owner.protect", "owner.retry", "slurm", "kubernetes"),
    )
    of_schedulers = {"scheduler.settings", "scheduler.pool", "scheduler.trusted_gateways.NAME"}
    nested = of_schedulers | {f"agent.{name}" for name in of_agents}
    nested |= {"gateway.auth", "gateway.auth.bindings", "gateway.auth.robots"}
    assert sections == Config.model_fields.keys() - {"cell", "bus"} | nested
    found = {key: (kind, default) for key, kind, default, _ in reversed(rows)}
    assert found["window"] == ("integer, at least 1, at most 100", "`100`")
    assert found["group"] == ("secret string", '`"bridge"`')
    assert found["port"][0] == 'integer, at least 0, at most 65535 or `"off"`'
    assert found["cells"] == ("list of names", '`["default"]`')
    for role, port in PORTS.items():
        assert re.search(rf"a {role}'s (is )?{port}", text), "the comment at http.port"


def test_every_metric_has_a_row() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (?:\S+) \| .* \| .+ \| .+ \|$", reference.metrics(), re.MULTILINE
    )
    assert rows == list(METRICS)


def test_a_page_that_drifted_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "PAGE", tmp_path / "configuration.md")
    assert reference.main(["--check"]) == 1
    assert "run python -m services.reference" in capsys.readouterr().err
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


@pytest.mark.parametrize("role", [*METRICS_ROLES, "config"])
def test_help_leads_there(role: str) -> None:
    group = typer.main.get_command(make_app())
    assert isinstance(group, TyperGroup)
    (option,) = [one for one in group.commands[role].params if "--config" in one.opts]
    assert isinstance(option, TyperOption)
    assert option.help is not None
    assert "docs/configuration.md" in option.help
    assert "tidegate config" in option.help
