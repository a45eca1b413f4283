"""Reasons in words: one table from rule to sentence. Nothing is computed, only said.

A sentence may hold parts in brackets; such a part is said only if all its figures were recorded.
`{lost_to}` and the figures' names stand for what the reason recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from console.output import day_clock, duration, is_simulated
from console.policy_phrases import POLICY_PHRASES, VERB_PHRASES
from scheduler.policies.interface import Figure, Need, Reason

_CHEAPEST = "[{lost_to} is forecast to need {forecast_gpus}; ]this node costs least to empty"

#: By rule, or by `rule verb` where a verb needs its own sentence.
PHRASES: Mapping[str, str] = {
    # --- waiting
    "gang.capacity": (
        "no pool that it may use has enough GPUs for its smallest size"
        "[: the most that one could give is {have:gpus_above_base} of {want:gpus_above_base} GPUs]"
        "[: the most that one has free is {have:free_gpus} of {want:free_gpus} GPUs]"
        "[; {lost_to} hold most of what cannot be taken]"
    ),
    "gang.backfill": (
        "it would fit, but starting it now would delay [{lost_to}, ]a gang ahead of it"
    ),
    "gang.strict": "a gang ahead of it does not fit yet[ ({lost_to})], and nobody may pass",
    "gang.start": "it was given a place, and waits for the GPUs to be free",
    "gang.size": "no size between its smallest and largest has a declared rate",
    "sizes.too_many": (
        "jobs declare more sizes than a decision weighs[, which is {sizes_most}], and none of its "
        "own was among the first; declare fewer, or sizes that others have"
    ),
    "gang.backoff": "it failed, and rests[ for {have:backoff_s}] before it is tried again",
    "gang.no_pool": (
        "no node that it may use is large enough"
        "[: it needs {want:gpu_memory_mib} on each GPU, the most there is {have:gpu_memory_mib}]"
    ),
    "plan.refused": (
        "the[ {gpus}] GPUs planned for it cannot be had[, they stay with {lost_to}]; "
        "the next cycle plans again"
    ),
    "claims.in_way": (
        "others[, {lost_to},] wait for GPUs that it is to leave; so it leaves now, and gets its "
        "new ones when they are free"
    ),
    "claims.unanswered": (
        "the GPUs planned for it should long be free[, but {lost_to} did not go]; "
        "the next cycle plans again"
    ),
    # --- starting
    "gang.backfilled": (
        "it fits, and does not delay the gang ahead of it"
        "[, which needs {head_gpus} and has waited {head_waited_s}]"
    ),
    "gang.repack": (
        "it makes room on a node[ for {lost_to}], which would else lie on more nodes than it needs"
    ),
    "fifo.order": "it was next in order of submission, and fits",
    # --- the edge
    "edgeflow.rule1": "a job at the edge stays at the edge (EdgeFlow, rule 1)",
    "edgeflow.rule2": (
        "no cloud GPU is idle, and an edge server ends it in time"
        "[: at {edge_end_s}, deadline {deadline_s}] (EdgeFlow, rule 2)"
    ),
    "edgeflow.rule3": (
        "it would miss its deadline in the cloud"
        "[, ending {cloud_end_s}; at the edge it ends {edge_end_s}, deadline {deadline_s}]"
        " (EdgeFlow, rule 3)"
    ),
    # --- sizes and moves
    "elastic.marginal_return": "these GPUs gain most with it",
    "elastic.marginal_return waits": "other jobs gain more from these GPUs than it would",
    "elastic.marginal_return scales_out": "the next GPUs gain more here than with any other job",
    "elastic.marginal_return scales_in": "its last GPUs gain more elsewhere[, with {lost_to}]",
    "elastic.marginal_return migrates": "the same number of GPUs is better placed there",
    # --- loans
    "loans.idle": (
        "its owner has no use for it[: needs {needed_gpus} now]"
        "[, {peak_gpus} at most within half an hour]"
        "[, and keeps {headroom_gpus} as headroom]"
    ),
    "loans.reclaim": (
        "[{lost_to} takes back ]nodes that it runs on[, and it keeps {kept_gpus} elsewhere]"
    ),
    "loans.unused": "nobody has a use for it[, lent for {lent_s}]",
    "loan.reclaimed": "its node goes back to the owner[, who is expected to need it by {due_s}]",
    "victims.free": "[{lost_to} is forecast to need {forecast_gpus}; ]nobody is on this node",
    "victims.fraction": _CHEAPEST,
    "victims.count": _CHEAPEST,
    "victims.ratio": _CHEAPEST,
    "victims.mended": _CHEAPEST,
    # --- trouble
    "gang.died": "a part of the gang was lost[; it goes on from step {step_kept}]",
    "gang.start_timeout": "it was not up[ within {limit_s}], so it is stopped and tried again",
    "node.pool_changed": "it says that it is in another pool now; it is left out",
    **{rule: sentence for rule, (sentence, _) in POLICY_PHRASES.items()},
    **VERB_PHRASES,
}

#: By rule, what fits into a column of a table.
SHORT: Mapping[str, str] = {
    "gang.capacity": "too few GPUs free",
    "gang.backfill": "would delay another",
    "gang.strict": "nobody may pass",
    "gang.start": "place given",
    "gang.size": "no rate for its sizes",
    "sizes.too_many": "too many sizes declared",
    "gang.backoff": "rests after a failure",
    "gang.no_pool": "no node is large enough",
    "plan.refused": "GPUs were gone",
    "claims.in_way": "others wait for its GPUs",
    "claims.unanswered": "others did not leave",
    "gang.backfilled": "fits, delays nobody",
    "gang.repack": "makes room on a node",
    "fifo.order": "its turn, and it fits",
    "edgeflow.rule1": "stays at the edge",
    "edgeflow.rule2": "in time at the edge",
    "edgeflow.rule3": "late in the cloud",
    "elastic.marginal_return": "gain of the next GPU",
    "loans.idle": "its owner's idle GPUs",
    "loans.reclaim": "its node goes back",
    "loans.unused": "nobody has a use for it",
    "loan.reclaimed": "its node goes back",
    "victims.free": "nobody is on it",
    "victims.fraction": "cheapest to empty",
    "victims.count": "cheapest to empty",
    "victims.ratio": "cheapest to empty",
    "victims.mended": "cheapest to empty",
    "gang.died": "a worker was lost",
    "gang.start_timeout": "did not come up",
    "node.pool_changed": "changed its pool",
    **{rule: short for rule, (_, short) in POLICY_PHRASES.items()},
}

#: What a verb of a reason means for its subject.
VERBS: Mapping[str, str] = {
    "starts": "started",
    "waits": "waits",
    "scales_out": "scaled out",
    "scales_in": "scaled in",
    "preempts": "preempted",
    "migrates": "migrated",
    "moves": "moved",
    "lends": "lent",
    "reclaims": "reclaimed",
    "keeps": "kept",
}
_FAILED = ("gang.died", "gang.start_timeout")


def done(reason: Reason) -> str:
    """Say what was done to a reason's subject, in a word or two."""
    return "failed" if reason.rule in _FAILED else VERBS.get(reason.verb, reason.verb)


_FIGURES: Mapping[str, str] = {
    "waited_s": "has waited",
    "gpus_before": "GPUs before",
    "gpus_after": "GPUs after",
    "steps_per_s": "its speed",
    "left_s": "work left at that speed",
    "pause_s": "pause of the change",
    "kept_gpus": "GPUs that it keeps elsewhere",
    "edge_end_s": "would end at the edge",
    "cloud_end_s": "would end in the cloud",
    "deadline_s": "deadline",
    "planned_end_s": "would end",
    "back_s": "needs them back",
    "worth_per_gpu": "worth of a GPU to it",
    "price_per_gpu": "price of a GPU",
    "home_worth_per_gpu": "worth of a GPU to it where it was",
    "home_price_per_gpu": "price of a GPU where it was",
    "lost_per_gpu": "worth of a GPU that it gives up",
    "quota_gpus": "GPUs that its tenant may have",
    "saved_s": "time saved",
    "move_s": "pause of the move",
    "lost_gpu_s": "work lost by preempting",
    "needed_gpus": "GPUs the owner needs now",
    "forecast_gpus": "forecast need until due",
    "peak_gpus": "forecast peak, half an hour",
    "headroom_gpus": "headroom the owner keeps",
    "lead_s": "notice of a reclaim",
    "due_s": "owner needs it",
    "losing_jobs": "jobs that lose by it",
    "step_kept": "step that is kept",
    "limit_s": "time allowed to start",
    "gpus": "GPUs planned",
    "gpus_above_base": "GPUs free, or above what others are promised",
    "share_gpus": "least GPUs for its deadline",
    "share_end_s": "would end with its share",
    "head_gpus": "smallest size of the gang ahead",
    "head_waited_s": "the gang ahead has waited",
    "free_gpus": "free GPUs in one pool",
    "gpu_memory_mib": "memory on each GPU",
    "allowed_sizes": "sizes with a declared rate",
    "backoff_s": "rest after a failure",
}
#: Figures that are moments, not lengths of time.
_MOMENTS = (
    "edge_end_s",
    "cloud_end_s",
    "deadline_s",
    "share_end_s",
    "planned_end_s",
    "back_s",
)
_PART = re.compile(r"\[([^\]]*)\]")
_SLOT = re.compile(r"\{([a-z_:0-9]+)\}")


@dataclass(frozen=True, slots=True)
class Voice:
    """How to write moments: relative to the beginning of the log."""

    origin_s: float

    def second(self, at_s: float) -> str:
        """Write a moment of a history; in real time to the second, as much happens in a minute."""
        text = day_clock(at_s, self.origin_s)
        return text if is_simulated(self.origin_s) else f"{text}:{int(at_s % 60):02d}"

    def value(self, name: str, value: float, rule: str = "") -> str:
        """Write a figure with its unit, which ends its name."""
        if name in _MOMENTS or (name == "due_s" and rule == "loan.reclaimed"):
            return "never" if value == float("inf") else day_clock(value, self.origin_s)
        if name.endswith("steps_per_s"):
            return f"{value:.3g} steps/s"
        if name.endswith("gpu_s"):
            return f"{value / 3600:.2g} GPU h"
        if name.endswith("_s"):
            return duration(value)
        if name.endswith("_mib"):
            return f"{value / 1024:.3g} GiB"
        if "gpus" in name and value == 0:
            return "no GPUs"
        if "gpus" in name:
            return f"{value:.3g} GPU{'' if value == 1 else 's'}"
        return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"

    def bare(self, name: str, value: float) -> str:
        """Write a figure that stands where its name says the unit."""
        return f"{value:.3g}" if "gpus" in name else self.value(name, value)

    def figure(self, figure: Figure, rule: str) -> tuple[str, str, str]:
        """Give a figure's name in words, its value, and how old it was."""
        text = self.value(figure.name, figure.value, rule)
        if figure.name == "due_s" and rule != "loan.reclaimed":
            text = f"in {text}"
        if figure.age_s == float("inf") or figure.age_s != figure.age_s:
            age = "declared, never measured"
        else:
            age = "fresh" if figure.age_s < 1 else f"{duration(figure.age_s)} old"
        return label(figure.name), text, age

    def need(self, need: Need) -> str:
        """Say what would have to change."""
        if need.name == "backoff_s":
            return f"{duration(need.have)} must pass"
        have, want = self.bare(need.name, need.have), self.bare(need.name, need.want)
        if need.name == "allowed_sizes":
            return "the job must declare a rate for a size that it allows"
        verb = "must fall to" if need.want < need.have else "must rise to"
        # As a figure it is what was planned; as a need it is how large a site would have to be.
        name = "GPUs at one site" if need.name == "gpus" else label(need.name)
        return f"{name}: {have} now, {verb} {want}"

    def sentence(self, reason: Reason) -> str:
        """Say why."""
        template = PHRASES.get(f"{reason.rule} {reason.verb}") or PHRASES.get(reason.rule)
        if template is None:
            return f"by a rule this release has no words for ({reason.rule})"
        said = {
            f.name: self.value(f.name, f.value, reason.rule)
            for f in reason.figures
            if f.name != "headroom_gpus" or f.value > 0  # an edge node keeps none
        }
        for need in reason.needs:
            said[f"have:{need.name}"] = self.bare(need.name, need.have)
            said[f"want:{need.name}"] = self.bare(need.name, need.want)
        if reason.lost_to:
            said["lost_to"] = joined(reason.lost_to)

        def part(match: re.Match[str]) -> str:
            names = _SLOT.findall(match[1])
            return _fill(match[1], said) if all(name in said for name in names) else ""

        return _fill(_PART.sub(part, template), said)


def _fill(text: str, said: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda slot: said.get(slot[1], "?"), text)


def label(name: str) -> str:
    """Say what a figure is."""
    return _FIGURES.get(name, name.replace("_", " "))


def joined(names: Sequence[str]) -> str:
    """Write a list as in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def reason_from(document: Mapping[str, object]) -> Reason:
    """Read a reason as the journal has it, in the decision's form or the fact's."""
    fields: dict[str, object] = dict(document)

    def rows(name: str, keys: tuple[str, ...]) -> list[tuple[float, ...]]:
        found = fields.get(name, ())
        assert isinstance(found, list | tuple)
        return [
            tuple(one[key] for key in keys) if isinstance(one, dict) else tuple(one)
            for one in found
        ]

    # JSON has no infinity: a figure that was infinite stands as null.
    def number(value: float | None) -> float:
        return float("inf") if value is None else float(value)

    figures = tuple(
        Figure(str(name), number(value), number(age_s))
        for name, value, age_s in rows("figures", ("name", "value", "age_s"))
    )
    needs = tuple(
        Need(str(name), number(have), number(want))
        for name, have, want in rows("needs", ("name", "have", "want"))
    )
    lost_to = fields.get("lost_to", ())
    assert isinstance(lost_to, list | tuple)
    return Reason(
        str(fields["subject"]),
        str(fields["verb"]),
        str(fields["rule"]),
        figures,
        tuple(map(str, lost_to)),
        needs,
    )
