"""Rules and dashboards ask for figures that there are, and promtool takes them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from edge_agent.agent import EdgeAgentConfig
from runtime.spool import SpoolLimit
from services.metrics import METRICS
from tests.integration.processes import Fleet
from tests.patience import wait_until

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "compose" / "prometheus" / "rules.yaml"
DASHBOARDS = sorted((ROOT / "compose" / "grafana" / "dashboards").glob("*.json"))

#: Figures that nobody charts, on purpose: none.
UNUSED: set[str] = set()
#: Prometheus adds these to each series that it scrapes.
ADDED = {"job", "instance"}

METRIC = re.compile(r"\b(tidegate_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
LABEL = re.compile(r"(\w+)\s*[=!]~?\s*\"")
SHOWN = re.compile(r"\{\{\s*(?:with\s+)?(?:\$labels\.)?(\w+)\s*\}\}")


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["panels"]
    return found


def asked() -> list[tuple[str, str, str]]:
    """(where, expression, text in which labels are shown) of all rules and panels."""
    found = [(rule["alert"], rule["expr"], rule["annotations"]["summary"]) for rule in rules()]
    for file in DASHBOARDS:
        for panel in panels(file):
            for target in panel["targets"]:
                where = f"{file.stem}: {panel['title']}"
                found.append((where, target["expr"], target["legendFormat"]))
    return found


def base(name: str) -> str:
    """Give the metric of the table that a series belongs to; empty if none."""
    for suffix in ("", "_bucket", "_sum", "_count"):
        short = name.removesuffix(suffix)
        if short in METRICS and (suffix == "") == (METRICS[short].kind != "histogram"):
            return short
    return ""


@pytest.mark.parametrize(("where", "expression", "shown"), asked())
def test_every_metric_and_label_is_in_the_table(where: str, expression: str, shown: str) -> None:
    plain = re.sub(r'"[^"]*"', '""', expression)
    for name, selectors in METRIC.findall(expression):
        assert base(name), f"{name} is no metric, or is a histogram without _bucket"
        known = {*METRICS[base(name)].labels, *ADDED, *(["le"] if "_bucket" in name else [])}
        assert set(LABEL.findall(selectors)) <= known, f"{name} has no such label"
    labels = {
        label for name, _ in METRIC.findall(expression) for label in METRICS[base(name)].labels
    }
    grouped = {
        label.strip() for group in GROUPED.findall(plain) for label in group.split(",") if label
    }
    assert grouped <= labels | ADDED | {"le"}
    # What is shown survives the grouping.
    visible = set(SHOWN.findall(shown)) - {"value", "else", "end"}
    assert visible <= (grouped if GROUPED.search(plain) else labels | ADDED)


def test_every_metric_is_looked_at_or_left_out_on_purpose() -> None:
    used = {base(name) for _, expression, _ in asked() for name, _ in METRIC.findall(expression)}
    assert used | UNUSED == set(METRICS)
    assert not used & UNUSED


def test_alerts_have_one_name_each_a_severity_and_a_place_in_the_manual() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert {rule["labels"]["severity"] for rule in rules()} == {"critical", "warning"}
    manual = (ROOT / "docs" / "deploy.md").read_text()
    assert [name for name in names if name not in manual] == []
    assert set(re.findall(r"\bTidegate[A-Z]\w+", manual)) <= set(names)


def test_spools_are_near_full_at_four_fifths_of_their_defaults() -> None:
    (rule,) = (rule for rule in rules() if rule["alert"] == "TidegateSpoolNearFull")
    edge = EdgeAgentConfig("edge-1").options.spool
    said = re.findall(r'spool_(\w+)\{job="([\w-]+)"\} > 0.8 \* (\d+)', rule["expr"])
    assert sorted((job, what, int(number)) for what, job, number in said) == [
        ("cloud-agent", "bytes", SpoolLimit().size_bytes),
        ("cloud-agent", "messages", SpoolLimit().messages),
        ("edge-agent", "bytes", edge.size_bytes),
        ("edge-agent", "messages", edge.messages),
    ]


def test_dashboards_have_distinct_panels_and_the_provisioned_source() -> None:
    source = ROOT / "compose/grafana/provisioning/datasources/tidegate.yaml"
    (provisioned,) = yaml.safe_load(source.read_text())["datasources"]
    documents = [json.loads(file.read_text()) for file in DASHBOARDS]
    assert [one["title"] for one in documents] == [
        "Tidegate: bus",
        "Tidegate: machines",
        "Tidegate: scheduling",
    ]
    assert len({one["uid"] for one in documents}) == len(documents)
    for one in documents:
        assert len({panel["id"] for panel in one["panels"]}) == len(one["panels"])
        assert {panel["datasource"]["uid"] for panel in one["panels"]} == {provisioned["uid"]}
        taken: set[tuple[int, int]] = set()
        for panel in one["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not cells & taken, f"{panel['title']} lies on another panel"
            assert at["x"] + at["w"] <= 24
            taken |= cells


# --- promtool -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        text = "NOT TESTED here: promtool is not installed: sudo apt-get install prometheus"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return found


def check(promtool: str, *arguments: str | Path, text: str | None = None) -> None:
    done = subprocess.run(
        [promtool, *map(str, arguments)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_promtool_takes_the_configuration_and_its_rules(promtool: str) -> None:
    check(promtool, "check", "config", RULES.with_name("prometheus.yaml"))


def test_alerts_speak_and_are_silent_when_they_should(promtool: str) -> None:
    check(promtool, "test", "rules", Path(__file__).with_name("rules_test.yaml"))


def test_promtool_takes_every_expression_of_the_dashboards(promtool: str, tmp_path: Path) -> None:
    expressions = [target["expr"] for file in DASHBOARDS for panel in panels(file)
                   for target in panel["targets"]]  # fmt: skip
    filled = [one.replace("$__rate_interval", "1m").replace("$cell", ".*") for one in expressions]
    file = tmp_path / "rules.yaml"
    group = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(filled)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": group}]}))
    check(promtool, "check", "rules", file)


# --- a page that is really served ---------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metrics page of a scheduler that leads a cell in a file."""
    fleet = Fleet(tmp_path_factory.mktemp("scheduler"), 'bus = "sqlite:cell.db"\n')
    try:
        scheduler = fleet.start("scheduler", http__port=0)
        wait_until(lambda: "tidegate_leader_epoch{" in scheduler.get("/metrics")[1])
        yield scheduler.get("/metrics")[1]
    finally:
        fleet.end()


def test_the_served_page_has_what_the_table_says(page: str) -> None:
    served = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(page)
        if family.name.startswith("tidegate")
    }
    expected = {name: what for name, what in METRICS.items() if "scheduler" in what.roles}
    assert set(served) == set(expected)
    for name, family in served.items():
        assert family.type == expected[name].kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(expected[name].labels), name


def test_refusals_that_an_alert_sees_are_served_at_0_before(tmp_path: Path) -> None:
    fleet = Fleet(
        tmp_path, 'bus = "sqlite:cell.db"\n[http]\nport = 0\n[agent]\nruns = "simulated"\n'
    )
    (rule,) = (rule for rule in rules() if rule["alert"] == "TidegateCommandsRefused")
    (reasons,) = re.findall(r'reason=~"(.*?)"', rule["expr"])
    try:
        agent = fleet.start(
            "cloud-agent", agent__name="a", agent__pool="p", agent__pool_kind="training",
            agent__nodes="n", agent__gpus_per_node=1,
        )  # fmt: skip
        refused = agent.metrics()["tidegate_commands_refused_total"]
    finally:
        fleet.end()
    assert refused == {(reason,): 0.0 for reason in reasons.split("|")}


def test_what_an_alert_sees_rise_is_served_at_0_before(page: str) -> None:
    """Prometheus takes the first value of a series for no rise, whatever it is."""
    served = {
        sample.name: [one.labels for one in family.samples if one.name == sample.name]
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    asked = re.findall(r"increase\((tidegate_\w+)(?:\{(\w+)=~\"(.*?)\"\})?", RULES.read_text())
    for name, label, values in asked:
        if "scheduler" in METRICS[name].roles:
            found = {labels.get(label, "") for labels in served.get(name, [])}
            assert set(values.split("|")) <= found, name


def test_promtool_finds_nothing_to_say_about_the_page(promtool: str, page: str) -> None:
    check(promtool, "check", "metrics", text=page)
