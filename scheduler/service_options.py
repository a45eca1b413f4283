"""How operators may set a scheduler service. Every role reads this: nothing here decides."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from bus.allowance import Rates
from scheduler.core.settings import Settings
from scheduler.dedupe import SOURCES_MAX
from scheduler.policies.spec import line_of
from schemas.options import Count, Seconds, Section
from schemas.values import Name

#: What a source may say: a cluster's agent with 10,000 nodes says some 200 a second, and all its
#: births at once, or all that it has kept while it was out of contact (`runtime.spool.SpoolLimit`):
#: what the bus has stored it does not say again. Of what is refused so many letters are kept; a
#: flood must not become one of ours.
SOURCE_RATES = Rates(
    rate_per_s=1000.0,
    burst=120_000.0,
    bytes_per_s=16.0 * 2**20,
    bytes_burst=512.0 * 2**20,
    letters_per_s=100.0,
    sources_max=SOURCES_MAX,
)
Briefly = Annotated[float, Field(ge=0.0, le=10.0)]


def _line(policy: object) -> object:
    return line_of(policy) if isinstance(policy, dict) else policy


class ServiceOptions(Section):
    """How a scheduler service runs, as operators set it. Times in seconds."""

    #: The name of this process in the journal and among the schedulers.
    name: Name = "scheduler-0"
    #: The policy: any that `tidegate policies` lists. With options it is a line, such as
    #: `tide:loans.cool_down_s=300`, or a table, `[scheduler.policy]` with `name` and the options.
    policy: Annotated[str, BeforeValidator(_line)] = "tide"
    #: Whether that one decides from each start on. Otherwise one that an administrator chose with
    #: `tidegate policy set` goes on to decide, until `tidegate policy clear`.
    policy_pinned: bool = False
    #: Whether it learns from jobs' reports how fast they are at each size: docs/learning.md.
    learn: bool = True
    #: How long to wait for more records after the first, like `linger.ms`; delays each decision.
    gather_s: Briefly = 0.0
    #: The least time between two ticks: a transaction within 10 ms after another finds Kafka still
    #: completing it, and takes 20 ms longer.
    spacing_s: Briefly = 0.01
    #: The most records of one tick, and so of a transaction.
    records_max: Count = 2000
    #: How long a policy may take in a cycle; then `fifo` is used for that cycle, and
    #: `tidegate_policy_failures_total` counts it.
    cycle_budget_s: Seconds = 10.0
    #: A snapshot is written after this many journal entries, or half as many as there are nodes,
    #: jobs and open commands if that is more. A restart replays no more than that.
    snapshot_entries: Count = 5000
    #: How often the leader sends a heartbeat; after 3 minutes without one `tidegate jobs` warns.
    heartbeat_s: Annotated[float, Field(gt=0.0, le=60.0)] = 60.0
    #: The whole state is checked every this many ticks; 0: never.
    validate_ticks: Annotated[int, Field(ge=0)] = 100
    settings: Settings = Field(default_factory=Settings)
