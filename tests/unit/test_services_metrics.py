"""The metrics page: all that the table says and nothing else; GPUs are counted once each."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.core.engine import Engine
from scheduler.core.state import ClusterState, Lender, Node, Pool
from scheduler.core.stimuli import Cause, Input, LeaderStarted, Stimulus
from scheduler.core.transitions import LoanState, NodeState
from scheduler.policies.registry import make_policy
from scheduler.telemetry import Telemetry
from schemas.events import NodeMeasured
from services.cell_samples import NODES_MAX, count_gpus, state_samples, use_samples
from services.metrics import ALL, METRICS, Page, RoleName, Sample, histogram
from tests.builders import submitted


def families(page: Page) -> dict[str, str]:
    found = {}
    for family in text_string_to_metric_families(page.text().decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family.type
        assert family.documentation, f"{name} has no help"
    return found


@pytest.mark.parametrize("role", ALL)
def test_a_page_has_exactly_the_roles_metrics(role: RoleName) -> None:
    found = {
        name: kind for name, kind in families(Page(role, list)).items() if name.startswith("tide")
    }
    assert found == {name: what.kind for name, what in METRICS.items() if role in what.roles}


def test_the_page_tells_of_the_process_too() -> None:
    assert {"process_resident_memory_bytes", "python_info"} <= families(Page("bridge", list)).keys()


def test_names_say_what_they_are() -> None:
    for name, what in METRICS.items():
        assert name.startswith("tidegate_")
        assert name.endswith("_total") == (what.kind == "counter"), name
        assert what.help.endswith("."), name
        assert what.roles


def test_a_histogram_adds_up() -> None:
    durations = histogram("tidegate_decision_seconds", "west")
    for seconds in (0.0005, 0.001, 0.03, 100_000.0):
        durations.labels("west").observe(seconds)

    def read() -> Iterable[Sample]:
        yield Sample("tidegate_decision_seconds", durations)

    lines = Page("scheduler", read).text().decode().splitlines()
    shown = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("tidegate_decision_seconds")
    }
    name = 'tidegate_decision_seconds_{}{{cell="west"{}}}'
    assert not any("created" in series for series in shown)
    assert shown[name.format("bucket", ',le="0.001"')] == 2, "a bound belongs to its bucket"
    assert shown[name.format("bucket", ',le="0.05"')] == 3
    assert shown[name.format("bucket", ',le="+Inf"')] == 4
    assert shown[name.format("count", "")] == 4
    assert shown[name.format("sum", "")] == pytest.approx(100_000.0315)


def test_a_histogram_is_shown_before_anything_was_observed() -> None:
    nothing = Sample("tidegate_reclaim_seconds", histogram("tidegate_reclaim_seconds", "west"))
    text = Page("scheduler", lambda: [nothing]).text().decode()
    assert 'tidegate_reclaim_seconds_count{cell="west"} 0.0' in text


def node(name: str, pool: str, held: int, gpus: int = 4) -> Node:
    made = Node(name, "agent", pool, gpus, "A100", 1000, 1.0, 1.0, 0)
    made.holder = ["job"] * held + [None] * (gpus - held)
    return made


def test_each_gpu_has_one_use() -> None:
    state = ClusterState()
    nodes = [node("t0", "train", 3), node("i0", "infer", 0), node("i1", "infer", 1)]
    nodes += [node("i2", "infer", 0), node("e0", "edge", 0, gpus=1), node("d0", "train", 0)]
    for one in nodes:
        state.nodes[one.id] = one
        kind = {"train": "training", "infer": "inference", "edge": "edge"}[one.pool]
        state.pools.setdefault(one.pool, Pool(one.pool, kind)).nodes.append(one.id)
    state.nodes["i1"].loan_state = LoanState.LENT
    state.nodes["i2"].state = NodeState.UNKNOWN
    state.nodes["d0"].state = NodeState.DEAD
    state.lenders["infer"] = Lender("infer", served=3.0)
    state.lenders["e0"] = Lender("e0", served=0.0)
    found = {key: gpus for key, gpus in count_gpus(state).items() if gpus}
    assert found == {
        ("train", "training"): 3,
        ("train", "idle"): 1,
        ("infer", "serving"): 3,
        ("infer", "idle"): 1,
        ("infer", "training"): 1,
        ("infer", "loaned"): 3,
        ("infer", "unknown"): 4,
        ("edge", "idle"): 1,
    }


def measured(name: str, used: list[float | None], memory: list[int | None]) -> NodeMeasured:
    nothing: list[float | None] = [None] * len(used)
    return NodeMeasured(
        node=name,
        window_s=60.0,
        gpu_utilisation=used,
        gpu_memory_used_mib=memory,
        gpu_temperature_c=nothing,
        gpu_power_w=[100.0, *nothing[1:]],
    )


def test_what_gpus_do_is_told_by_pool_of_those_that_were_measured_of_late() -> None:
    state, telemetry = ClusterState(), Telemetry()
    for name, pool in (("t0", "train"), ("t1", "train"), ("t2", "train"), ("e0", "edge")):
        state.pools.setdefault(pool, Pool(pool, "training")).nodes.append(name)
    telemetry.fold(
        [
            (1_000.0, measured("t0", [1.0, 0.8, 0.9, 0.9], [1000] * 4)),
            (1_000.0, measured("t1", [None, None], [None, None])),
            (1_000.0, measured("t2", [0.0, 0.3], [10, 30])),
            (500.0, measured("e0", [1.0], [1000])),
        ]
    )
    found = {
        (one.name.removeprefix("tidegate_gpu_"), *one.labels): one.value
        for one in use_samples("west", state, telemetry, since_s=700.0)
        if "_node_" not in one.name
    }
    assert found == {
        ("utilisation", "west", "train"): pytest.approx((3.6 + 0.3) / 6),
        ("memory_used_bytes", "west", "train"): 4_040 * 2**20,
        ("power_watts", "west", "train"): pytest.approx(300.0),
    }


def test_what_gpus_do_is_told_by_node_up_to_a_bound() -> None:
    state, telemetry = ClusterState(), Telemetry()
    names = [f"n{number:04}" for number in range(NODES_MAX + 5)]
    for name in reversed(names):
        state.nodes[name] = node(name, "edge", 0, gpus=1)
    telemetry.fold([(1_000.0, measured(name, [0.5], [100])) for name in names[1:]])
    found = {
        (one.name, *one.labels): one.value
        for one in use_samples("west", state, telemetry, since_s=700.0)
    }
    assert found["tidegate_node_gpu_utilisation", "west", "edge", "n0001"] == pytest.approx(0.5)
    assert found["tidegate_node_gpu_memory_used_bytes", "west", "edge", "n0001"] == 100 * 2**20
    assert len(found) == 2 * (NODES_MAX - 1), "the first was not measured, the last are too many"


def test_jobs_and_gpus_are_told_by_tenant() -> None:
    engine = Engine(ClusterState(cell="default"), make_policy)
    told: list[tuple[str, Input]] = [("/schedulers/a", LeaderStarted("test", 1, "fifo", {}))]
    for name, tenant in (("a", "acme"), ("b", "acme"), ("z", "zeta")):
        asked = submitted(name).model_copy(update={"tenant": tenant})
        told.append((f"/tenants/{tenant}", asked))
    for number, (source, said) in enumerate(told):
        engine.handle(Stimulus(1_000.0 + number, said, Cause(source, 0, number)))
    state = engine.state
    state.nodes["n0"] = node("n0", "train", 0)
    state.nodes["n0"].holder = ["a", "a", None, "gone"]
    found = {
        (one.name.removeprefix("tidegate_tenant_"), *one.labels): one.value
        for one in state_samples("west", state)
        if one.name.startswith("tidegate_tenant_")
    }
    assert found == {
        ("jobs", "west", "acme", "queued"): 2,
        ("jobs", "west", "zeta", "queued"): 1,
        ("gpus", "west", "acme"): 2,
        ("gpus", "west", "zeta"): 0,
    }
