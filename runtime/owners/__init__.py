"""Real owners of lendable nodes: how their GPUs are freed, taken back, and protected.

`ServedOwner` is the Owner of an agent. It measures through a LoadMeter and acts through a Lender:
`HookLender` (commands), `ReplicaLender` (processes that it starts and stops), `WebhookLender`
(somebody else's service). docs/lending.md says which one to take.
"""

from runtime.owners.hooks import HookLender, HookOptions
from runtime.owners.lender import Lender, Outcome
from runtime.owners.protect import ProtectTimes
from runtime.owners.replica import ReplicaOptions, ReplicaSpec
from runtime.owners.replicas import ReplicaLender
from runtime.owners.served import Counters, Retry, ServedOwner, Serving
from runtime.owners.webhook import WebhookLender, WebhookOptions

__all__ = [
    "Counters",
    "HookLender",
    "HookOptions",
    "Lender",
    "Outcome",
    "ProtectTimes",
    "ReplicaLender",
    "ReplicaOptions",
    "ReplicaSpec",
    "Retry",
    "ServedOwner",
    "Serving",
    "WebhookLender",
    "WebhookOptions",
]
