"""What a subject sees of tenants: programs only of its own tenant's jobs, and perhaps names, too.

Where names are only its own, others' jobs and tenants have pseudonyms.

Every answer is looked through on its way out. What is not known to be everybody's is hidden: a name
stands as it is if it is of a node, pool or lender, or of a job of the subject's own tenant.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson

from gateway.problems import Problem
from gateway.subjects import Sight, Subject
from scheduler.core.observe import OWN_TAKEN
from scheduler.core.state import ClusterState, Job

#: Instead of what is another tenant's.
HIDDEN = "hidden"
#: Instead of whose a name is that somebody wants to give to a job.
TAKEN = "is taken; choose another name"
#: Fields that hold names of jobs, or of what else a reason is about, in lists or not.
_NAMES = ("job", "subject", "lost_to", "holders", "claims", "holder", "claim", "name")
#: Fields of a row of a job by which it is told what of the others is seen.
WHOSE = ("job", "tenant", "state")
#: Fields whose words are ours, not tenants': a job that is called `queued` changes none of them.
_OURS = (
    "state", "kind", "rule", "verb", "pool", "change", "stimulus", "cell", "loan_state",
    "gpu_type", "label", "loan", "agent", "node", "leader", "type", "next", "digest",
)  # fmt: skip
#: Fields that hold the line of a policy.
_LINES = ("policy", "configured")
#: Fields of a row or a description of a job whose words its own tenant chose.
_CHOSEN = ("model", "program", "metrics", "hold", "set_size", "outputs")
#: Facts about a job that hold the words of who asked for it, and lines of a history that hold none.
_ASKED = ("JobHeld", "JobRequeued")
_TOLD = ("refused", "claim given up")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_is_pseudonym = re.compile(r"job-x[0-9a-f]{12}").fullmatch
_TENANTS_SOURCE = re.compile(r"(/tenants/)([^/]+)")


class Shows(Enum):
    """What an endpoint's answer may hold of tenants, and so who may have it."""

    SUMS = "sums"  #: Figures of the whole cell, and what the gateway itself is.
    NAMES = "names"  #: Names of jobs and tenants; looked through.
    JOURNAL = "journal"  #: An entry whole, about many at once: not with pseudonyms.
    OWN = "own"  #: What the subject, or its tenant, asked for itself: the route sees to it.
    RAW = "raw"  #: What anybody sent, whose it is unknown: for operators and admins.


#: By route. One that is not here is only for who sees everything.
SHOWS: Mapping[str, Shows] = {
    "overview": Shows.SUMS,
    "tide": Shows.SUMS,
    "moments": Shows.SUMS,
    "rules": Shows.NAMES,
    "loans": Shows.SUMS,
    "loan_history": Shows.SUMS,
    "me": Shows.SUMS,
    "cells": Shows.SUMS,
    "health": Shows.SUMS,
    "stream": Shows.SUMS,
    "nodes": Shows.NAMES,
    "jobs": Shows.NAMES,
    "job": Shows.NAMES,
    "why": Shows.NAMES,
    "story": Shows.NAMES,
    "stays": Shows.NAMES,
    "curves": Shows.NAMES,
    "forecast": Shows.NAMES,
    "fleet": Shows.NAMES,
    "agents": Shows.NAMES,
    "leaders": Shows.SUMS,
    "verified": Shows.SUMS,
    "begin_branch": Shows.OWN,
    "branches": Shows.OWN,
    "branch": Shows.OWN,
    "end_branch": Shows.OWN,
    "branch_log": Shows.RAW,
    "decisions": Shows.NAMES,
    "reclaims": Shows.NAMES,
    "diff": Shows.NAMES,
    "ask": Shows.OWN,
    "job_file": Shows.OWN,
    "request": Shows.OWN,
    "output": Shows.OWN,
    "requests": Shows.OWN,
    "entry": Shows.JOURNAL,
    "perfetto": Shows.JOURNAL,
    "dead_letters": Shows.RAW,
}


def allow(route: str, who: Subject) -> None:
    """Refuse what cannot be shown to somebody in part.

    Raises:
        Problem: 403, it is not for them.
    """
    shows = SHOWS.get(route, Shows.RAW)
    if who.sight is Sight.EVERYTHING or shows in (Shows.SUMS, Shows.NAMES, Shows.OWN):
        return
    if shows is Shows.JOURNAL and who.sight is Sight.ALL_NAMES:
        return
    raise Problem(
        403,
        "this holds what other tenants sent, so it is for operators and admins; "
        "jobs/ID/story and decisions tell what concerns your tenant",
    )


def refusal_seen(who: Subject, verb: str, field: str, why: str) -> str:
    """Give why a field was refused as somebody sees it: the scheduler says whose a name is."""
    of_name = verb == "job.submit" and field in ("args.spec.job", "job")
    return TAKEN if of_name and who.sight is Sight.OWN_NAMES and why != OWN_TAKEN else why


def policy_seen(who: Subject, line: str) -> str:
    """Give the line of a policy as somebody sees it: options such as quotas name tenants."""
    return line.partition(":")[0] if who.sight is Sight.OWN_NAMES else line


@dataclass(frozen=True, slots=True)
class View:
    """Some states as one subject sees them."""

    who: Subject
    states: tuple[ClusterState, ...]
    own_jobs: frozenset[str] = frozenset()  #: Known to be its tenant's, though no state has them.

    # --- single names -----------------------------------------------------------------------

    @property
    def _veiled(self) -> bool:
        return self.who.sight is Sight.OWN_NAMES

    def job(self, name: str) -> str:
        """Give a job's name as it is seen."""
        return name if not self._veiled or self._public(name) else self._pseudonym("job", name)

    def tenant(self, name: str) -> str:
        """Give a tenant's name as it is seen."""
        seen = not self._veiled or self.who.owns(name)
        return name if seen else self._pseudonym("tenant", name)

    def names(self, job: Job) -> tuple[str, str, str]:
        """Give job, tenant and model as they are seen: what lists are filtered and sorted by."""
        if self.whole(job):
            return job.id, job.tenant, job.model
        return self.job(job.id), self.tenant(job.tenant), HIDDEN

    def whole(self, job: Job) -> bool:
        """Whether a job is seen whole, and not as one that somebody else has."""
        return not self._veiled or self.who.owns(job.tenant)

    def own(self, name: str) -> bool:
        """Whether a job is of the subject's own tenant, as far as the states know."""
        if name in self.own_jobs:
            return True
        jobs = [state.jobs.get(name) for state in self.states]
        return any(job is not None and self.who.owns(job.tenant) for job in jobs)

    def named(self, name: str) -> str | None:
        """Give the job that is seen under a name; None: there is none."""
        if not self._veiled or self.own(name):
            return name
        if _is_pseudonym(name):
            for job in self.states[0].jobs:
                if self._pseudonym("job", job) == name and not self._public(job):
                    return job
        return None

    def _public(self, name: str) -> bool:
        if self.own(name):
            return True
        if self._is_job(name):
            return False  # whatever else has that name
        return any(
            name in state.nodes or name in state.pools or name in state.lenders
            for state in self.states
        )

    def _is_job(self, name: str) -> bool:
        return any(name in state.jobs for state in self.states)

    def _pseudonym(self, kind: str, name: str) -> str:
        return _pseudonym(self.who.veil, kind, name)

    # --- whole answers ----------------------------------------------------------------------

    def of(self, document: Any) -> Any:
        """Give an answer as it is seen."""
        if self.who.sight is Sight.EVERYTHING:
            return document
        read = orjson.loads(orjson.dumps(document))
        if not self._veiled:
            return self._without_programs(read)
        hidden = {name for name in _names(read) if not self._public(name)}
        tenants = {job.tenant for state in self.states for job in state.jobs.values()}
        tenants -= {self.who.tenant or ""}

        def shown(name: str) -> str:
            if name in hidden or (self._is_job(name) and not self.own(name)):
                return self._pseudonym("job", name)
            return self._pseudonym("tenant", name) if name in tenants else name

        return self._seen(self._without_programs(read), shown)

    def _without_programs(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._without_programs(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: self._without_programs(one) for key, one in value.items()}
        if found.get("program") is not None and not self.who.owns(found.get("tenant")):
            found["program"] = HIDDEN
        if "raw" in found and not self.who.owns(_asked_tenant(found)):
            found["raw"] = HIDDEN  # a request's bytes, with the program in them
        return found

    def _seen(self, value: Any, shown: Callable[[str], str], key: str = "") -> Any:
        if isinstance(value, list):
            return [self._seen(one, shown, key) for one in value]
        if isinstance(value, str):
            return self._text(value, shown, key)
        if not isinstance(value, dict):
            return value
        own = self._own_words(value)
        found = {
            name: one if name in own else self._seen(one, shown, _field(value, name))
            for name, one in value.items()
        }
        if "asked" in value:
            found["asked"] = [
                one if one.startswith(("held by ", "set to ")) else self._seen(one, shown)
                for one in value["asked"]
            ]
        if "job" in value and "tenant" in value and not self.who.owns(value["tenant"]):
            found["model"] = HIDDEN
            if "metrics" in value:
                found["metrics"] = None  # under names of its tenant's choice
            for asked in ("hold", "set_size"):
                if found.get(asked) is not None:  # by its tenant's people, in their words
                    found[asked] = {**found[asked], "by": HIDDEN, "reason": HIDDEN}
        if found.get("error") is not None:
            found["error"] = HIDDEN  # a policy's traceback tells of whatever job it was at
        return found

    def _own_words(self, value: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the fields that hold words about a job of the subject's own: they stand as they are.

        Its people and its programs chose them. Were names replaced there, whoever wrote down a
        guess would read whether there is such a job or tenant, and its pseudonym.
        """
        if self.who.owns(value.get("tenant")):
            acts = ("subject", "about", "reason") if "verb" in value else ()
            failed = ("why_in_words", "why_in_short") if value.get("state") == "failed" else ()
            return (*_CHOSEN, *acts, *failed)
        if self.who.owns(value.get("spec", {}).get("tenant")) and "history" in value:
            # `text` is made of what was looked through already.
            return "failure", "output", "outputs", "checkpoint", "metrics", "text"
        if "detail" in value and "what" in value:  # such histories are of one's own jobs alone
            return () if value["what"] in _TOLD else ("detail",)
        if value.get("kind") in _ASKED and self.own(value["fields"]["job"]):
            return ("fields",)
        if "detail" in value and "job" in value and self.own(value["job"]):
            return ("detail",)
        return ()

    def _text(self, text: str, shown: Callable[[str], str], key: str) -> str:
        if key in _OURS:
            return text
        if key in _LINES:
            return policy_seen(self.who, text)
        if key == "tenant":
            return self.tenant(text)
        if key in _NAMES:
            return self.job(text)
        text = _TENANTS_SOURCE.sub(lambda one: one[1] + self.tenant(one[2]), text)
        return _TOKEN.sub(lambda one: _replaced(one[0], shown), text)


@lru_cache(maxsize=2**16)  # lists are ordered by it, and there may be fifty thousand jobs
def _pseudonym(veil: bytes, kind: str, name: str) -> str:
    made = hmac.digest(veil, f"{kind}/{name}".encode(), "sha256")
    return f"{kind}-x{made.hex()[:12]}"


def _replaced(token: str, shown: Callable[[str], str]) -> str:
    """Give a word of a sentence as it is seen: a name may end as a sentence does."""
    name = token
    while (seen := shown(name)) == name and name[-1] in ".:":
        name = name[:-1]
    return seen + token[len(name) :]


def _asked_tenant(requested: Mapping[str, Any]) -> str | None:
    args = requested.get("request", {}).get("args", {})
    tenant = args.get("spec", {}).get("tenant")
    return tenant if isinstance(tenant, str) else None


def _names(value: Any, key: str = "") -> Iterable[str]:
    """Find what stands where names do."""
    if isinstance(value, list):
        for one in value:
            yield from _names(one, key)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _names(one, _field(value, name))
    elif isinstance(value, str) and key in _NAMES:
        yield value


def _field(value: Mapping[str, Any], name: str) -> str:
    """Give as which field one is looked at: what figures and needs are called is ours."""
    return "label" if name == "name" and ("label" in value or "want" in value) else name


#: Gives names of a job as somebody sees them: job, tenant, model.
Named = Callable[[Job], tuple[str, str, str]]
