"""A training job of numpy alone: data-parallel, elastic, and exact.

It trains a small network on generated data as `WORLD_SIZE` processes. The batch of a step is always
the same eight shards; each process takes some of them, the first adds their gradients up in the
order of the shards. So the weights after a step do not depend, to the last bit, on how many
processes took it, and an undisturbed run can be compared with one that was moved about. That holds
on like processors, with the same variables for numpy's libraries: OpenBLAS adds up in another order
on another processor, or where `OPENBLAS_CORETYPE` names one.

`train_elastic.py` does the same, and need not be restarted to become more or fewer processes.

What Tidegate asks of a job is in `docs/jobs.md`; here it is the class `Job`.

    python examples/train_numpy.py --steps 200                          by itself
    tidegate submit --gpus 1..4 --steps 200 ... -- python examples/train_numpy.py --steps 200
"""

import argparse
import json
import os
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARDS, SHARD, INPUTS, HIDDEN = 8, 32, 16, 64
Weights = list[NDArray[np.float64]]


class Job:
    """What the agent says to a job, and the job to the agent."""

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.stop: bool = False
        self.save: bool = False
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "save", True))
        self.folder = Path(os.environ.get("TIDEGATE_CHECKPOINT_DIR", "."))
        self.resume = os.environ.get("TIDEGATE_RESUME")
        self.progress = os.environ.get("TIDEGATE_PROGRESS")

    def say(self, **line: object) -> None:
        if self.progress:
            with Path(self.progress).open("a") as file:
                file.write(json.dumps(line) + "\n")

    def write(self, step: int, weights: Weights) -> None:
        """Write a checkpoint; say so when it is complete."""
        name = f"step-{step}.npz"
        with (self.folder / f".{name}").open("wb") as file:
            np.savez(file, *weights, step=np.int64(step))
            file.flush()
            os.fsync(file.fileno())
        (self.folder / f".{name}").replace(self.folder / name)
        self.say(step=step, checkpoint=name)

    def read(self, path: str) -> tuple[int, Weights]:
        with np.load(path) as file:
            return int(file["step"]), [file[f"arr_{n}"] for n in range(len(file.files) - 1)]


class Hub:
    """The first process hears all others, and answers them all alike; in JSON, which is exact."""

    def __init__(self, job: Job) -> None:
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "0")
        address = (host, int(port))
        self.job = job
        self.peers: list[socket.socket] = []
        if job.rank == 0:
            with socket.create_server(address) as server:
                self.peers = [server.accept()[0] for _ in range(job.world - 1)]
        patience_s = time.monotonic() + 60
        while job.rank > 0 and not self.peers:
            try:
                self.peers = [socket.create_connection(address)]
            except ConnectionRefusedError:
                if time.monotonic() > patience_s:
                    raise
                time.sleep(0.05)

    def gather(self, mine: list[Any]) -> list[Any]:
        """Give the hub what all said, in no certain order; others only speak."""
        if self.job.rank > 0:
            tell(self.peers[0], mine)
            return []
        return [mine, *(hear(peer) for peer in self.peers)]

    def spread(self, said: list[Any]) -> list[Any]:
        """Give everybody what the hub says."""
        if self.job.rank > 0:
            return hear(self.peers[0])
        for peer in self.peers:
            tell(peer, said)
        return said


def tell(peer: socket.socket, said: list[Any]) -> None:
    data = json.dumps(said).encode()
    peer.sendall(struct.pack("!I", len(data)) + data)


def hear(peer: socket.socket) -> list[Any]:
    (size,) = struct.unpack("!I", take(peer, 4))
    said: list[Any] = json.loads(take(peer, size))
    return said


def take(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise SystemExit("another worker of the gang is gone")
        data += part
    return data


def gradient(weights: Weights, step: int, shard: int) -> tuple[int, float, list[Any], list[Any]]:
    """Shard, loss and gradient on one shard of a step's data, which these two alone decide."""
    draw = np.random.default_rng((step, shard))
    inputs = draw.standard_normal((SHARD, INPUTS))
    wanted = np.sin(inputs.sum(axis=1, keepdims=True) / 2)
    first, second = weights
    hidden = np.tanh(inputs @ first)
    off = hidden @ second - wanted
    back = (off @ second.T) * (1 - hidden**2)
    by_weight = (inputs.T @ back / SHARD).tolist(), (hidden.T @ off / SHARD).tolist()
    return shard, float((off**2).mean()), *by_weight


def average(parts: list[Any]) -> list[Any]:
    """Loss and gradient of a step, from all its shards; the order of sums is always the same."""
    _, loss, *by_weight = (
        np.sum([np.array(one) for one in of_shards], axis=0) / SHARDS
        for of_shards in zip(*sorted(parts, key=lambda part: part[0]), strict=True)
    )
    return [float(loss), *(one.tolist() for one in by_weight)]


class Noise:
    """The gradient noise scale (McCandlish et al. 2018, B_simple, appendix A), a running mean."""

    def __init__(self) -> None:
        self.sqr = self.var = 0.0

    def scale(self, parts: list[Any], mean: list[Any]) -> float | None:
        """Samples; None: not known. From the gradients on a step's shards, and their mean."""
        few = np.mean([sum((np.array(one) ** 2).sum() for one in part[2:]) for part in parts])
        many = sum((np.array(one) ** 2).sum() for one in mean)
        sqr = (SHARDS * many - few) / (SHARDS - 1)
        var = (few - many) * SHARD * SHARDS / (SHARDS - 1)
        self.sqr, self.var = 0.95 * self.sqr + 0.05 * sqr, 0.95 * self.var + 0.05 * var
        return float(self.var / self.sqr) if self.sqr > 0 and self.var > 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, help="steps (%(default)s)")
    parser.add_argument("--work-s", type=float, default=0.0, help="made-up work of one step")
    parser.add_argument("--out", type=Path, help="write the final weights here (.npz)")
    parser.add_argument("--loss", type=Path, help="append `time step world loss` lines here")
    options = parser.parse_args()

    job = Job()
    hub = Hub(job)
    draw = np.random.default_rng(1)
    weights = [draw.standard_normal((INPUTS, HIDDEN)) / 4, draw.standard_normal((HIDDEN, 1)) / 8]
    step, noise, scale = 0, Noise(), None
    if job.resume:
        step, weights = job.read(job.resume)
    print(f"worker {job.rank} of {job.world} begins after step {step}", flush=True)
    while step < options.steps:
        began = time.monotonic()
        mine = [gradient(weights, step, shard) for shard in range(job.rank, SHARDS, job.world)]
        time.sleep(options.work_s / job.world)
        pass_s = time.monotonic() - began
        heard = hub.gather([mine, job.stop, job.save])
        job.save = False
        answer: list[Any] = []
        if heard:
            parts = [part for said in heard for part in said[0]]
            # All act on a signal after the same step, although it reaches each at its own moment.
            stop, save = (any(said[asked] for said in heard) for asked in (1, 2))
            answer = [*average(parts), stop, save]
            scale = noise.scale(parts, answer[1:-2])
        mean, *downhill, stop, save = hub.spread(answer)
        weights = [old - 0.1 * np.array(by) for old, by in zip(weights, downhill, strict=True)]
        step += 1
        if job.rank == 0:
            taken_s = max(time.monotonic() - began, 1e-6)
            pace = {"step_s": round(taken_s, 6), "pass_s": round(pass_s, 6)}
            if scale is not None:
                pace["gradient_noise"] = round(scale, 1)
            rate = round(SHARDS * SHARD / taken_s, 1)
            job.say(step=step, samples_per_s=rate, **pace, metrics={"loss": mean})
            if options.loss:
                with options.loss.open("a") as file:
                    file.write(f"{time.time():.3f} {step} {job.world} {mean!r}\n")
            if stop or save or step % options.save_every == 0 or step == options.steps:
                job.write(step, weights)
                print(f"step {step}: loss {mean:.4f}, saved", flush=True)
        if stop and step < options.steps:
            return
    if job.rank == 0 and options.out:
        np.savez(options.out, *weights)


if __name__ == "__main__":
    main()
