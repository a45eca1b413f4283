"""An agent core, and the commands and reports that tests tell it."""

from typing import Any

from runtime.core import AgentCore, Command, GangStarted, Limits, NodeSpec, Outputs
from schemas.commands import CommandData, GangSpec, ScaleGang, StartGang, StopGang
from schemas.events import RatePoint
from schemas.values import NodeGpus

NOW_S = 1_000_000.0
SPECS = [NodeSpec(name, "train", "training", 4, "A100", 80_000) for name in ("n1", "n2")]


def spec(**other: Any) -> GangSpec:
    """What an agent is told about a job: a step a second on a GPU, unless told otherwise."""
    said = {
        "model": "m",
        "total_steps": 1000,
        "samples_per_step": 10.0,
        "rates": [RatePoint(gpus=1, samples_per_s=10.0)],
        "checkpoint_mib": 100,
        "checkpoint_cost_s": 5.0,
        "start_cost_s": 30.0,
    }
    return GangSpec.model_validate({**said, **other})


SPEC = spec()


def agent(limits: Limits | None = None) -> AgentCore:
    return AgentCore("a", SPECS, limits)


def place(**gpus: list[int]) -> list[NodeGpus]:
    return [NodeGpus(node=node, gpus=indices) for node, indices in gpus.items()]


def start(job: str = "j", epoch: int = 1, step: int = 0, **gpus: list[int]) -> StartGang:
    placement = place(**(gpus or {"n1": [0, 1]}))
    return StartGang(job=job, epoch=epoch, placement=placement, spec=SPEC, step=step)


def scale(job: str = "j", epoch: int = 2, **gpus: list[int]) -> ScaleGang:
    return ScaleGang(job=job, epoch=epoch, placement=place(**gpus))


def stop(epoch: int = 1, checkpoint: bool = True, grace_s: float = 60.0) -> StopGang:
    return StopGang(
        job="j", epoch=epoch, reason="preempted", checkpoint=checkpoint, grace_s=grace_s
    )


def tell(core: AgentCore, id: str, data: CommandData, now_s: float = NOW_S, **more: Any) -> Outputs:
    return core.handle(Command(id, data, more.pop("said_s", now_s), **more), now_s)


def ack(outputs: Outputs) -> tuple[str, str, str]:
    """The one ack: command, outcome, reason."""
    (delivery,) = outputs.acks
    assert delivery.causation == delivery.data.command
    return delivery.data.command, delivery.data.outcome, delivery.data.reason


def refusal(outputs: Outputs) -> str:
    assert not outputs.events
    assert not outputs.actions
    _, outcome, reason = ack(outputs)
    assert outcome == "refused"
    return reason


def events(outputs: Outputs) -> list[Any]:
    return [said.data for said in outputs.events]


def running(core: AgentCore | None = None, **gpus: list[int]) -> AgentCore:
    core = core or agent()
    tell(core, "start", start("j", 1, 0, **gpus))
    core.handle(GangStarted("j", 1, 0), NOW_S)
    return core
