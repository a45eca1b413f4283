"""Old and new releases side by side, and policies that operators change, in storms."""

from collections import Counter
from typing import Any

import orjson

from schemas.journal import ENTRY_VERSION
from tests.whole import world
from tests.whole.releases import NEWEST
from tests.whole.storm import draw

SEED = 2003
KINDS = ("scheduler_upgrade", "agent_upgrade", "policy_changed")


def test_a_storm_has_two_releases_and_several_policies_side_by_side(monkeypatch: Any) -> None:
    kept: list[world._World] = []
    begin = world._World.__init__

    def noted(self: world._World, *given: Any) -> None:
        begin(self, *given)
        kept.append(self)

    monkeypatch.setattr(world._World, "__init__", noted)
    assert world.run(draw(SEED, hours=2.0, sure=KINDS)).broken == []
    (one,) = kept
    books = one.written.books()
    entries = [orjson.loads(record.value or b"")["data"] for record in books.journal]
    versions = Counter(entry["version"] for entry in entries)
    assert min(versions[ENTRY_VERSION], versions[NEWEST]) > 20
    said = [
        orjson.loads(r.value or b"") for r in books.telemetry if r.value and r.value[:1] == b"{"
    ]
    newer = Counter("of_a_newer_release" in event.get("data", ()) for event in said)
    assert min(newer[True], newer[False]) > 20
    assert len({entry["policy"] for entry in entries}) > 1
    ends = [end for member in one.members for end in member.ends]
    assert any("use a newer release" in end for end in ends), "nobody had to yield the cell"
