"""Keys of the configuration that have another name now. Each old name is taken for one release."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

#: By section: the old name of a key, and its name now.
RENAMED_KEYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "agent.load.demand": {
            "blind_s": "metrics_timeout_s",
            "forgive_s": "capacity_recovery_s",
            "hold_s": "stabilization_window_s",
            "places_per_gpu": "concurrency_per_gpu",
            "remember_s": "capacity_decay_s",
        },
        "agent.workers": {"keep": "checkpoint_retention", "upload_s": "final_upload_timeout_s"},
        "agent.slurm": {"pending_s": "pending_timeout_s"},
        "agent.kubernetes": {"pending_s": "pending_timeout_s"},
    }
)


def rename_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """Give each value under an old name its new name; say so in a sentence for each.

    Raises:
        ValueError: one source gives the old name and the new one; the message names both.
    """
    for section, names in RENAMED_KEYS.items():
        at: Any = tree
        for part in section.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        for old, new in names.items():
            if not isinstance(at, dict) or old not in at:
                continue
            if new in at:
                raise ValueError(
                    f"{section}.{old} is the old name of {section}.{new}: give one of the two"
                )
            at[new] = at.pop(old)
            yield f"{section}.{old} is now {new}; the next release refuses the old name"
