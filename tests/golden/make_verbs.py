"""Record `verbs` anew, the log with every verb of people: `python -m tests.golden.make_verbs`.

Its requests are signed by a key that anybody can make again, so that the log can be audited.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.clock import PacedClock
from bus.contract import Message, Record
from bus.logfile import Head, write_log
from bus.signing import Signer
from scheduler.core.canonical import state_hash
from scheduler.core.settings import Settings
from scheduler.gateways import Gateway, Gateways
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, request
from schemas.requests import VERB_NAMES, Request
from schemas.topics import ALL_TOPICS, REQUESTS
from tests.golden.make import FOLDER, START_S, agent, job
from tests.memory_bus import MemoryBus

KEY = Signer("golden", Ed25519PrivateKey.from_private_bytes(bytes([7] * 32)))
#: When the run ends, and when its scheduler is restarted, in minutes.
END, RESTART = 114, 62
#: The most GPUs that a job asks for and what it takes at its least size in hours, of each job.
JOBS = ((1, 1.2), (4, 1.5), (2, 6.0), (8, 1.5), (4, 1.5), (2, 9.0), (8, 2.0), (4, 2.0))
#: What is asked, in the order of the minutes at which it is, after the submissions. A moment in an
#: argument is in minutes, too. Add a verb here when one is added to `schemas.requests`.
ASKED: tuple[tuple[int, str, dict[str, Any]], ...] = (
    (10, "quota.set", {"tenant": "tenant-1", "gpus": 6, "guaranteed": 2, "jobs": 2}),
    (12, "job.priority", {"job": "job-02", "priority": 9}),
    (14, "job.hold", {"job": "job-04"}),
    (17, "job.release", {"job": "job-04"}),
    (18, "job.requeue", {"job": "job-00"}),
    (20, "job.scale", {"job": "job-02", "gpus": 4}),
    (22, "job.scale", {"job": "job-02", "gpus": 3}),
    (26, "node.cordon", {"node": "train-1"}),
    (28, "node.drain", {"node": "train-2", "by_s": 38, "force": True}),
    (40, "node.uncordon", {"node": "train-1"}),
    (41, "node.uncordon", {"node": "train-2"}),
    (
        41,
        "node.accept",
        {
            "agent": "edge-9",
            "node": "edge-9",
            "pool": "edge",
            "pool_kind": "edge",
            "gpu_count": 2,
            "speed_factor": 0.4,
        },
    ),
    (
        42,
        "node.accept",
        {"agent": "cloud-2", "pool": "train", "pool_kind": "training", "gpu_count": 8},
    ),
    (43, "node.refuse", {"node": "edge-9"}),
    (42, "cell.pause", {"what": "all", "until_s": 60}),
    (44, "cell.resume", {"what": "all"}),
    (46, "loans.freeze", {"lender": "serve-0", "until_s": 60}),
    (48, "loans.unfreeze", {}),
    (52, "loans.recall", {"lender": "serve", "by_s": 56}),
    (60, "policy.set", {"line": "srtf", "recall": True}),
    (66, "policy.clear", {}),
    (70, "quota.clear", {"tenant": "tenant-1"}),
    (72, "job.logs", {"job": "job-02", "reader": "r", "from_byte": 0, "max_bytes": 100}),
    (76, "job.cancel", {"job": "job-05"}),
    (77, "job.cancel", {"job": "job-05-of-nobody"}),
)
_MOMENTS = ("by_s", "until_s")


def _at_s(minute: float) -> float:
    return START_S + 60.0 * minute


def _asked() -> list[tuple[int, dict[str, Any]]]:
    """Give all that is asked: the minute, and what differs of the request."""
    found: list[tuple[int, dict[str, Any]]] = []
    for index, (gpus, hours) in enumerate(JOBS):
        spec = job(index, gpus, hours)
        who = {"subject": "bob", "role": "tenant", "tenant": spec.tenant}
        found.append((index + 1, {"args": {"verb": "job.submit", "spec": spec}, **who}))
    for minute, verb, given in ASKED:
        args = {name: _at_s(given[name]) if name in _MOMENTS else given[name] for name in given}
        if verb == "job.logs":
            args["until_s"] = _at_s(minute + 1)
        found.append((minute, {"args": {"verb": verb, **args}, "subject": "ann", "role": "admin"}))
    return found


def _message(number: int, minute: int, said: dict[str, Any]) -> Message:
    now_s = _at_s(minute)
    fields = {"id": f"r{number}", "asked_s": now_s, "expires_s": now_s + 600.0, **said}
    asked = Request.model_validate({**fields, "reason": "the golden log"})
    value = encode(request(asked, source="/gateways/golden"))
    return Message(REQUESTS.name, "default", value, KEY.headers(value))


async def record(folder: Path) -> tuple[list[Record], Head, str]:
    """Give the records of a run with one restart of the scheduler, and its state hash."""
    clock = PacedClock(START_S, None)
    bus = MemoryBus(clock)
    gateways = Gateways({KEY.key_id: Gateway(KEY.public(), tuple(VERB_NAMES))})
    config = ServiceConfig(settings=Settings(), snapshot_entries=60, gateways=gateways)
    services = [SchedulerService(bus, clock, config) for _ in range(2)]
    agents = [
        agent(bus, clock, folder, "train", "training", None),
        agent(bus, clock, folder, "serve", "inference", lambda _: 0.0),
    ]

    async def lead() -> None:
        for service in services:
            await service.run()

    async def act(minute: float, what: Callable[[], Any]) -> None:
        clock.enter()
        try:
            await clock.sleep_until(_at_s(minute))
            if (done := what()) is not None:
                await done
        finally:
            clock.leave()

    works = [act(RESTART, services[0].stop), act(END, services[1].stop)]
    works += [act(END - 1, one.stop) for one in agents]
    for number, (minute, said) in enumerate(_asked()):
        message = _message(number, minute, said)
        works.append(act(minute, lambda message=message: bus.publish(message)))  # type: ignore[misc]
    tasks = [asyncio.create_task(work) for work in (lead(), *(a.run() for a in agents), *works)]
    await asyncio.sleep(0)
    await clock.run_until(_at_s(END + 2))
    await asyncio.gather(*tasks)
    found = [entry for name in sorted(ALL_TOPICS) async for entry in bus.read(name)]
    topics = {name: await bus.end(name) for name in sorted({entry.topic for entry in found})}
    await bus.close()
    return found, Head(topics), state_hash(services[1].engine.state)


def main() -> None:
    path = FOLDER / "verbs.jsonl.zst"
    with TemporaryDirectory() as folder:
        records, head, state = asyncio.run(record(Path(folder)))
    path.unlink(missing_ok=True)
    write_log(path, head, records)
    (FOLDER / "verbs.hash").write_text(state + "\n")
    print(f"{path.name}: {len(records)} records, {path.stat().st_size} bytes, state {state}")  # noqa: T201


if __name__ == "__main__":
    main()
