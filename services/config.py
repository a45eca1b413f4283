"""One configuration for all roles: flags before the environment before one TOML file.

    file         tidegate.toml, a section for each subject; every role reads the same file
    environment  TIDEGATE_SECTION__KEY; TIDEGATE_KAFKA_BOOTSTRAP and TIDEGATE_MQTT_URL as well
    flags        --set section.key=value

An unknown key is an error, so that a typo cannot pass for a setting. A key that
has a new name is taken under its old one for one release: `services.renamed_keys`.
"""

import contextlib
import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import orjson
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, ValidationError

from bus.options import KAFKA_VARIABLE, MQTT_VARIABLE
from schemas.options import Section
from schemas.values import Name
from services.gateway_section import GatewaySection
from services.renamed_keys import rename_keys
from services.scheduler_sections import SchedulerSection
from services.sections import (
    AgentSection,
    BridgeSection,
    HttpSection,
    KafkaSection,
    LogSection,
    MqttSection,
)

_PREFIX = "TIDEGATE_"
_Tree = dict[str, Any]


class ConfigError(ValueError):
    """The configuration cannot be used; a sentence for each wrong key, that names it."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Config(Section):
    """Everything that can be configured."""

    #: The cell of an agent, and of a scheduler without Kafka.
    cell: Name = "default"
    #: `kafka:` for the cluster of the section, or `sqlite:PATH` for one machine.
    bus: str = "kafka:"
    kafka: KafkaSection = Field(default_factory=KafkaSection)
    mqtt: MqttSection = Field(default_factory=MqttSection)
    http: HttpSection = Field(default_factory=HttpSection)
    log: LogSection = Field(default_factory=LogSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    bridge: BridgeSection = Field(default_factory=BridgeSection)
    agent: AgentSection = Field(default_factory=AgentSection)
    gateway: GatewaySection = Field(default_factory=GatewaySection)
    _deprecated: tuple[str, ...] = PrivateAttr(default=())

    @property
    def deprecated(self) -> tuple[str, ...]:
        """A sentence for each key that was given under its old name."""
        return self._deprecated


def load(file: Path | None, flags: Sequence[str] = ()) -> Config:
    """Read the configuration; `flags` are `section.key=value`.

    Raises:
        ConfigError: names what is wrong, a line for each key.
    """
    where = "" if file is None else f"{file}: "
    sources = [
        ({} if file is None else _read(file), where),
        (_brokers(os.environ), ""),
        (_from_environment(os.environ), "the environment: "),
        (_nested(flags), "--set: "),
    ]
    tree: _Tree = {}
    deprecated: list[str] = []
    for above, of in sources:
        try:
            # Before the sources are put together: a flag replaces what the file says, whichever
            # of the two names each of them uses.
            deprecated += rename_keys(above)
        except ValueError as error:
            raise ConfigError(f"{of}{error}") from None
        _put(above, tree)
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(*(where + line for line in _sentences(error))) from None
    config._deprecated = tuple(deprecated)
    return config


def _put(above: Mapping[str, Any], tree: _Tree) -> None:
    """Replace values of a tree; its other values stay."""
    for key, value in above.items():
        below = tree.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _put(value, below)
        else:
            tree[key] = value


def _from_environment(environment: Mapping[str, str]) -> _Tree:
    """Read variables with a section and a key; others of the prefix mean something else."""
    tree: _Tree = {}
    for variable, text in sorted(environment.items()):
        if not variable.upper().startswith(_PREFIX):
            continue
        *above, key = variable[len(_PREFIX) :].lower().split("__")
        if not above and key not in ("cell", "bus"):
            continue
        if above and above[0] not in Config.model_fields:
            near = _near(above[0], list(Config.model_fields))
            raise ConfigError(f"{variable}: {above[0]} is no section{near}")
        at, kind = tree, cast("object", Config)
        for part in above:
            at, kind = at.setdefault(part, {}), keys_of(kind).get(part)
            if not isinstance(at, dict):
                raise ConfigError(f"{variable}: {part} was given a value by another variable")
        at[key] = _decoded(text, keys_of(kind).get(key))
    return tree


def _decoded(text: str, kind: object) -> object:
    """Read lists and tables, which are JSON; anything else is text."""
    if text[:1] in ("[", "{") and kind not in (str, SecretStr):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(text)
    return text


def _brokers(environment: Mapping[str, str]) -> _Tree:
    found: _Tree = {}
    if hosts := environment.get(KAFKA_VARIABLE):
        found["kafka"] = {"bootstrap": hosts}
    if url := environment.get(MQTT_VARIABLE):
        found["mqtt"] = {"url": url}
    return found


def _read(file: Path) -> _Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; give the file with --config") from None
    except ValueError as error:  # a number of too many digits is no TOMLDecodeError
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply; close its brackets") from None


def _nested(flags: Sequence[str]) -> _Tree:
    """Make a tree of `section.key=value`; values are read as TOML where they can be."""
    tree: _Tree = {}
    for flag in flags:
        name, sign, text = flag.partition("=")
        *above, key = name.strip().split(".")
        if not sign or not key or not all(above):
            raise ConfigError(f"--set {name}: write it as section.key=value")
        at = tree
        for part in above:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ConfigError(f"--set {name}: {part} was given a value before")
        at[key] = _value(text)
    return tree


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _sentences(error: ValidationError) -> list[str]:
    """Give the first error of each key; never with the value, which may be secret."""
    found: dict[str, str] = {}  # by key: each alternative of a union has a complaint of its own
    for one in error.errors(include_url=False, include_input=False):
        names, known, kind = _walk(one["loc"])
        key = ".".join(names)
        if one["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = f"no such key{_near(names[-1], known)}"
        elif one["type"] == "tuple_type":
            message = "should be a list" + (f"; write [[{key}]] above it" if keys_of(kind) else "")
        elif one["type"] in ("model_type", "dataclass_type", "dict_type"):
            message = f"should be a table, [{key}]"
        else:
            message = one["msg"].removeprefix("Value error, ").removeprefix(f"{names[-1]}: ")
            message = message if message[:2].isupper() else message[:1].lower() + message[1:]
        found.setdefault(key, f"{key}: {message}")
    return list(found.values())


def _walk(location: Sequence[int | str]) -> tuple[list[str], list[str], object]:
    """Give the keys of a location without what pydantic adds; those known at its end; its type."""
    names: list[str] = []
    at: object = Config
    known: list[str] = []
    for part in map(str, location):
        fields = keys_of(at)
        if not fields:
            break  # the rest is the alternative of a union, or a place in a list
        names.append(part)
        if get_origin(at) in (tuple, dict):  # of sections: this is the number or name of one
            at = get_args(at)[0 if get_origin(at) is tuple else 1]
            continue
        known = list(fields)
        at = fields.get(part)
    return names, known, at


def section_of(kind: object) -> type | None:
    """Give the section that the type of a key names; None if that is of no section."""
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and (dataclasses.is_dataclass(one) or issubclass(one, BaseModel)):
            return one
    return None


def keys_of(kind: object) -> dict[str, object]:
    """Give the types of a section's keys; empty for what is no section."""
    section = section_of(kind)
    if section is not None and issubclass(section, BaseModel):
        return {name: field.annotation for name, field in section.model_fields.items()}
    if dataclasses.is_dataclass(section):
        return {field.name: field.type for field in dataclasses.fields(section)}
    return {}


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(known)}"
