"""How reasons are said: sentences from `explain.phrases`, and figures with their units and ages.

Nothing is computed, only said.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from explain.moments import day_clock, duration, is_simulated
from explain.phrases import PHRASES
from explain.shares import few
from explain.work import STEPS, Work
from scheduler.policies.interface import Figure, Need, Reason

#: How something said sounds; `change` is neither good nor bad, and worth a look.
Tone = Literal["good", "bad", "change", "quiet"]
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
_FAILED = ("gang.died", "gang.size_refused", "gang.start_timeout")


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
    "quota_jobs": "jobs of its tenant that may hold GPUs",
    "saved_s": "time saved",
    "move_s": "pause of the move",
    "lost_gpu_s": "work lost by preempting",
    "needed_gpus": "GPUs the owner needs now",
    "forecast_gpus": "forecast need until due",
    "peak_gpus": "forecast peak, half an hour",
    "headroom_gpus": "headroom the owner keeps",
    "lead_s": "notice of a reclaim",
    "due_s": "owner needs it",
    "drain_by_s": "its node is to be empty",
    "unpromised_s": "promised until it was held",
    "limit_gpus": "the most GPUs that its tenant may have",
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
    "drain_by_s",
    "unpromised_s",
    "share_end_s",
    "planned_end_s",
    "back_s",
)
#: By these rules, `due_s` is a moment, too.
_AT_DUE = ("loan.reclaimed", "operator.recall", "policy.recall", "loans.unheard")
#: Figures that are only to be compared with each other end so, and what they are.
_PER_GPU = "_per_gpu"
WORTH = (
    "Worth and price have no unit, and are only to be compared with each other. What a GPU is "
    "worth to a job is the job's weight times how much sooner a GPU ends it; the price is about "
    "what a GPU is worth to the first job that gets none there."
)
#: One of which a template speaks as of several.
_ONE_GPU = re.compile(r"(?<![\d.,])1( more)? GPUs\b")
_PART = re.compile(r"\[([^\]]*)\]")
_SLOT = re.compile(r"\{([a-z_:0-9]+)\}")


@dataclass(frozen=True, slots=True)
class Wording:
    """How to write moments, relative to the beginning of the log, and the work of a job."""

    origin_s: float
    work: Work = STEPS

    def second(self, at_s: float) -> str:
        """Write a moment of a history; in real time to the second, as much happens in a minute."""
        text = day_clock(at_s, self.origin_s)
        return text if is_simulated(self.origin_s) else f"{text}:{int(at_s % 60):02d}"

    def value(self, name: str, value: float, rule: str = "") -> str:
        """Write a figure with its unit, which ends its name."""
        if name in _MOMENTS or (name == "due_s" and rule in _AT_DUE):
            return "never" if value == float("inf") else day_clock(value, self.origin_s)
        if name.endswith("steps_per_s"):
            return self.work.speed(value)
        if name == "step_kept":
            return self.work.place(value) if value else "its beginning"
        if name.endswith("gpu_s"):
            return f"{few(value / 3600, 2)} GPU h"
        if name.endswith("_s"):
            return duration(value)
        if name.endswith("_mib"):
            return f"{few(value / 1024)} GiB"
        if "gpus" in name and value == 0:
            return "no GPUs"
        if "gpus" in name:
            return f"{few(value)} GPU{'' if value == 1 else 's'}"
        return f"{value:,.0f}" if value % 1 == 0 else few(value)

    def bare(self, name: str, value: float) -> str:
        """Write a figure that stands where its name says the unit."""
        return few(value) if "gpus" in name else self.value(name, value)

    def figure(self, figure: Figure, rule: str) -> tuple[str, str, str]:
        """Give a figure's name in words, its value, and how old it was."""
        text = self.value(figure.name, figure.value, rule)
        if figure.name == "due_s" and rule not in _AT_DUE:
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
        if reason.rule == "market.outbid" and _pays(reason):
            # Prices are searched in a few rounds: who is outbid may be worth a little more than the
            # price that was found last, and to say so would read as if it were not outbid.
            del said["price_per_gpu"]
        for need in reason.needs:
            said[f"have:{need.name}"] = self.bare(need.name, need.have)
            said[f"want:{need.name}"] = self.bare(need.name, need.want)
        if reason.lost_to:
            said["lost_to"] = joined(reason.lost_to)

        def part(match: re.Match[str]) -> str:
            names = _SLOT.findall(match[1])
            return _fill(match[1], said) if all(name in said for name in names) else ""

        return _ONE_GPU.sub(r"1\1 GPU", _fill(_PART.sub(part, template), said))


def lost_title(verb: str, rule: str) -> str:
    """Say what those are of whom a reason of this verb and rule says that its subject lost."""
    if verb != "waits":
        return "lost to"
    return "ahead of it" if rule in ("gang.backfill", "gang.strict") else "who has what it wants"


def _pays(reason: Reason) -> bool:
    """Say whether a job is worth the price that is told of it."""
    told = {figure.name: figure.value for figure in reason.figures}
    return told.get("worth_per_gpu", 0.0) >= told.get("price_per_gpu", float("inf"))


def _fill(text: str, said: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda slot: said.get(slot[1], "?"), text)


def tells_worth(figures: Iterable[str]) -> bool:
    """Say whether some of these figures, by name, are worths or prices."""
    return any(name.endswith(_PER_GPU) for name in figures)


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
