"""docs/events.md: up to date, with every type and every part that a type names."""

import re

from schemas import reference
from schemas.codec import MESSAGES
from schemas.topics import ALL_TOPICS


def test_the_page_is_what_the_models_say() -> None:
    assert reference.main(["--check"]) == 0, "run python -m schemas.reference"


def test_every_type_topic_and_part_is_there() -> None:
    text = reference.page()
    headings = re.findall(r"^### `(.+)`$", text, re.MULTILINE)
    assert set(MESSAGES) <= set(headings)
    assert len(set(headings)) == len(headings)
    assert [name for name in ALL_TOPICS if f"| `{name}` |" not in text] == []
    assert {part.lower() for part in re.findall(r"\]\(#(\w+)\)", text)} <= {
        heading.lower() for heading in headings
    }
