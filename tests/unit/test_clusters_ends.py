"""An end is reported under the newest epoch that was ordered; the core ignores any other."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_agent.clusters.executor import ClusterExecutor
from cloud_agent.clusters.gang_record import write
from runtime.core import GangCompleted, GangFailed, ScaleWorkers, StartWorkers, StopWorkers
from runtime.executors.gang_record import GangRecord
from schemas.programs import Program
from tests.driven import spec
from tests.unit.test_clusters_folder import Agent
from tests.workers import shell

SCALE = ScaleWorkers("j", 4, {"n1": (0, 1)})
STOP = StopWorkers("j", 4, True, 60.0)
ENDED = GangCompleted("j", 4, 10)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    for executor in made.made:
        executor.close()


def ended(agent: Agent) -> ClusterExecutor:
    """Give an executor whose gang has ended at epoch 3, while its core holds it at epoch 4."""
    executor, _ = agent.begin()
    executor.close()
    record = GangRecord("j", 3, {"n1": (0,)}, spec(shell("true")), 0)
    record.final = GangCompleted("j", 3, 10)
    write(record, agent.root / "held")
    executor, _ = agent.begin(j=4)
    return executor


@pytest.mark.parametrize("order", [SCALE, STOP])
def test_a_gang_that_ended_before_an_order_came_ends_under_its_epoch(
    agent: Agent, order: ScaleWorkers | StopWorkers
) -> None:
    executor = ended(agent)
    if isinstance(order, ScaleWorkers):
        executor.scale(order, time.time())
    else:
        executor.stop(order, time.time())
    agent.until(executor, lambda: ENDED in agent.said)
    agent.until(executor, lambda: not list((agent.root / "held").glob("j*")))


def test_an_end_that_was_taken_under_an_old_epoch_is_not_forgotten_before_the_order(
    agent: Agent,
) -> None:
    executor = ended(agent)
    executor._has_begun = True  # no thread: it is late
    executor.scale(SCALE, time.time())
    assert executor.advance(time.time()) == [GangCompleted("j", 3, 10)]
    assert executor.advance(time.time()) == []
    executor._round()
    assert executor.advance(time.time()) == [ENDED]


def test_a_gang_that_has_no_record_fails_under_the_epoch_of_a_change_of_size(agent: Agent) -> None:
    executor, _ = agent.begin()
    executor.scale(SCALE, time.time())
    agent.until(
        executor,
        lambda: any(isinstance(one, GangFailed) and one.epoch == 4 for one in agent.said),
    )


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"code": "s3://bucket/a.zip"}, "code: agents of clusters fetch none; put it where"),
        ({"outputs": ["report"]}, "outputs: agents of clusters keep none; let the job write"),
    ],
)
def test_what_agents_of_clusters_cannot_do_is_refused_for_good_with_what_to_do(
    agent: Agent, over: dict[str, object], words: str
) -> None:
    executor, _ = agent.begin()
    program = Program.model_validate({"argv": ["true"], **over})
    executor.start(StartWorkers("j", 1, {"n1": (0,)}, spec(program), 0, 0.0), time.time())
    agent.until(executor, lambda: any(isinstance(one, GangFailed) for one in agent.said))
    (failed,) = [one for one in agent.said if isinstance(one, GangFailed)]
    assert failed.error.startswith(words)
    assert (failed.retriable, failed.ran) == (False, False)
