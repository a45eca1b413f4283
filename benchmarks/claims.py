"""What docs/results claims: the one table of pages, of the code that each measures, and of figures.

A claim's figure is worked out from the raw files in docs/results/data where these were kept, and
typed where they were not; command, commit, date and minutes come from the same place. What was not
written down when it ran is `not recorded`, and stays so until somebody runs it again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import claim_figures as figures

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Claim:
    """One line of the index."""

    page: str
    says: str
    figure: str | Callable[..., str]  #: As typed, or worked out from the raw files, in their order.
    caveat: str
    raw: tuple[str, ...] = ()
    #: Of a claim whose raw figures were not kept, as its page has them.
    command: str = NOT_RECORDED
    commit: str = NOT_RECORDED


_DECIDES = ("schemas", "scheduler")
_SIMULATED = (*_DECIDES, "simulator")
_PRIORITY = tuple(f"more-capacity-{load}-priority.json" for load in ("1.2", "0.9", "0.6"))
_AGENTS = ("runtime", "cloud_agent", "edge_agent", "services")
_CONSOLE = "two idle cores, no graphics processor"
_DEPLOYED = (*_DECIDES, "bus", *_AGENTS)

#: By page, the files and folders whose code its figures measure: what runs, and what measures it.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "simulated-day.md": (*_SIMULATED, "bus", "runtime", "demo", "benchmarks/day.py"),
    "completion-times.md": (*_SIMULATED, "benchmarks/jct.py"),
    "unknown-lengths.md": (*_SIMULATED, "benchmarks/jct.py", "benchmarks/resampled.py"),
    "capacity.md": (*_SIMULATED, "benchmarks/more_capacity.py"),
    "tail.md": (*_SIMULATED, "benchmarks/tail.py", "benchmarks/more_capacity.py"),
    "deadlines.md": (*_SIMULATED, "benchmarks/deadlines.py", "benchmarks/deadline_bound.py"),
    "loans.md": (
        *_SIMULATED,
        "benchmarks/loaning.py",
        "benchmarks/reclaim.py",
        "benchmarks/forecast.py",
    ),
    "edge.md": (*_SIMULATED, "benchmarks/edge.py"),
    "failures.md": (*_SIMULATED, "benchmarks/failing.py"),
    "peers.md": (*_SIMULATED, "benchmarks/published.py"),
    "speed.md": (
        *_SIMULATED,
        "bus",
        "benchmarks/codec.py",
        "benchmarks/telemetry.py",
        "benchmarks/engine.py",
        "benchmarks/decisions.py",
        "benchmarks/fleet.py",
        "benchmarks/replay.py",
        "benchmarks/simulator.py",
    ),
    "branches.md": (*_SIMULATED, "bus", "runtime", "demo", "benchmarks/branches.py"),
    "scale.md": (*_DECIDES, "bus", "benchmarks/scale.py", "benchmarks/large_cell.py"),
    "gateway.md": (
        *_DECIDES,
        "bus",
        "gateway",
        "explain",
        "benchmarks/gateway.py",
        "benchmarks/gateway_cell.py",
        "benchmarks/large_cell.py",
        "benchmarks/requests.py",
    ),
    "console.md": (
        *_DECIDES,
        "bus",
        "gateway",
        "explain",
        "web/src",
        "benchmarks/console_page.py",
        "benchmarks/console_watch.py",
        "benchmarks/console_log.py",
        "benchmarks/gateway_cell.py",
        "benchmarks/large_cell.py",
    ),
    "brokers.md": (
        *_DEPLOYED,
        "benchmarks/bus.py",
        "benchmarks/brokers.py",
        "benchmarks/device_fleet.py",
        "benchmarks/raw_clients.py",
        "tests/chaos",
    ),
    "faults.md": (*_DEPLOYED, "tests/whole"),
    "gpu.md": (
        *_DEPLOYED,
        "examples",
        "benchmarks/gpu.py",
        "benchmarks/gpu_cell.py",
        "benchmarks/gpu_door.py",
        "benchmarks/gpu_witness.py",
    ),
    "real-work.md": (
        *_DEPLOYED,
        "examples",
        "benchmarks/agent.py",
        "benchmarks/checkpoints.py",
        "benchmarks/migration.py",
        "benchmarks/reclaim_real.py",
        "benchmarks/resize.py",
        "benchmarks/scrape.py",
        "tests/chaos",
    ),
}

#: Commits that were rebased after they were measured, without a change to what runs -> what they
#: are in this history, as the pages say (failures, loans, unknown-lengths).
REBASED: Mapping[str, str] = {
    "931ec0e5dee0": "a8e9d1c",
    "0885d0e31c5d": "08661fa",
    "dcc0edbb4771": "f926258",
}


_UNKEPT = "raw figures were not kept"
_ONE_RUN = "single runs; "
_CAPACITY = (
    "generated jobs, 20 seeds, three loads; aim at most 1 %; what ran is a part of the commit that"
    " follows"
)

#: The peers, and `tide` with the bounds.
_DEADLINES = ("deadlines.json", "deadlines-tide.json")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "simulated-day.md",
        "hours that a job spends in the demo's day under `tide`; under the best other",
        figures.day,
        "two seeds; others know neither priorities nor, but for two, deadlines",
        ("day.json",),
    ),
    Claim(
        "completion-times.md",
        "mean completion time of `tide` against published Pollux, 16 workloads",
        figures.against_pollux("tide"),
        "tuned on these workloads; aim -26 %; most peers are from before the engine's own driver",
        ("completion-times-tide.json",),
    ),
    Claim(
        "completion-times.md",
        "the same, lengths of jobs unknown",
        figures.against_pollux("tide-unknown"),
        "all jobs of an application are equally long, the best case; aim -12 %",
        ("completion-times-tide.json",),
    ),
    Claim(
        "unknown-lengths.md",
        "the same against `pollux` as run here, ten fresh workloads",
        figures.fresh,
        "made of the same jobs and arrivals; `tide` has changed since",
        ("unknown-lengths.json#seeds_101_to_110",),
    ),
    Claim(
        "capacity.md",
        "the most by which added GPUs make the mean completion time longer",
        figures.longest_mean,
        _CAPACITY,
        ("more-capacity-1.2.json", "more-capacity-0.9.json", "more-capacity-0.6.json"),
    ),
    Claim(
        "capacity.md",
        "deadlines lost by them",
        figures.deadlines_lost,
        "the same",
        ("more-capacity-1.2.json", "more-capacity-0.9.json", "more-capacity-0.6.json"),
    ),
    Claim(
        "capacity.md",
        "the same where one job in ten has a higher priority: mean",
        figures.longest_mean,
        _CAPACITY,
        _PRIORITY,
    ),
    Claim(
        "capacity.md",
        "and deadlines",
        figures.deadlines_lost,
        "the same; aim one in 400",
        _PRIORITY,
    ),
    Claim(
        "tail.md",
        "an overloaded day: p99 of `tide` above the least by rights; its mean above the least",
        figures.tail,
        "generated jobs, five seeds; aim 10 % each; only `tide` keeps deadlines here",
        ("tail.json",),
    ),
    Claim(
        "deadlines.md",
        "promises that `tide` breaks",
        figures.broken,
        "`tide` promises a job when it starts, ElasticFlow when it arrives",
        _DEADLINES,
    ),
    Claim(
        "deadlines.md",
        "part of the gap to the bound that `tide` closes",
        figures.closed,
        "aim 50 %; the bound is what all jobs can have together",
        _DEADLINES,
    ),
    Claim(
        "loans.md",
        "part of what free loans would gain that `tide` gains: all elastic at 0.8 and 1/3, "
        "Aryl's mix at 0.8 and 1/3",
        figures.paid,
        f"{_ONE_RUN}a tenth of Aryl's size; aim 70 %",
        (
            "loans-elastic-0.8-tide.json",
            "loans-elastic-0.333-tide.json",
            "loans-aryl-0.8-tide.json",
            "loans-aryl-0.333-tide.json",
        ),
    ),
    Claim(
        "loans.md",
        "the same, all elastic at 1/3",
        figures.paid_mean,
        "aim 70 %; 62 to 82 %, four of the seeds looked at when it was tuned",
        (
            "loans-elastic-0.333-tide.json",
            *(f"loans-elastic-0.333-tide-seed{seed}.json" for seed in range(2, 8)),
        ),
    ),
    Claim(
        "loans.md",
        "the same for `tide` and `aryl`, of which this is `tide`'s: all elastic at 0.8 and 1/3, "
        "Aryl's mix at 0.8 and 1/3",
        figures.paid,
        f"{_ONE_RUN}the rows of `aryl` on the page; `tide`'s are replaced by the newer ones above",
        (
            "loans-elastic-0.8-peers.json",
            "loans-elastic-0.333-peers.json",
            "loans-aryl-0.8-peers.json",
            "loans-aryl-0.333-peers.json",
        ),
    ),
    Claim(
        "loans.md",
        "the mean time of a job with loans under `deepboot`: all elastic at 0.8 and 1/3, Aryl's "
        "mix at 0.8 and 1/3",
        figures.lent_mean,
        f"{_ONE_RUN}`tide` is shorter in all four",
        (
            "loans-elastic-0.8-deepboot.json",
            "loans-elastic-0.333-deepboot.json",
            "loans-aryl-0.8-deepboot.json",
            "loans-aryl-0.333-deepboot.json",
        ),
    ),
    Claim(
        "loans.md",
        "the same at Aryl's full size: all elastic at 0.8, and at 1/3 with three seeds; Aryl's mix "
        "at 0.8 and 1/3",
        figures.paid,
        f"{_ONE_RUN}missed at 1/3, all elastic",
        (
            "loans-full-elastic-0.8.json",
            "loans-full-elastic-0.333.json",
            "loans-full-elastic-0.333-seed2.json",
            "loans-full-elastic-0.333-seed3.json",
            "loans-full-aryl-0.8.json",
            "loans-full-aryl-0.333.json",
        ),
    ),
    Claim(
        "loans.md",
        "completion times of `aryl` against `fifo`, its mix at 1/3 and with equal GPUs",
        figures.aryl,
        "published 1.50x, which no policy could reach on this mix (1.26x)",
        ("loans-aryl-0.333-published.json", "loans-aryl-1-published.json"),
    ),
    Claim(
        "loans.md",
        "how much longer `aryl` makes the mean with loans of GPUs a third as fast: all elastic, "
        "Aryl's mix",
        figures.lost_by_loans,
        _ONE_RUN.removesuffix("; "),
        ("loans-elastic-0.333-aryl.json", "loans-aryl-0.333-aryl.json"),
    ),
    Claim(
        "loans.md",
        "jobs stopped by reclaims above the optimum",
        "0.2 %",
        f"random cases; {_UNKEPT}",
        command="python -m benchmarks.reclaim",
    ),
    Claim(
        "loans.md",
        "idle GPU-hours that lending by forecast captures",
        "90.5 to 94.5 %",
        f"generated tides; 80 % on tides of another family; {_UNKEPT}",
        command="python -m benchmarks.forecast",
    ),
    Claim(
        "edge.md",
        "lead of `tide` over `edgeflow` in deadlines met, where changes pause for 5 and 40 s",
        figures.least_lead,
        "generated jobs, two seeds; one job is half a point",
        ("edge-5.json", "edge-40.json"),
    ),
    Claim(
        "edge.md",
        "the same where changes are free",
        figures.least_lead,
        "the same",
        ("edge-0.json",),
    ),
    Claim(
        "failures.md",
        "mean completion time of `tide` with a failure of each node in 12 hours, generated jobs",
        figures.growth,
        "two seeds of ten that were meant; nodes fail alone",
        ("failures-generated.json",),
    ),
    Claim(
        "failures.md",
        "the same, a workload of Pollux",
        figures.growth,
        "one run; `pollux` and `sia` lose less",
        ("failures-pollux.json",),
    ),
    Claim(
        "peers.md",
        "rebuilt Tiresias, Optimus and Pollux against their authors' means",
        "0.000, -0.3 and +0.6 %",
        f"Gandiva's slice was fitted; {_UNKEPT}",
        command="python -m benchmarks.published --json out.json",
    ),
    Claim(
        "speed.md",
        "decision cycle of `tide`, 2,048 GPUs and 400 jobs, steady: mean / p99",
        "4.2 / 5.3 ms",
        f"last of three runs; aim 5 ms reached in one; {_UNKEPT}",
        command="python -m benchmarks.decisions --policy tide --sizes 2048x400,10000x5000",
        commit="87835c1",
    ),
    Claim(
        "speed.md",
        "replay of a demo's log by `tide`",
        "2,740 stimuli/s",
        f"CPU time, one run; aim 5,000 missed; {_UNKEPT}",
        command="python -m benchmarks decisions replay",
    ),
    Claim(
        "speed.md",
        "telemetry events taken by one process",
        "25,000 to 49,600 /s",
        f"three runs on a busy machine; aim 50,000 missed; {_UNKEPT}",
        command="python -m benchmarks --json out.json",
    ),
    Claim(
        "speed.md",
        "15 simulated days, 50,000 jobs, 960 servers",
        "123 s of CPU",
        f"aim 300; {_UNKEPT}",
        command="python -m benchmarks.simulator --only days",
        commit="096650623",
    ),
    Claim(
        "scale.md",
        "a steady cycle at 10,000 nodes and 50,000 jobs",
        figures.cycle,
        "aim 150 ms missed by far",
        ("scale.json",),
    ),
    Claim(
        "scale.md",
        "a message of one of 100,000 sources",
        figures.source,
        "CPU time",
        ("scale.json",),
    ),
    Claim(
        "brokers.md",
        "accepted events lost in 90 faults of brokers and services",
        "0 of 14,803",
        f"24 minutes beside other work; {_UNKEPT}",
        command="make chaos MINUTES=24 SEED=11",
        commit="3abdd9f",
    ),
    Claim(
        "branches.md",
        "control of a branch against the record, 6 hours of five nights: jobs done, deadlines met, "
        "GPU hours used, at most apart",
        figures.control_error,
        "simulated workers; preemptions are up to three tenths fewer in the control",
        ("branches.json",),
    ),
    Claim(
        "gateway.md",
        "a moment of a million entries is found: p50 / p95",
        figures.seek,
        "a small cell, its entries told again",
        ("gateway.json",),
    ),
    Claim(
        "gateway.md",
        "overview beside 1,000 viewers: p95, now / in the past",
        figures.viewers,
        "the log does not grow meanwhile",
        ("gateway.json",),
    ),
    Claim(
        "gateway.md",
        "10,000 nodes and 50,000 jobs: most memory of a gateway; overview now and of the past, p95",
        figures.large_gateway,
        "a minute of the cell's work, on an idle machine",
        ("gateway-cell.json",),
    ),
    Claim(
        "console.md",
        "the console of 10,000 nodes, 50,000 jobs and a million entries: first paint / with its "
        "figures, p95",
        figures.console_arrives,
        f"{_CONSOLE}; aim 1 s",
        ("console.json",),
    ),
    Claim(
        "console.md",
        "a moment of it, from the click or key until drawn: far / near / the one before, p95",
        figures.console_seeks,
        f"{_CONSOLE}; aims 3 s far, 300 ms near",
        ("console.json",),
    ),
    Claim(
        "console.md",
        "its fleet repainted / a frame while its jobs are scrolled, p95",
        figures.console_draws,
        f"{_CONSOLE}; aims 16 and 50 ms",
        ("console.json",),
    ),
    Claim(
        "console.md",
        "most memory of its gateway; objects of its page after scrolling",
        figures.console_memory,
        _CONSOLE,
        ("console.json",),
    ),
    Claim(
        "gateway.md",
        "a request of a person until it is done: p50 / p99, SQLite; Kafka",
        figures.requests,
        "one broker, one copy, an idle machine",
        ("requests.json",),
    ),
    Claim(
        "brokers.md",
        "publishing to Kafka against the bare client",
        "0.85",
        f"middle of three runs, 0.81 to 1.15; aim 0.70; {_UNKEPT}",
        command="python -m benchmarks.bus --seconds 10 --json out.json",
    ),
    Claim(
        "brokers.md",
        "from an event to its command, 1,000 devices, 1,000 events/s: p50 / p99",
        "102 / 340 ms",
        f"aim 25 / 100 missed, two full cores; {_UNKEPT}",
        command="python -m benchmarks.bus --seconds 10 --json out.json",
    ),
    Claim(
        "faults.md",
        "storms of faults that break a law",
        figures.storms,
        "simulated brokers and workers; what broke it is mended since",
        ("storms.json",),
    ),
    Claim(
        "faults.md",
        "requests lost, done twice or answered falsely while gateways are killed",
        figures.gateway_kills,
        "two gateways on one machine, one broker; no scheduler is killed",
        ("gateway-kills.json",),
    ),
    Claim(
        "faults.md",
        "memory of a demo of 20 days: after a third of the time, at the end; of its gateway",
        figures.twenty_days,
        "one run; scheduler, agents and tenants in one process",
        ("twenty-days.json",),
    ),
    Claim(
        "gpu.md",
        "times that a GPU's driver saw its owner and a job on it at once; the job's lost steps",
        figures.gpu_shared,
        "one H200, one run, one server and one job",
        ("gpu.json",),
    ),
    Claim(
        "gpu.md",
        "from users' return to a lent GPU's server until the first of them is answered",
        figures.gpu_answer,
        "one H200; 4.7 s of it load 16 GiB and PyTorch; one run",
        ("gpu.json",),
    ),
    Claim(
        "gpu.md",
        "the same where the job has a checkpoint of 4 GiB",
        figures.gpu_answer,
        "16.5 s of it store the checkpoint; one run, cut off after it",
        ("gpu-large.json",),
    ),
    Claim(
        "gpu.md",
        "the same with 256 MiB, on an H100",
        figures.gpu_answer,
        "one run, of an earlier version of the benchmark",
        ("gpu-h100.json",),
    ),
    Claim(
        "real-work.md",
        "steps lost and repeated by a job that a real tide moves",
        "0 and 0 of 2,000",
        f"no GPU; {_UNKEPT}",
        command="make demo-real JSON=out.json TRACE=AzureLLMInferenceTrace_code.csv",
    ),
    Claim(
        "real-work.md",
        "steps lost when real work is killed in the middle, 76 times",
        "0 of 1,440",
        f"one machine; {_UNKEPT}",
        command="make chaos-real MINUTES=16 SEED=1 JSON=out.json",
    ),
    Claim(
        "real-work.md",
        "resident memory of an edge agent",
        "59.2 MiB",
        f"some 5.5 more since structlog loads rich again; aim 60; {_UNKEPT}",
        command="python -m benchmarks.agent --seconds 20",
    ),
)
