"""The files of an installation: of a new configuration, or of one that is there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bus.contract import BusError
from bus.signing import Verifier, is_key_text
from services.agents import machine_settings
from services.certificates import Files, complaints
from services.config import Config, ConfigError, load
from services.install import layout as at
from services.install.described import described
from services.install.environment import wrong_lines
from services.install.layout import Layout
from services.install.wanted import CLOSED, File, InstallError, Prepared, Request, content_of


def prepare(request: Request, layout: Layout, now_s: float) -> Prepared:
    """Make the files of a configuration: a new one, the operator's own, or the installed one.

    Args:
        request: What was asked for.
        layout: Where to; a configuration that is there is kept if none is asked for.
        now_s: Now, in seconds since the Unix epoch.

    Raises:
        InstallError: something is wrong or missing.
    """
    said = request.said
    if request.config is not None and said:
        raise InstallError(f"--config: the file says what {said[0]} would; give one or the other")
    made = described(request, layout, now_s) if said else _given(request, layout, now_s)
    if request.environment is not None:
        content = content_of("--environment", request.environment)
        if wrong := wrong_lines(content):
            raise InstallError(
                f"--environment: {request.environment}: of line {', '.join(map(str, wrong))} the "
                "agent gets nothing; write NAME=VALUE, without export, and NAME in letters, digits "
                "and _"
            )
        made = replace(made, files=[*made.files, File(at.ENVIRONMENT, content, CLOSED)])
    return made


def _given(request: Request, layout: Layout, now_s: float) -> Prepared:
    source = request.config or layout.here(at.CONFIG)
    if request.config is None and not source.exists():
        raise InstallError(
            "--name, --broker and --checkpoints describe an agent that is new here (or --config "
            "FILE does): tidegate edge-agent install --name edge-17 --broker mqtts://HOST:8883 "
            "--checkpoints s3://BUCKET/FOLDER --owner none --trusted-key k1=trusted-k1.pem "
            "--ca ca.pem --cert edge-17.pem --key edge-17.key"
        )
    config = _checked(source, layout)
    wrong = list(_relative(config))
    remarks = [f"{sentence}; correct {source}" for sentence in config.deprecated]
    mqtt = config.mqtt
    if not layout.staged and not config.bus.startswith("sqlite:"):
        files = Files(
            *(Path(p) if p else None for p in (mqtt.ca_file, mqtt.cert_file, mqtt.key_file))
        )
        found = complaints(files, str(config.agent.name), now_s)
        for one in found:
            # An agent that is there is brought up to date even if its broker refuses it now.
            stops = one.serious and request.config is not None
            told = f"mqtt.{one.about}_file: {one.said}; {one.fix}"
            (wrong if stops else remarks).append(told)
    if wrong:
        raise InstallError(*(f"{source}: {line}" for line in wrong))
    content = content_of("--config", source)
    return Prepared(config, [File(at.CONFIG, content, CLOSED)], remarks)


def _checked(source: Path, layout: Layout) -> Config:
    """Read a configuration as the agent will.

    Raises:
        InstallError: it would not start with it.
    """
    try:
        config = load(source)
        machine_settings(config, needed=("name",), foreign=("nodes", "gpus_per_node"))
        # What a tree's configuration names is on another machine.
        if not layout.staged and not config.bus.startswith("sqlite:"):
            config.mqtt.options()
        if not layout.staged and config.agent.trusted_keys:
            Verifier.of(config.agent.trusted_keys)
    except ConfigError as error:
        raise InstallError(*error.lines) from None
    except (BusError, OSError) as error:
        raise InstallError(f"{source}: {error}") from None
    return config


def _relative(config: Config) -> Iterator[str]:
    """Find paths that would mean something else where the agent starts."""
    section, mqtt = config.agent, config.mqtt
    paths = {
        "mqtt.ca_file": mqtt.ca_file,
        "mqtt.cert_file": mqtt.cert_file,
        "mqtt.key_file": mqtt.key_file,
        "mqtt.password_file": mqtt.password_file,
        "agent.state_file": section.state_file,
        "agent.effects_file": section.effects_file,
        **{f"agent.trusted_keys.{kid}": text for kid, text in section.trusted_keys.items()},
    }
    for key, path in paths.items():
        if path and not is_key_text(str(path)) and not Path(path).is_absolute():
            yield f"{key}: {path} is relative; write the whole path, the agent starts in {at.STATE}"
