"""The agent core against random commands: repeated, reordered, expired, with restarts anywhere."""

import json
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from runtime.core import (
    AgentCore,
    Birth,
    CheckpointDone,
    Command,
    GangCompleted,
    GangFailed,
    GangStarted,
    GangStopped,
    Limits,
    NodeDrained,
    NodeHandedBack,
    NodeSpec,
    Outputs,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
    Tick,
    WorkersLeft,
)
from schemas.commands import (
    LendNode,
    Rebirth,
    RenewLease,
    ReturnNode,
    ScaleGang,
    StartGang,
    StopGang,
)
from schemas.events import WorkerFailed, WorkerStarted, WorkerStopped
from tests.gangs import SPEC, place

SPECS = [
    NodeSpec("t1", "train", "training", 2, "A100", 80_000),
    NodeSpec("s1", "serve", "inference", 2, "A100", 80_000),
]
JOBS = st.sampled_from(["j1", "j2"])
#: Added to the highest epoch seen.
AHEAD = st.sampled_from([1, 1, 1, 1, 0, -1, 2])
PLACEMENTS = st.sampled_from(
    [
        {"t1": [0]},
        {"t1": [1]},
        {"s1": [0]},
        {"t1": [0, 1]},
        {"s1": [0, 1], "t1": [1]},
        {"s1": [1], "t1": [0]},
        {"t1": [2], "x": [0]},
    ]
).map(lambda chosen: place(**chosen))
#: Most commands do not expire and arrive at once.
TTLS = st.sampled_from([None, None, None, None, 0.0, 30.0])
AT_ONCE = st.sampled_from([True, True, False])


class AgentMachine(RuleBasedStateMachine):
    """Commands lie in a bundle, so that they come late, again, and in any order."""

    commands = Bundle("commands")
    limits = Limits()

    @initialize(warm=st.sampled_from([True, True, False]))
    def begin(self, warm: bool) -> None:
        self.now_s = 1000.0
        self.core = AgentCore("a", SPECS, self.limits)
        self.rows: dict[str, Any] = self.core.to_dict()
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.acted: set[str] = set()
        self.highest: dict[str, int] = {}
        self.count = 0
        #: By (node, GPU): the allocation whose worker was reported started and not yet gone.
        self.working: dict[tuple[str, int], tuple[str, int]] = {}
        #: Whether the owner of s1 is known to have left it since the agent began.
        self.owner_left = False

        if warm:  # most that can go wrong needs something that runs
            self.issue(LendNode(node="s1", loan="L0"), None, True)
            self.hear(NodeDrained("s1"))
            start = StartGang(job="j1", epoch=0, placement=place(t1=[0, 1]), spec=SPEC, step=0)
            self.issue(start, None, True)
            self.hear(GangStarted("j1", 0, 0))

    def hear(self, stimulus: Any) -> Outputs:
        if isinstance(stimulus, NodeDrained):
            self.owner_left = True
        outputs = self.core.handle(stimulus, self.now_s)
        for action in outputs.actions:
            if isinstance(action, StartWorkers):
                assert self.owner_left or "s1" not in action.placement
        for ack in outputs.acks:
            final = (ack.data.outcome, ack.data.reason)
            assert self.outcomes.setdefault(ack.data.command, final) == final
        for said in outputs.events:
            self.follow(said.data)
        self.rows |= self.core.take_changes()
        self.rows = {
            key: row for key, row in self.rows.items() if row is not None or key == "lease"
        }
        return outputs

    def follow(self, event: Any) -> None:
        if not isinstance(event, WorkerStarted | WorkerStopped | WorkerFailed):
            return
        for gpu in event.gpus:
            where = (event.node, gpu)
            if isinstance(event, WorkerStarted):
                job, epoch = self.working.get(where, (event.job, event.epoch))
                assert job == event.job, "a worker starts where another job's has not left"
                assert epoch <= event.epoch
                self.working[where] = (event.job, event.epoch)
            else:
                self.working.pop(where, None)

    def issue(self, data: Any, ttl_s: float | None, at_once: bool) -> Command:
        self.count += 1
        expires_s = None if ttl_s is None else self.now_s + ttl_s
        command = Command(f"c{self.count}", data, self.now_s, expires_s)
        if at_once:
            self.obey(command)
        return command

    def epoch(self, job: str, ahead: int) -> int:
        return max(0, self.core.highest_epoch(job) + ahead)

    @rule(target=commands, job=JOBS, ahead=AHEAD, placement=PLACEMENTS, ttl_s=TTLS, at_once=AT_ONCE)
    def run_gang(
        self, job: str, ahead: int, placement: Any, ttl_s: float | None, at_once: bool
    ) -> Command:
        epoch = self.epoch(job, ahead)
        data: Any = ScaleGang(job=job, epoch=epoch, placement=placement)
        if job not in self.core.gangs:
            data = StartGang(job=job, epoch=epoch, placement=placement, spec=SPEC, step=0)
        return self.issue(data, ttl_s, at_once)

    @rule(target=commands, job=JOBS, ahead=st.integers(-1, 1), saves=st.booleans(), ttl_s=TTLS)
    def stop_gang(self, job: str, ahead: int, saves: bool, ttl_s: float | None) -> Command:
        data = StopGang(
            job=job,
            epoch=self.epoch(job, ahead),
            reason="preempted",
            checkpoint=saves,
            grace_s=5.0 + ahead,
        )
        return self.issue(data, ttl_s, saves)

    @rule(
        target=commands,
        node=st.sampled_from(["s1", "s1", "s1", "t1"]),
        lend=st.booleans(),
        other=st.sampled_from([False, False, False, True]),
        at_once=AT_ONCE,
    )
    def move_node(self, node: str, lend: bool, other: bool, at_once: bool) -> Command:
        loan = self.core.nodes[node].loan or f"L{self.count}"
        loan = "other" if other else loan
        data = LendNode(node=node, loan=loan) if lend else ReturnNode(node=node, loan=loan)
        return self.issue(data, None, at_once)

    @rule(target=commands, until_s=st.floats(1000, 3000), at_once=AT_ONCE)
    def renew(self, until_s: float, at_once: bool) -> Command:
        return self.issue(RenewLease(until_s=until_s), None, at_once)

    @rule(target=commands)
    def ask_again(self) -> Command:
        return self.issue(Rebirth(), None, True)

    @rule(command=commands)
    def deliver(self, command: Command) -> None:
        self.obey(command)

    def obey(self, command: Command) -> None:
        before = self.core.to_dict()
        known = f"inbox/{command.id}" in before
        outputs = self.hear(command)
        if known:
            assert not outputs.actions
            assert not outputs.events
            assert self.core.to_dict() == before
        if outputs.actions:
            assert command.id not in self.acted
            self.acted.add(command.id)
        if f"inbox/{command.id}" not in before and not self.is_waiting(command.id):
            assert command.id in self.outcomes, "neither acknowledged nor waiting for the owner"
        expired = command.expires_s is not None and command.expires_s <= self.now_s
        if expired and not known:
            assert self.outcomes[command.id] == ("refused", "expired")
            assert not outputs.actions
        for action in outputs.actions:
            if isinstance(action, StartWorkers | ScaleWorkers):
                assert action.epoch > self.highest.get(action.job, -1)

    def is_waiting(self, id: str) -> bool:
        return any(id in node.waiting for node in self.core.nodes.values())

    @rule(command=consumes(commands))
    def lose(self, command: Command) -> None:
        """It is never delivered (again)."""

    @rule(seconds=st.floats(0, 1000))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        lease_s = self.core.lease_until_s
        running = [
            gang.job
            for gang in self.core.gangs.values()
            if gang.phase == "running" and not gang.checkpointing
            if self.now_s - (gang.checkpointed_s or 0.0) > 900
        ]
        outputs = self.hear(Tick())
        acted = [getattr(action, "job", None) for action in outputs.actions]
        assert all(job in acted for job in running), "saved, or stopped at the lease's end"
        if lease_s is not None and lease_s <= self.now_s:
            assert all(gang.phase == "stopping" for gang in self.core.gangs.values())
        stops = [action for action in outputs.actions if isinstance(action, StopWorkers)]
        assert len({stop.job for stop in stops}) == len(stops)

    @rule()
    def workers_start(self) -> None:
        for job, gang in list(self.core.gangs.items()):
            self.hear(GangStarted(job, gang.epoch, gang.step))

    @rule(job=JOBS, back=st.integers(0, 2), step=st.integers(0, 100), kind=st.integers(0, 6))
    def report(self, job: str, back: int, step: int, kind: int) -> None:
        gang = self.core.gangs.get(job)
        epoch = self.epoch(job, -back)
        if gang is not None and kind != 5:
            epoch = gang.epoch
        reports = (
            GangStarted(job, epoch, step),
            CheckpointDone(job, epoch, step, "u", 0, 1.0),
            GangStopped(job, epoch, step),
            GangCompleted(job, epoch, 100),
            GangFailed(job, epoch, "died"),
            WorkersLeft(job, epoch, step),
            GangFailed(job, epoch, "went with its machine", lost=True),
        )
        resumed = 0 if gang is None else gang.resumes
        lease_s = self.core.lease_until_s
        outputs = self.hear(reports[kind])
        for action in outputs.actions:
            assert isinstance(action, StartWorkers)
            assert (kind, action.epoch) == (6, epoch), "under the epoch that it had"
            assert resumed < self.limits.resumes_max
            assert lease_s is None or self.now_s < lease_s

    @rule(drained=st.booleans())
    def owner_reports(self, drained: bool) -> None:
        waiting = list(self.core.nodes["s1"].waiting)
        phase = self.core.nodes["s1"].phase
        outputs = self.hear(NodeDrained("s1") if drained else NodeHandedBack("s1"))
        if phase == ("draining" if drained else "returning"):
            assert [ack.data.command for ack in outputs.acks] == waiting
        else:
            # One that waits for its owner to leave again may begin, new or resumed.
            assert not outputs.acks
            assert not outputs.events
            lease_s = self.core.lease_until_s
            begun = phase == "lent" and (lease_s is None or self.now_s < lease_s)
            assert not outputs.actions or (drained and begun)
            for action in outputs.actions:
                assert isinstance(action, StartWorkers)
                assert not action.resumed or self.limits.after_reboot == "resume"

    @rule(survive=st.booleans())
    def restart(self, survive: bool) -> None:
        stored = json.loads(json.dumps(self.rows))
        self.core = AgentCore.from_dict("a", SPECS, stored, self.limits)
        self.owner_left = False
        held = tuple(self.core.gangs)
        self.hear(Birth(running=held if survive else ()))
        if survive:
            assert tuple(self.core.gangs) == held
        elif self.limits.after_reboot == "resume":
            assert all(gang.phase == "starting" for gang in self.core.gangs.values())
        else:
            assert not self.core.gangs

    @invariant()
    def epochs_never_fall(self) -> None:
        for job in ("j1", "j2"):
            highest = self.core.highest_epoch(job)
            assert highest >= self.highest.get(job, -1)
            self.highest[job] = highest
            if job in self.core.gangs:
                assert self.core.gangs[job].epoch <= highest

    @invariant()
    def no_gpu_has_two_gangs(self) -> None:
        held: dict[tuple[str, int], str] = {}
        for job, gang in self.core.gangs.items():
            for placement in (gang.placement, *(left for _, left in gang.leaving)):
                for node, gpus in placement.items():
                    for gpu in gpus:
                        assert (node, gpu) not in held
                        held[node, gpu] = job
        for spec in SPECS:
            for gpu, job_held in enumerate(self.core.holder(spec.node)):
                assert held.get((spec.node, gpu)) == job_held
        for where, (job, _) in self.working.items():
            assert held[where] == job

    @invariant()
    def every_command_is_answered_or_waits(self) -> None:
        for key, row in self.core.to_dict().items():
            kind, _, command = key.partition("/")
            if kind == "inbox":
                assert (row[1] is None) == self.is_waiting(command)

    @invariant()
    def the_owners_nodes_run_nothing(self) -> None:
        node = self.core.nodes["s1"]
        if node.phase != "lent":
            assert self.core.holder("s1") == (None, None)
        assert (node.loan is None) == (node.phase == "owned")
        assert not node.waiting or node.phase in ("draining", "returning")

    @invariant()
    def what_is_stored_is_what_is_known(self) -> None:
        for key, row in self.core.to_dict().items():
            if key.startswith("gang/"):
                # The last progress is told, not stored.
                assert {**row, "step": 0} == {**self.rows[key], "step": 0}
            else:
                assert row == self.rows[key]
        assert set(self.rows) == set(self.core.to_dict())


class ResumingMachine(AgentMachine):
    """The same, of an agent that resumes what went with its machine."""

    limits = Limits(after_reboot="resume", resumes_max=2)


AgentMachine.TestCase.settings = settings(stateful_step_count=50)
ResumingMachine.TestCase.settings = settings(stateful_step_count=50)
TestAgentCore = AgentMachine.TestCase
TestResumingAgentCore = ResumingMachine.TestCase
