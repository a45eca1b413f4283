"""One configuration for all roles: flags before the environment before one TOML file.

    file         tidegate.toml, a section for each subject; every role reads the same file
    environment  TIDEGATE_SECTION__KEY; TIDEGATE_KAFKA_BOOTSTRAP and TIDEGATE_MQTT_URL as well
    flags        --set section.key=value

A key that is not known is an error, so that a slip of the pen cannot pass for a setting.
"""

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from bus.options import KAFKA_VARIABLE, MQTT_VARIABLE
from schemas.values import Name
from services.sections import (
    AgentSection,
    BridgeSection,
    HttpSection,
    KafkaSection,
    LogSection,
    MqttSection,
    SchedulerSection,
)

_PREFIX = "TIDEGATE_"


class ConfigError(ValueError):
    """The configuration cannot be used; a sentence for each wrong key, that names it."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Config(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

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


def load(file: Path | None, flags: Sequence[str] = ()) -> Config:
    """Read the configuration; `flags` are `section.key=value`.

    Raises:
        ConfigError: names what is wrong, a line for each key.
    """
    from_file = {} if file is None else _read(file)
    from_flags = _nested(flags)
    _check_environment()

    class Loaded(Config):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            *_: PydanticBaseSettingsSource,
            **__: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                InitSettingsSource(settings_cls, from_flags),
                _Environment(settings_cls),
                InitSettingsSource(settings_cls, _brokers(os.environ)),
                InitSettingsSource(settings_cls, from_file),
            )

    try:
        return Loaded()
    except ValidationError as error:
        where = "" if file is None else f"{file}: "
        raise ConfigError(*(where + line for line in _sentences(error))) from None
    except SettingsError as error:
        raise ConfigError(" ".join(str(error).split())) from None


class _Environment(EnvSettingsSource):
    """Variables with a section and a key; others of the prefix mean something else."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        plain = {f"{_PREFIX}{name}".lower() for name in ("cell", "bus")}
        self.env_vars = {
            name: value
            for name, value in self.env_vars.items()
            if "__" in name or name.lower() in plain
        }


def _check_environment() -> None:
    for variable in os.environ:
        section, delimiter, _ = variable.removeprefix(_PREFIX).partition("__")
        if variable.startswith(_PREFIX) and delimiter:
            if section.lower() not in Config.model_fields:
                near = _near(section.lower(), list(Config.model_fields))
                raise ConfigError(f"{variable}: {section.lower()} is no section{near}")


def _brokers(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if hosts := environment.get(KAFKA_VARIABLE):
        found["kafka"] = {"bootstrap": hosts}
    if url := environment.get(MQTT_VARIABLE):
        found["mqtt"] = {"url": url}
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; give the file with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None


def _nested(flags: Sequence[str]) -> dict[str, Any]:
    """Make a tree of `section.key=value`; values are read as TOML where they can be."""
    tree: dict[str, Any] = {}
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
    except tomllib.TOMLDecodeError:
        return text


def _sentences(error: ValidationError) -> list[str]:
    """Say of each key what is wrong first; never with the value, which may be secret."""
    found: dict[str, str] = {}  # by key: each alternative of a union has a complaint of its own
    for one in error.errors(include_url=False, include_input=False):
        names, known = _walk(one["loc"])
        key = ".".join(names)
        if one["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = f"no such key{_near(names[-1], known)}"
        else:
            message = one["msg"].removeprefix("Value error, ").removeprefix(f"{names[-1]}: ")
            message = message if message[:2].isupper() else message[:1].lower() + message[1:]
        found.setdefault(key, f"{key}: {message}")
    return list(found.values())


def _walk(location: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """Give the keys of a location without what pydantic adds, and the keys known at its end."""
    names: list[str] = []
    at: object = Config
    known: list[str] = []
    for part in map(str, location):
        fields = _fields(at)
        if not fields:
            break  # the rest is the alternative of a union, or a place in a list
        names.append(part)
        known = list(fields)
        at = fields.get(part)
    return names, known


def _fields(kind: object) -> dict[str, object]:
    """Give the types of a section's keys; empty for what is no section."""
    for candidate in (kind, *get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return {name: field.annotation for name, field in candidate.model_fields.items()}
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return {field.name: field.type for field in dataclasses.fields(candidate)}
    return {}


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(known)}"
