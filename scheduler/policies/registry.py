"""Policies by name."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module

from scheduler.policies.interface import Policy
from scheduler.policies.spec import split, with_options

#: The longest line that the journal takes (`schemas.journal.PolicyLine`).
LINE_MOST = 4096


def _late(module: str, name: str) -> Callable[[], Policy]:
    """Give what makes a policy of this class, whose module is not imported before the first one.

    All of them take a tenth of a second, and whoever starts needs one or none.
    """

    def make() -> Policy:
        made: Policy = getattr(import_module(module, __package__), name)()
        return made

    return make


#: Name -> what makes it with its default options; the default first, then as in docs/policies.md.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "tide": _late(".tide.tide", "Tide"),
    "fifo": _late(".literature.fifo", "Fifo"),
    "sjf": _late(".literature.shortest", "Sjf"),
    "srtf": _late(".literature.shortest", "Srtf"),
    "edf": _late(".literature.edf", "Edf"),
    "drf": _late(".literature.drf", "Drf"),
    "capacity": _late(".literature.capacity_queues", "CapacityQueues"),
    "tiresias": _late(".literature.tiresias", "Tiresias"),
    "gittins": _late(".literature.gittins", "Gittins"),
    "optimus": _late(".literature.optimus", "Optimus"),
    "afs": _late(".literature.afs", "Afs"),
    "pollux": _late(".literature.pollux", "Pollux"),
    "aryl": _late(".literature.aryl", "Aryl"),
    "deepboot": _late(".literature.deepboot", "DeepBoot"),
    "elasticflow": _late(".literature.elasticflow", "ElasticFlow"),
    "edgeflow": _late(".literature.edgeflow", "EdgeFlow"),
    "themis": _late(".literature.themis", "Themis"),
    "gandiva": _late(".literature.gandiva", "Gandiva"),
    "gavel": _late(".literature.gavel", "Gavel"),
    "sia": _late(".literature.sia", "Sia"),
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
