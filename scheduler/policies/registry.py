"""Policies by name."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from scheduler.policies.interface import Policy
from scheduler.policies.literature.afs import Afs
from scheduler.policies.literature.aryl import Aryl
from scheduler.policies.literature.capacity_queues import CapacityQueues
from scheduler.policies.literature.deepboot import DeepBoot
from scheduler.policies.literature.drf import Drf
from scheduler.policies.literature.edf import Edf
from scheduler.policies.literature.edgeflow import EdgeFlow
from scheduler.policies.literature.elasticflow import ElasticFlow
from scheduler.policies.literature.fifo import Fifo
from scheduler.policies.literature.gandiva import Gandiva
from scheduler.policies.literature.gavel import Gavel
from scheduler.policies.literature.gittins import Gittins
from scheduler.policies.literature.optimus import Optimus
from scheduler.policies.literature.pollux import Pollux
from scheduler.policies.literature.shortest import Sjf, Srtf
from scheduler.policies.literature.sia import Sia
from scheduler.policies.literature.themis import Themis
from scheduler.policies.literature.tiresias import Tiresias
from scheduler.policies.spec import split, with_options
from scheduler.policies.tide.tide import Tide

#: The longest line that the journal takes (`schemas.journal.PolicyLine`).
LINE_MOST = 4096
#: Name -> what makes it with its default options; the default first, then as in docs/policies.md.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "tide": Tide,
    "fifo": Fifo,
    "sjf": Sjf,
    "srtf": Srtf,
    "edf": Edf,
    "drf": Drf,
    "capacity": CapacityQueues,
    "tiresias": Tiresias,
    "gittins": Gittins,
    "optimus": Optimus,
    "afs": Afs,
    "pollux": Pollux,
    "aryl": Aryl,
    "deepboot": DeepBoot,
    "elasticflow": ElasticFlow,
    "edgeflow": EdgeFlow,
    "themis": Themis,
    "gandiva": Gandiva,
    "gavel": Gavel,
    "sia": Sia,
}
#: Policies that give nodes on loan back when their owners need them, whoever borrowed them. Under
#: any other none stays on loan: the core calls it back (`scheduler.core.recalls`).
GIVE_BACK = ("tide", "fifo", "aryl", "deepboot", "edgeflow")
#: Policies that keep tenants within `Snapshot.quotas` themselves; of others the core keeps from
#: them what a quota does not leave (`scheduler.core.quotas`).
KEEP_QUOTAS = ("tide",)


def gives_back(name: str) -> bool:
    """Whether a policy of this name gives nodes back; one that is not of ours is taken to."""
    return name in GIVE_BACK or name not in POLICIES


def name_of(line: str) -> str:
    """Give the name that a line of text begins with."""
    return split(line, ":")[0]


def nearest(name: str) -> list[str]:
    """Give the names of policies that are most like one; none if none is."""
    return get_close_matches(name, sorted(POLICIES), n=2, cutoff=0.5)


def make_policy(line: str) -> Policy:
    """Make a policy from its name, and options if they are given: `scheduler.policies.spec`.

    Raises:
        ValueError: No policy has this name, or it has no such option; the message lists those
            there are.
    """
    if line != line.strip() or not line.isprintable() or len(line) > LINE_MOST:
        raise ValueError(
            f"policy: must be one line of at most {LINE_MOST} characters without blanks at its ends"
        )
    name, *options = split(line, ":")
    if name not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        near = nearest(name)
        hint = f", nearest: {', '.join(near)}" if near else ""
        raise ValueError(f"policy {name!r} is not known{hint}; choose one of: {known}")
    try:
        return with_options(POLICIES[name], options)
    except ValueError as error:
        raise ValueError(f"policy {name}: {error}") from None
