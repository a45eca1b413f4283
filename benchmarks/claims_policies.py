"""What docs/results claims of policies."""

from benchmarks import claim_figures as figures
from benchmarks.claim import Claim

_PRIORITY = tuple(f"more-capacity-{load}-priority.json" for load in ("1.2", "0.9", "0.6"))
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
        "simulated-day.md",
        "the same, `tide` and `aryl` again",
        figures.day,
        "the same two seeds",
        ("day-tide-aryl.json",),
    ),
    Claim(
        "simulated-day.md",
        "the same jobs without deadlines and priorities",
        figures.day,
        "two seeds, and the best of the others above alone",
        ("day-plain.json",),
    ),
    Claim(
        "completion-times.md",
        "mean completion time of `tide` against published Pollux, 16 workloads",
        figures.against_pollux("tide"),
        "tuned on these workloads; aim -26 %; `sia`, the best of 18 others, has -2.2 %",
        ("completion-times.json",),
    ),
    Claim(
        "completion-times.md",
        "the same, lengths of jobs unknown",
        figures.against_pollux("tide-unknown"),
        "all jobs of an application are equally long, the best case; aim -12 %",
        ("completion-times.json",),
    ),
    Claim(
        "unknown-lengths.md",
        "the same against `pollux` as run here, ten fresh workloads",
        figures.fresh,
        "made of the same jobs and arrivals; not tuned on",
        ("unknown-lengths-fresh.json",),
    ),
    Claim(
        "unknown-lengths.md",
        "the same when lengths were first learned",
        figures.fresh,
        "the first run of these ten",
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
        "capacity.md",
        "what four agents of a pool cost the mean of `tide`; against the best of seven peers there",
        figures.several_agents,
        "three seeds, load 0.9; peers at the commit of their file",
        ("several-agents-tide.json", "several-agents-before.json", "several-agents.json"),
    ),
    Claim(
        "gpu-types.md",
        "three types of GPUs, Gavel's jobs: mean of `tide` against the best other; 7 jobs an hour, "
        "10, and 10 where changes cost 30 s",
        figures.gpu_types,
        "three seeds of 500 jobs, of which 125 in the middle count",
        ("gpu-types.json", "gpu-types-30.json"),
    ),
    Claim(
        "gpu-types.md",
        "the same at 7 jobs an hour, with ten seeds",
        figures.gpu_types,
        "`sia` is ahead in eight of the ten",
        ("gpu-types-ten.json",),
    ),
    Claim(
        "gpu-types.md",
        "the same where three jobs in ten are gangs of 2 to 8 GPUs, 4 jobs an hour",
        figures.gangs_of_types,
        "three seeds of 500 jobs, of which 125 in the middle count; changes are free",
        ("gpu-types-multiple.json", "gpu-types-multiple-gavel.json"),
    ),
    Claim(
        "gpu-types.md",
        "Sia's three types of GPUs and its workloads, eight of Philly, ten of Saturn, three of "
        "*newtrace*: mean of `tide` against the best other",
        figures.on_sias,
        "one speed for each type and application; what a job needs is known",
        ("sia-philly.json", "sia-saturn.json", "sia-newtrace.json"),
    ),
    Claim(
        "gpu-types.md",
        "the same, Philly's, where jobs do not say what they need: mean of `tide`",
        figures.mean_s,
        "learned of jobs of the application; 1,236 s where they say it",
        ("sia-philly-unknown.json",),
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
        "deadlines.md",
        "the same on traces on which nothing was tuned",
        figures.closed_elsewhere,
        "ElasticFlow's authors' cluster08 and 09, at 8, 16, 32 nodes; no promise is broken",
        ("deadlines-cluster08.json", "deadlines-cluster09.json"),
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
        "aim 70 %; 66 to 87 %, four of the seeds looked at when it was tuned",
        (
            "loans-elastic-0.333-tide.json",
            *(f"loans-elastic-0.333-tide-seed{seed}.json" for seed in range(2, 8)),
        ),
    ),
    Claim(
        "loans.md",
        "the same, Aryl's mix at 1/3",
        figures.paid_mean,
        "aim 70 %; 56 to 112 % of gains of 0.3 to 1.2 %",
        (
            "loans-aryl-0.333-tide.json",
            *(f"loans-aryl-0.333-tide-seed{seed}.json" for seed in range(2, 6)),
        ),
    ),
    Claim(
        "loans.md",
        "the mean time of a job with loans under the best of `aryl` and `deepboot`: all elastic at "
        "0.8 and 1/3, Aryl's mix at 0.8 and 1/3",
        figures.best_with_loans,
        f"{_ONE_RUN}`tide` is shorter in all four",
        (
            "loans-elastic-0.8-peers.json",
            "loans-elastic-0.333-peers.json",
            "loans-aryl-0.8-peers.json",
            "loans-aryl-0.333-peers.json",
        ),
    ),
    Claim(
        "loans.md",
        "the same at Aryl's full size: all elastic at 0.8, and at 1/3 with three seeds; Aryl's mix "
        "at 0.8 and 1/3",
        figures.paid,
        f"{_ONE_RUN}aim 70 %",
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
        "with loans, how many times shorter jobs queue, and take, than under `fifo` without; "
        "full size, the defaults",
        figures.against_fifo,
        "a mix that we chose; of Aryl's no policy can reach 1.50x (bound 1.26x)",
        ("loans-fifo-elastic-0.8.json",),
    ),
    Claim(
        "loans.md",
        "the same: with another seed, lent GPUs a third as fast, a tenth of the size, Aryl's mix",
        lambda *raws: " / ".join(map(figures.against_fifo, raws)),
        _ONE_RUN.removesuffix("; "),
        (
            "loans-fifo-elastic-0.8-seed2.json",
            "loans-fifo-elastic-0.333.json",
            "loans-fifo-small-elastic-0.8.json",
            "loans-fifo-small-aryl-0.333.json",
        ),
    ),
    Claim(
        "loans.md",
        "jobs stopped by reclaims above the optimum",
        figures.reclaims,
        "1,000 random cases; aim 2 %",
        ("reclaim.json",),
    ),
    Claim(
        "loans.md",
        "idle GPU-hours that lending by forecast captures",
        figures.captured,
        "generated tides; 80 % on tides of another family",
        ("forecast.json",),
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
        "four seeds; nodes fail alone",
        ("failures-generated.json",),
    ),
    Claim(
        "failures.md",
        "the same, Pollux's workload 1 at load 1",
        figures.growth,
        "failures of four seeds; `pollux` 6.8 %, `sia` 8.6 %",
        ("failures-pollux-1.json",),
    ),
    Claim(
        "failures.md",
        "the same, Pollux's workload 3 at load 1",
        figures.growth,
        "failures of four seeds; `pollux` 4.7 %, `sia` 6.3 %",
        ("failures-pollux-3.json",),
    ),
    Claim(
        "peers.md",
        "rebuilt Tiresias, Optimus and Pollux against their authors' means",
        figures.rebuilt,
        "Gandiva's slice was fitted",
        ("published.json",),
    ),
)
