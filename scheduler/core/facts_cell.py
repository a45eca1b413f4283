"""What came of people's requests about loans, quotas and the policy: facts, as in `facts`."""

from dataclasses import dataclass


@dataclass(slots=True)
class LoansFrozen:
    """Nothing is newly borrowed from this node or pool; of every lender, if it has no name."""

    lender: str
    request: str
    by: str
    reason: str
    until_s: float | None


@dataclass(slots=True)
class LoansUnfrozen:
    """The freeze of this name is over; without a request, since its time was up."""

    lender: str
    request: str
    by: str


@dataclass(slots=True)
class LoanRecalled:
    """The node on loan is to be with its owner at `due_s`.

    Without a request: the policy in force never gives nodes back; or `by` is its owner, which is
    not heard.
    """

    node: str
    request: str
    by: str
    due_s: float


@dataclass(slots=True)
class OwnerUnheard:
    """Of the load of an owner with nodes on loan nothing was heard for long, though of its agent.

    They go back unless it is heard soon.
    """

    lender: str


@dataclass(slots=True)
class OwnerShort:
    """An owner has come to need more GPUs than it has, while nodes of it are on loan."""

    lender: str


@dataclass(slots=True)
class QuotaSet:
    """The tenant's quota is this, whatever the configuration says."""

    tenant: str
    gpus: int
    guaranteed: int
    jobs: int | None
    request: str
    by: str
    reason: str


@dataclass(slots=True)
class QuotaCleared:
    """The tenant's quota is what the configuration says again."""

    tenant: str
    request: str
    by: str


@dataclass(slots=True)
class PolicyChanged:
    """This policy decides from now on, whatever the configuration says."""

    line: str
    request: str
    by: str
    reason: str


@dataclass(slots=True)
class PolicyConfigured:
    """A new leader's configuration names this policy; the one that was chosen still decides."""

    line: str


@dataclass(slots=True)
class PolicyCleared:
    """The policy that the configuration names decides again.

    Without a request: a leader whose configuration pins the policy took over.
    """

    request: str
    by: str
