"""A training job of PyTorch: DistributedDataParallel, elastic, on generated data.

Each process trains on its own of the GPUs that it sees, over NCCL, or on the processor, over gloo.

The batch of a step is the same samples whatever the number of processes: each takes its share.
Gradients are averaged in another order by another number of processes, so weights agree to rounding
and not to the bit (see `train_numpy.py` for one that does). In double precision and at this length
rounding stays below 1e-14, and a step that is lost or taken twice shows above 1e-4: whoever compares
two runs can tell one from the other with 1e-9 (`demo_real.py` does).

Needs torch for the Python that runs it (on Debian python3-torch, for `/usr/bin/python3`).
It works as one process, under `torchrun`, and under Tidegate, which sets the same variables.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

try:
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError:
    print(
        f"{sys.executable} has no PyTorch: apt-get install python3-torch for Debian's own Python,"
        " pip install torch for another.",
        file=sys.stderr,
    )
    sys.exit(2)

BATCH, INPUTS = 240, 16  # 240 is a multiple of 1, 2, 3, 4, 5, 6, 8


def say(**line: object) -> None:
    """Tell the agent how far we are, if there is one."""
    if path := os.environ.get("TIDEGATE_PROGRESS"):
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def write(step: int, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Write a checkpoint; say so when it is complete."""
    folder, name = Path(os.environ.get("TIDEGATE_CHECKPOINT_DIR", ".")), f"step-{step}.pt"
    state = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
    with (folder / f".{name}").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / f".{name}").replace(folder / name)
    say(step=step, checkpoint=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, help="steps (%(default)s)")
    parser.add_argument("--work-s", type=float, default=0.0, help="made-up work of one step")
    parser.add_argument("--width", type=int, default=64, help="of a layer (%(default)s)")
    parser.add_argument("--hidden", type=int, default=0, help="square layers (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the final weights here (.npz)")
    parser.add_argument("--loss", type=Path, help="append `time step world loss` lines here")
    options = parser.parse_args()

    asked = {"stop": False, "save": False}
    signal.signal(signal.SIGTERM, lambda *_: asked.update(stop=True))
    signal.signal(signal.SIGUSR1, lambda *_: asked.update(save=True))
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        # Its rendezvous fails if a signal comes in between; its threads are born deaf to them, too.
        signals = {signal.SIGTERM, signal.SIGUSR1}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else "cpu"
    width = options.width
    square = [one for _ in range(options.hidden) for one in (nn.Linear(width, width), nn.Tanh())]
    layers = [nn.Linear(INPUTS, width), nn.Tanh(), *square, nn.Linear(width, 1)]
    bare = nn.Sequential(*layers).double().to(device)
    model = nn.parallel.DistributedDataParallel(bare) if world > 1 else bare
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step = 0
    if resume := os.environ.get("TIDEGATE_RESUME"):
        saved = torch.load(resume, map_location=device)
        step = saved["step"]
        bare.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])

    print(f"worker {rank} of {world} begins after step {step} on {device}", flush=True)
    while step < options.steps:
        began = time.monotonic()
        draw = torch.Generator().manual_seed(step)
        inputs = torch.randn(BATCH, INPUTS, generator=draw, dtype=torch.double)
        wanted = (inputs.sum(dim=1, keepdim=True) / 2).sin()
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        asked_of, answers = inputs[mine].to(device), wanted[mine].to(device)
        loss = nn.functional.mse_loss(model(asked_of), answers)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        time.sleep(options.work_s / world)
        step += 1
        # All act on a signal after the same step, although it reaches each at its own moment.
        said = torch.tensor([asked["stop"], asked["save"], loss.item()], dtype=torch.double)
        asked["save"] = False
        if world > 1:
            dist.all_reduce(said)
        stop, save = bool(said[0] > 0), bool(said[1] > 0)
        if rank == 0:
            taken_s = time.monotonic() - began
            mean = said[2].item() / world
            pace = {"samples_per_s": round(BATCH / taken_s, 1), "step_s": round(taken_s, 6)}
            say(step=step, **pace, metrics={"loss": mean})
            if options.loss:
                with options.loss.open("a") as file:
                    file.write(f"{time.time():.3f} {step} {world} {mean!r}\n")
            if stop or save or step % options.save_every == 0 or step == options.steps:
                write(step, bare, optimiser)
                print(f"step {step}: loss {mean:.4f}, saved", flush=True)
        if stop and step < options.steps:
            return
    if rank == 0 and options.out:
        np.savez(
            options.out, **{name: value.cpu().numpy() for name, value in bare.state_dict().items()}
        )


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        # Its threads must end before Python does: one that lets go of the last step's tensors
        # while Python ends takes the process with it, by SIGABRT.
        dist.destroy_process_group()
