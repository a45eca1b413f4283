"""People who ask for things, by requests that a gateway signs; and whoever forges some.

Verbs are drawn from the registry: one that is added is drawn too, if all its arguments can be.
Roles are drawn as well: who may not ask for a thing must be refused.
"""

import itertools
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic.fields import FieldInfo

from bus.clock import PacedClock
from bus.contract import Message
from bus.signing import Signer
from scheduler.gateways import Gateway, Gateways
from schemas.codec import encode, request
from schemas.events import JobSubmitted
from schemas.requests import VERB_NAMES, VERBS, Request, Role, SubmitJob, Verb
from schemas.topics import REQUESTS
from tests.whole.agents import Agent
from tests.whole.policies import CHOSEN
from tests.whole.storm import Blow, Job
from tests.whole.tenants import Tenants

#: The gateway's key, and one that nobody trusts under the same name.
KEY, FOREIGN = (Signer("gw", Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))) for n in (1, 2))
#: What takes away what other verbs left standing; asked for everything when the storm is over.
LIFTS = ("uncordon", "refuse", "release", "resume", "unfreeze", "clear")
#: A request is worth taking for so long; one that lifts, or submits, for longer than any calm.
LIFE_S = 900.0
LONG_LIFE_S = 86_400.0
#: Who asks, but for submissions: mostly whoever may.
ROLES: tuple[tuple[Role, float], ...] = (("admin", 0.7), ("operator", 0.2), ("tenant", 0.1))
#: What an argument of this name may be, where that is not a thing of its own.
_NAMED = ("node", "agent", "pool", "job", "tenant", "lender", "line", "spec")
#: A log is read in a thread, which knows no virtual time.
NOT_DRAWN = ("job.logs",)


class Operators:
    """They ask through the tenants' connection."""

    def __init__(self, world: PacedClock, agents: list[Agent], tenants: Tenants) -> None:
        self._world, self._agents, self._tenants = world, agents, tenants
        self._numbers = itertools.count()
        self.confirmed: list[str] = []  #: Ids of requests that the broker has stored.

    def submit(self, job: Job) -> None:
        """Have a tenant submit a job: every other one by a request."""
        if len(self._tenants.names) % 2:
            self._submit(self._tenants.specify(job))
        else:
            self._tenants.submit(job)

    def ask(self, blow: Blow) -> None:
        """Ask for anything, by whom a blow strikes."""
        rng = np.random.default_rng([blow.who, int(blow.size * 1e6)])
        verbs = [verb for verb in VERBS if can_draw(verb)]
        verb = verbs[int(rng.integers(len(verbs)))]
        if verb is SubmitJob:
            self._submit(self._spec(blow, rng))
            return
        drawn = {
            name: self._drawn(name, field, blow, rng)
            for name, field in verb.model_fields.items()
            if name != "verb"
        }
        if any(value is None and name == "job" for name, value in drawn.items()):
            return  # there is none yet
        args = verb.model_validate(drawn)
        if args.verb == "job.cancel":
            self._tenants.cancelled.append(drawn["job"])
        roles, shares = zip(*ROLES, strict=True)
        self._ask(args, LIFE_S, roles[int(rng.choice(len(roles), p=shares))], f"t{blow.who % 3}")

    def forge(self, blow: Blow) -> None:
        """Ask without a signature, by another's key, or in changed bytes."""
        node = self._node(blow)
        args = VERB_NAMES["node.drain"].model_validate(
            {"node": node, "by_s": self._world.now_s() + 60.0, "force": True}
        )
        value = self._value(args, f"forged-{next(self._numbers)}", LIFE_S)
        headers = FOREIGN.headers(value)
        if blow.who % 3 == 0:
            headers = {}
        elif blow.who % 3 == 1:
            headers = KEY.headers(value)
            value = value.replace(b'"force":true', b'"force":false')
        self._tenants.raw(Message(REQUESTS.name, "default", value, headers))

    def lift(self) -> None:
        """Take away all that requests left standing."""
        things = {
            "node": [spec.node for agent in self._agents for spec in agent.place.specs],
            "job": self._tenants.names,
            "tenant": ["t0", "t1", "t2"],
        }
        for name, verb in VERB_NAMES.items():
            if name.partition(".")[2] in LIFTS:
                about = next((one for one in things if one in verb.model_fields), None)
                for thing in things[about] if about is not None else [None]:
                    given = {} if about is None else {about: thing}
                    self._ask(verb.model_validate(given), LONG_LIFE_S)

    def _submit(self, spec: JobSubmitted) -> None:
        def stored() -> None:
            if spec.job not in self._tenants.accepted:
                self._tenants.accepted.append(spec.job)

        self._ask(SubmitJob(spec=spec), LONG_LIFE_S, "tenant", spec.tenant, stored)

    def _spec(self, blow: Blow, rng: np.random.Generator) -> JobSubmitted:
        """Give a job that is known, or a new one, which is short."""
        if rng.random() < 0.3 and (known := self._tenants.known(blow.who)) is not None:
            return known
        steps, most = int(10 ** rng.uniform(1.5, 3.0)), int(2 ** rng.integers(2, 4))
        name = f"a{blow.who}-{len(self._tenants.names)}"
        return self._tenants.specify(Job(0.0, name, 1, most, steps, f"t{blow.who % 3}"))

    def _ask(
        self,
        args: Verb,
        life_s: float,
        role: Role = "admin",
        tenant: str | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        name = f"r{next(self._numbers)}"
        value = self._value(args, name, life_s, role, tenant)
        message = Message(REQUESTS.name, "default", value, KEY.headers(value))

        def stored() -> None:
            self.confirmed.append(name)
            then()

        self._tenants.raw(message, stored)

    def _value(
        self,
        args: Verb,
        name: str,
        life_s: float,
        role: Role = "admin",
        tenant: str | None = None,
    ) -> bytes:
        now_s = self._world.now_s()
        fields: dict[str, Any] = {"args": args, "subject": "ann", "role": role, "tenant": tenant}
        times: dict[str, Any] = {"asked_s": now_s, "expires_s": now_s + life_s}
        return encode(request(Request(id=name, **fields, **times), source="/gateways/gw"))

    def _drawn(self, name: str, field: FieldInfo, blow: Blow, rng: np.random.Generator) -> Any:
        if name == "node":
            return self._node(blow)
        if name in ("agent", "pool"):
            agent = self._agents[blow.who % len(self._agents)]
            return agent.place.agent if name == "agent" else agent.place.specs[0].pool
        if name == "speed_factor":
            return field.get_default()
        if name == "job":
            return self._tenants.job(blow.who)
        if name == "tenant":
            return f"t{blow.who % 3}"
        if name == "lender":
            node = self._agents[blow.who % len(self._agents)].place.specs[0]
            every = [None] if not field.is_required() else []
            return [*every, node.pool, node.node][blow.who // 7 % (2 + len(every))]
        if name == "line":
            return CHOSEN[blow.who % len(CHOSEN)]
        kind = _kind(field)
        if kind is None:
            return field.get_default(call_default_factory=True)
        if kind is bool:
            return bool(rng.integers(2))
        if kind is int:
            return int(2 ** rng.integers(0, 4))
        if kind is float:  # a moment
            return self._world.now_s() + float(30.0 * 60.0 ** rng.random())
        return kind[int(rng.integers(len(kind)))]

    def _node(self, blow: Blow) -> str:
        specs = self._agents[blow.who % len(self._agents)].place.specs
        return specs[int(blow.size * 997) % len(specs)].node


def can_draw(verb: type[Verb]) -> bool:
    """Tell whether every argument that a verb needs can be drawn."""
    return all(
        name in ("verb", *_NAMED) or not field.is_required() or _kind(field) is not None
        for name, field in verb.model_fields.items()
    )


def _kind(field: FieldInfo) -> Any:
    """Tell how an argument is drawn: a type, or the values to choose from; None if it cannot be."""
    kinds = [field.annotation]
    if get_origin(field.annotation) in (Union, UnionType):
        kinds = [one for one in get_args(field.annotation) if one is not NoneType]
    kind: Any = kinds[0]
    while hasattr(kind, "__metadata__"):  # Annotated
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return get_args(kind)
    return kind if kind in (bool, int, float) else None


def gateways() -> Gateways:
    """Give the gateways that schedulers trust: one, for every verb."""
    return Gateways({KEY.key_id: Gateway(KEY.public(), tuple(VERB_NAMES))})
