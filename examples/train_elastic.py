"""`train_numpy.py` as a job that becomes more or fewer processes while it runs.

Those that stay go on taking steps until the new ones have come, and only then stand still to hand
them the weights; the steps are the same, to the last bit on like processors. A job's file says so
to Tidegate:

    "program": {"argv": ["python", "examples/train_elastic.py"], "resize": "in_place", ...}
"""

import argparse
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
from train_numpy import HIDDEN, INPUTS, SHARD, SHARDS, Job, average, gradient, hear, tell


class ElasticJob(Job):
    """What more the agent says to a job that can change its size."""

    def __init__(self) -> None:
        super().__init__()
        self.resize: bool = False
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "resize", True))
        self.generation = int(os.environ.get("TIDEGATE_GENERATION", 0))
        #: Whether the others have been training for a while.
        self.joins = self.generation > int(os.environ.get("TIDEGATE_EPOCH", 0))

    def news(self) -> dict[str, Any] | None:
        """The world as it is to become, if a signal came and we did not know that."""
        if not (self.stop or self.resize) or "TIDEGATE_WORLD" not in os.environ:
            return None
        file, self.resize = Path(os.environ["TIDEGATE_WORLD"]), False
        world: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if world.get("generation", 0) <= self.generation:
            return None
        self.generation = world["generation"]
        return world


class Gang:
    """The first process hears all others, and answers them all alike."""

    def __init__(self, job: Job, rank: int, world: int, host: str, port: int) -> None:
        self.job, self.rank, self.world, self.address = job, rank, world, (host, port)
        self.peers: list[socket.socket] = []
        self.door = socket.create_server(self.address) if rank == 0 and world > 1 else None

    def let_in(self, count: int, timeout_s: float | None) -> bool:
        """Let others in until so many are; False if that would take longer."""
        while self.door and len(self.peers) < count:
            self.door.settimeout(timeout_s)
            try:
                self.peers.append(self.door.accept()[0])
            except (BlockingIOError, TimeoutError):
                return False
        return True

    def meet(self) -> None:
        self.let_in(self.world - 1, None)
        patience_s = time.monotonic() + 60
        while self.rank > 0 and not self.peers:
            try:
                self.peers = [socket.create_connection(self.address)]
            except ConnectionRefusedError:
                if time.monotonic() > patience_s or self.job.stop:
                    raise
                time.sleep(0.02)

    def part(self) -> None:
        """Leave together: nobody goes before the first has said all it had to."""
        if self.rank > 0:
            self.peers[0].recv(1)
        for peer in self.peers:
            peer.close()

    def agree(self, mine: list[Any]) -> tuple[Any, ...]:
        """Take a step together: loss, gradient, and what was asked of anybody, or is so for all."""
        if self.rank > 0:
            tell(self.peers[0], mine)
            return tuple(hear(self.peers[0]))
        heard = [mine, *(hear(peer) for peer in self.peers)]
        parts, leave, save, ready = zip(*heard, strict=True)
        answer = [*average([part for some in parts for part in some])]
        answer += [any(leave), any(save), all(ready)]
        for peer in self.peers:
            tell(peer, answer)
        return tuple(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, help="steps (%(default)s)")
    parser.add_argument("--work-s", type=float, default=0.0, help="made-up work of one step")
    parser.add_argument("--state-mib", type=int, default=0, help="made-up size of the model")
    parser.add_argument("--out", type=Path, help="write the final weights here (.npz)")
    parser.add_argument("--loss", type=Path, help="append `time step world loss` lines here")
    options = parser.parse_args()

    job, env = ElasticJob(), os.environ
    host, port = env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "0"))
    gang = Gang(job, job.rank, job.world, host, port)
    gang.meet()
    draw = np.random.default_rng(1)
    weights = [draw.standard_normal((INPUTS, HIDDEN)) / 4, draw.standard_normal((HIDDEN, 1)) / 8]
    state = np.zeros(options.state_mib * 2**20, dtype=np.uint8)
    step = 0
    if job.joins:
        step, *lists = hear(gang.peers[0])
        weights, rest = [np.array(one) for one in lists], memoryview(state.data)
        while rest:
            rest = rest[gang.peers[0].recv_into(rest) :]
    elif job.resume:
        step, (*weights, state) = job.read(job.resume)
    later: Gang | None = None  # who we are to be
    newcomers = 0
    print(f"worker {gang.rank} of {gang.world} begins after step {step}", flush=True)
    while step < options.steps:
        began = time.monotonic()
        leave, save, job.save = job.stop, job.save, False
        if world := job.news():
            rank = world["ranks"].get(str(gang.rank), -1)
            if rank < 0:  # we alone were asked to leave
                leave = job.stop = False
            newcomers = world["world_size"] - len(world["ranks"])
            where = world["master_addr"], world["master_port"]
            later = Gang(job, rank, world["world_size"], *where)
        # All know of the new world, and whoever is new in it stands at the door.
        ready = later is not None and later.let_in(newcomers, 0.0)
        mine = [gradient(weights, step, shard) for shard in range(gang.rank, SHARDS, gang.world)]
        time.sleep(options.work_s / gang.world)
        mean, *downhill, leave, save, change = gang.agree([mine, leave, save, ready])
        weights = [old - 0.1 * np.array(by) for old, by in zip(weights, downhill, strict=True)]
        step += 1
        if gang.rank == 0:
            taken_s = max(time.monotonic() - began, 1e-6)
            rate = round(SHARDS * SHARD / taken_s, 1)
            job.say(step=step, samples_per_s=rate, metrics={"loss": mean}, at_s=time.time())
            if options.loss:
                with options.loss.open("a") as file:
                    file.write(f"{time.time():.3f} {step} {gang.world} {mean!r}\n")
            if leave or save or step % options.save_every == 0 or step == options.steps:
                job.write(step, [*weights, state])
                print(f"step {step}: loss {mean:.4f}, saved", flush=True)
        if leave and step < options.steps:
            return
        if change and later and step < options.steps:
            gang.part()
            if later.rank < 0:
                return
            later.meet()
            for peer in later.peers[:newcomers] if later.rank == 0 else ():  # they came first
                tell(peer, [step, *(one.tolist() for one in weights)])
                peer.sendall(state.data)
            gang, later = later, None
            if gang.rank == 0:
                job.say(generation=job.generation, step=step)
    if gang.rank == 0 and options.out:
        np.savez(options.out, *weights)


if __name__ == "__main__":
    main()
