"""A server that behaves like one of vLLM's or Triton's, without a model: places, a queue, metrics.

    python examples/inference_server.py --port 8001 --places 8 --format triton

With --gpu-mib it holds so much of a GPU's memory and multiplies matrices there for a request's
time; that needs torch.

POST /generate {"service_s": 0.4}   waits for a place, is served for so long; {"latency_s": ...}
GET /health                         200 once it is ready
GET /metrics                        what vLLM or Triton says of itself, under the same names

On SIGTERM it takes no more requests, serves those it has, and leaves.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections import deque
from collections.abc import Callable

BUCKETS_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
VLLM = 'engine="0",model_name="made-up"'
TRITON = 'model="made-up",version="1"'
#: Triton's summaries are of the last minute; it has them with `summary_latencies=true`.
SUMMARY_S, QUANTILES = 60.0, (0.5, 0.9, 0.95, 0.99, 0.999)


class Served:
    """What a server counts."""

    def __init__(self, places: int, compute: Callable[[float], None] | None = None) -> None:
        self.compute = compute
        self.places = asyncio.Semaphore(places)
        self.most = places
        self.running = self.waiting = 0
        self.latencies: list[int] = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = self.waited_s = 0.0
        self.recent: deque[tuple[float, float]] = deque()  #: when they ended, and their latency.
        self.stopping = False

    async def generate(self, service_s: float) -> float:
        began = time.monotonic()
        self.waiting += 1
        async with self.places:
            waited_s = time.monotonic() - began
            self.waiting -= 1
            self.running += 1
            if self.compute is None:
                await asyncio.sleep(service_s)
            else:
                await asyncio.to_thread(self.compute, service_s)
            self.running -= 1
        now_s = time.monotonic()
        latency_s = now_s - began
        self.waited_s += waited_s
        self.recent.append((now_s, latency_s))
        self.latencies[next((i for i, le in enumerate(BUCKETS_S) if latency_s <= le), -1)] += 1
        self.sum_s += latency_s
        return latency_s

    def vllm(self) -> str:
        done = sum(self.latencies)
        name = "vllm:e2e_request_latency_seconds"
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{VLLM}}} {self.running}.0",
            "# TYPE vllm:num_requests_waiting gauge",
            f"vllm:num_requests_waiting{{{VLLM}}} {self.waiting}.0",
            "# TYPE vllm:kv_cache_usage_perc gauge",
            f"vllm:kv_cache_usage_perc{{{VLLM}}} {self.running / self.most / 2:.3f}",
            "# TYPE vllm:request_success_total counter",
            f'vllm:request_success_total{{{VLLM},finished_reason="stop"}} {done}.0',
            f"# TYPE {name} histogram",
        ]
        below = 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), self.latencies, strict=True):
            below += count
            lines.append(f'{name}_bucket{{{VLLM},le="{bound}"}} {below}.0')
        lines += [f"{name}_sum{{{VLLM}}} {self.sum_s}", f"{name}_count{{{VLLM}}} {done}.0"]
        return "\n".join(lines) + "\n"

    def triton(self) -> str:
        done = sum(self.latencies)
        since_s = time.monotonic() - SUMMARY_S
        while self.recent and self.recent[0][0] < since_s:
            self.recent.popleft()
        ordered = sorted(latency_s for _, latency_s in self.recent)
        served_us = round((self.sum_s - self.waited_s) * 1e6)
        counters = {
            "nv_inference_request_success": done,
            "nv_inference_request_failure": 0,
            "nv_inference_count": done,
            "nv_inference_exec_count": done,
            "nv_inference_request_duration_us": round(self.sum_s * 1e6),
            "nv_inference_queue_duration_us": round(self.waited_s * 1e6),
            "nv_inference_compute_infer_duration_us": served_us,
        }
        lines = []
        for name, value in counters.items():
            lines += [f"# TYPE {name} counter", f"{name}{{{TRITON}}} {value}"]
        name = "nv_inference_pending_request_count"
        lines += [f"# TYPE {name} gauge", f"{name}{{{TRITON}}} {self.waiting}"]
        name = "nv_inference_request_summary_us"
        lines += [
            f"# TYPE {name} summary",
            f"{name}_count{{{TRITON}}} {done}",
            f"{name}_sum{{{TRITON}}} {round(self.sum_s * 1e6)}",
        ]
        for share in QUANTILES:
            at = ordered[int(share * len(ordered))] * 1e6 if ordered else float("nan")
            lines.append(f'{name}{{{TRITON},quantile="{share}"}} {at:.0f}')
        return "\n".join(lines) + "\n"


def gpu_work(mib: int) -> Callable[[float], None]:
    """Take `mib` MiB of the first GPU, as a model would; give what computes there for a time."""
    import torch  # most servers here have no GPU

    held = torch.randn(mib // 2 * 2**20, device="cuda", dtype=torch.float16)
    side = min(4096, int(len(held) ** 0.5))
    matrix = held[: side * side].view(side, side)

    def compute(service_s: float) -> None:
        until_s = time.monotonic() + service_s
        while time.monotonic() < until_s:
            matrix @ matrix
            torch.cuda.synchronize()

    compute(0.1)  # the first product loads what computes it
    return compute


async def answer(
    served: Served, speaks: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.lower().split("\r\n")
        length = next((int(line[15:]) for line in lines if line[:15] == "content-length:"), 0)
        body = await reader.readexactly(length)
        status, text = "200 OK", ""
        if head.startswith("GET /metrics"):
            text = served.triton() if speaks == "triton" else served.vllm()
        elif head.startswith("POST /generate") and not served.stopping:
            latency_s = await served.generate(float(json.loads(body)["service_s"]))
            text = json.dumps({"latency_s": latency_s})
        elif served.stopping or not head.startswith("GET /health"):
            status = "503 Service Unavailable"
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        writer.write((head + text).encode())
        await writer.drain()
    writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--places", type=int, default=8, help="requests served at once")
    parser.add_argument("--format", choices=["vllm", "triton"], default="vllm", help="of metrics")
    parser.add_argument("--gpu-mib", type=int, help="hold so much of a GPU, and compute there")
    options = parser.parse_args()
    compute = gpu_work(options.gpu_mib) if options.gpu_mib else None
    served, told = Served(options.places, compute), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    server = await asyncio.start_server(
        lambda reader, writer: answer(served, options.format, reader, writer),
        "127.0.0.1",
        options.port,
    )
    await told.wait()
    served.stopping = True
    server.close()
    while served.running + served.waiting:  # noqa: ASYNC110 - it is about to leave
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main())
