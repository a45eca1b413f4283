"""YAML as a job's file may have it: plain values, each key once, and texts that stay as written."""

import re
from collections.abc import Collection, Hashable
from typing import Any

import yaml

#: From here on not every whole number is a float.
_FLOATS_WHOLE = 2.0**53
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


def load(value: bytes, texts: Collection[str]) -> Any:
    """Read YAML; numbers below these keys are texts, and stay as they are written.

    Raises:
        ValueError: It cannot be read, or holds more than plain values; the sentence says where.
    """
    try:
        reader = _Plain(value)
        reader.texts = texts
        try:
            return reader.get_single_data()
        finally:
            reader.dispose()
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        why = getattr(error, "problem", None) or str(error)
        raise ValueError(f"{where}{' '.join(why.split())}") from None


class _Plain(yaml.SafeLoader):
    """Takes no alias and no tag, and each key once: YAML itself would take the last."""

    #: Keys below which numbers are texts.
    texts: Collection[str] = ()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            # A few aliases of aliases are a file of any size.
            raise yaml.composer.ComposerError(
                None, None, "*aliases and !tags are not taken; write it out", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in self.texts:
                _as_written(value)
        found = super().construct_mapping(node, deep)
        if len(found) != len(node.value):
            seen: set[object] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is said twice", key.start_mark
                    )
                seen.add(key.value)
        return found

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        found = super().construct_yaml_int(node)
        if found.bit_length() > 64:
            raise yaml.constructor.ConstructorError(
                None, None, "this number is too large", node.start_mark
            )
        return found

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Give 1e6 as a whole number, since a number of steps has to be one; a float takes it."""
        found = super().construct_yaml_float(node)
        exponent = "e" in node.value.lower()
        return int(found) if exponent and found % 1 == 0 and abs(found) < _FLOATS_WHOLE else found


def _as_written(node: yaml.Node) -> None:
    """Make texts of the numbers in a node: 0123 is 83 to YAML, 12:30 is 750, and 3.10 is 3.1."""
    if node.tag in _NUMBERS:
        node.tag = "tag:yaml.org,2002:str"
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            _as_written(child)
    elif isinstance(node, yaml.MappingNode):
        for _, child in node.value:
            _as_written(child)


_Plain.add_constructor("tag:yaml.org,2002:int", _Plain.construct_yaml_int)
_Plain.add_constructor("tag:yaml.org,2002:float", _Plain.construct_yaml_float)
# As YAML 1.2 and JSON have it. To YAML 1.1 a number with an exponent needs a point and a sign.
_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+\Z"),
    list("-+.0123456789"),
)
