"""What each policy knows, aims at and costs, and where it comes from: one line each, for people."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy in a line. n jobs, k sizes, s samples, S steps of a free profile."""

    knows: str  #: besides GPUs, gangs and submission.
    aims: str
    cost: str  #: of one plan, as a whole phrase.
    source: str


_PROFILE = "O(n k S)"
#: Policy -> what to say of it.
CATALOGUE: Mapping[str, Entry] = {
    "tide": Entry(
        "remaining work, speed at each size, deadlines, owners' load, edge servers, quotas",
        "promised deadlines kept, then mean completion time, by lending, scaling and offloading",
        "O(n k m log(n k m)) for m sites; with deadlines O(n k S)",
        "ours: heSRPT's weights, commitment on admission, Aryl's loans, one price for alike sites",
    ),
    "fifo": Entry("declared lengths, to backfill", "order of arrival", "O(n log n)", "classic"),
    "sjf": Entry(
        "remaining time", "mean completion time, never preempting", "O(n log n)", "classic"
    ),
    "srtf": Entry("remaining time", "mean completion time, preempting", "O(n log n)", "classic"),
    "edf": Entry(
        "deadlines, the fastest size", "nearest deadline first", "O(n log n + n k)", "classic"
    ),
    "drf": Entry("tenants", "even dominant shares", "O(n log n)", "Ghodsi et al., NSDI '11"),
    "capacity": Entry(
        "queues and quotas",
        "guarantees; what is idle as a bonus",
        "O(n log n)",
        "YARN, as recalled",
    ),
    "tiresias": Entry("attained service", "short jobs first", "O(n log n)", "Gu et al., NSDI '19"),
    "gittins": Entry(
        "attained service; how long jobs are, not which",
        "likely to end soon first",
        "O(n s)",
        "Gu et al., NSDI '19",
    ),
    "optimus": Entry(
        "remaining work, speed at each size",
        "sum of remaining times",
        "O(n k log(n k))",
        "Peng et al., EuroSys '18",
    ),
    "afs": Entry(
        "remaining work, or attained service; speed at each size",
        "mean completion time",
        "O(n k log n)",
        "Hwang et al., NSDI '21",
    ),
    "pollux": Entry(
        "goodput at each size, restarts",
        "fair speed-up",
        "O(n k) and a knapsack",
        "Qiao et al., OSDI '21",
    ),
    "aryl": Entry(
        "remaining work, speed at each size, owners' load",
        "queueing and completion time on loaned servers",
        "O(n k) and a knapsack",
        "Aryl, 2022; Lyra, EuroSys '23",
    ),
    "deepboot": Entry(
        "goodput at each size, owners' load",
        "sum of speed-ups on loaned GPUs",
        "O(n k) and a knapsack",
        "DeepBoot, TPDS '23",
    ),
    "elasticflow": Entry(
        "deadlines, remaining work, speed at each size",
        "admitted deadlines kept",
        _PROFILE,
        "Gu et al., ASPLOS '23",
    ),
    "edgeflow": Entry(
        "deadlines, remaining work, speed at each size, edge servers",
        "deadlines kept, nobody refused",
        _PROFILE,
        "Journal of Software 36(12), 2025",
    ),
    "themis": Entry(
        "remaining time", "finish-time fairness", "O(n log n)", "Mahajan et al., NSDI '20"
    ),
    "gandiva": Entry(
        "waits and slices", "time slices for all", "O(n log n)", "Xiao et al., OSDI '18"
    ),
    "gavel": Entry(
        "speed on each type of GPU",
        "even shares of time over types",
        "a linear program",
        "Narayanan et al., OSDI '20",
    ),
    "sia": Entry(
        "goodput at each size and type",
        "sum of goodputs over types",
        "an integer program",
        "Subramanya et al., SOSP '23",
    ),
}
