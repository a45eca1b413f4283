"""A new configuration of an edge server, from the options that describe it."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bus.contract import BusError
from bus.options import mqtt_options
from bus.signing import Signer, Verifier
from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.store import CheckpointStore
from runtime.metering.nvml import Gpu, NvmlUnavailable, inventory, least_mib, offered, type_name
from services.agents import MEMORY_UNKNOWN
from services.certificates import Files, complaints
from services.config import Config, ConfigError, load
from services.install import layout as at
from services.install.layout import Layout
from services.install.texts import Server, config_text
from services.install.wanted import CLOSED, OPEN, File, InstallError, Prepared, Request
from services.machines import CPU
from services.secret_files import holds_private_key


def described(request: Request, layout: Layout, now_s: float) -> Prepared:
    """Make the files of a new configuration; every mistake is named by its option, at once.

    Raises:
        InstallError: something is wrong or missing.
    """
    needed = {
        "--name": (request.name, "who the agent is; its certificate's common name"),
        "--broker": (request.broker, "where the MQTT broker is: mqtts://HOST:8883"),
        "--checkpoints": (request.checkpoints, "where they are stored: s3://BUCKET/FOLDER"),
    }
    owned = "write a configuration with [agent.owner] (docs/lending.md) and give it by --config"
    needed["--owner"] = (
        request.owner,
        f"say --owner none if nobody but training needs these GPUs; else {owned}",
    )
    missing = [
        f"{option} is missing: {what}" for option, (value, what) in needed.items() if not value
    ]
    if missing:
        raise InstallError(*missing)
    name, broker = str(request.name), str(request.broker)
    wrong: list[str] = []
    remarks: list[str] = []
    if request.owner != "none":
        wrong.append(f"--owner: {request.owner!r} cannot be said in a word; {owned}")
    wrong += _of_address(broker, request)
    wrong += _of_store(str(request.checkpoints))
    for one in complaints(Files(request.ca, request.cert, request.key), name, now_s):
        (wrong if one.serious else remarks).append(f"--{one.about}: {one.said}; {one.fix}")
    for option, file in (("--ca", request.ca), ("--cert", request.cert)):
        if file is not None and holds_private_key(file):
            wrong.append(
                f"{option}: {file} holds a private key, too, and all may read what is made of it; "
                "give the certificates alone, and the key by --key"
            )
    if request.key is not None and request.cert is None:
        wrong.append("--key: goes with --cert; give the certificate that it belongs to")
    keys, wrong_keys = _trusted(request.trusted_key)
    wrong += wrong_keys
    counted, wrong_count = _counted(request, layout)
    wrong += wrong_count
    server = replace(
        counted,
        has_ca=request.ca is not None,
        has_cert=request.cert is not None,
        trusted=tuple(keys),
        isolation=request.isolation or "tenant",
    )
    text = config_text(server).encode()
    config, wrong_values = _parsed(text)
    wrong += wrong_values
    if wrong or config is None:
        raise InstallError(*wrong)
    if not keys:
        remarks.append(
            "--trusted-key was not given: commands are obeyed unsigned, from whoever can write to "
            "the broker"
        )
    if request.isolation == "none":
        remarks.append(
            "--isolation none: jobs run as the agent's user, and can read its key, the store's "
            "login and the runs of all tenants"
        )
    if broker.startswith("mqtt://"):
        remarks.append(
            "--broker: without TLS everybody on the way can read and write; say mqtts://"
        )
    files = [File(at.CONFIG, text, CLOSED)]
    for source, path, mode in (
        (request.ca, at.CA, OPEN),
        (request.cert, at.CERT, OPEN),
        (request.key, at.KEY, CLOSED),
    ):
        if source is not None:
            files.append(File(path, source.read_bytes(), mode))
    files += [File(at.trusted_key(kid), content) for kid, content in keys.items()]
    return Prepared(config, files, remarks)


def _parsed(text: bytes) -> tuple[Config | None, list[str]]:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(text)
        file.flush()
        try:
            return load(Path(file.name)), []
        except ConfigError as error:
            # In the words of the options: the file is not there yet.
            said = {
                "agent.workers.isolation": "--isolation",
                "agent.name": "--name",
                "agent.gpu_type": "--gpu-type",
                "agent.gpus": "--gpus",
            }
            lines = [line.removeprefix(f"{file.name}: ") for line in error.lines]
            named = [(said.get(line.partition(":")[0]), line.partition(":")[2]) for line in lines]
            return None, [
                f"{option}:{rest}" if option else line
                for (option, rest), line in zip(named, lines, strict=True)
            ]


def _of_address(broker: str, request: Request) -> Iterator[str]:
    try:
        options = mqtt_options(broker)
    except BusError as error:
        shown = broker.rpartition("@")[2]  # never the password
        plain = (
            f"{shown!r} is no MQTT address; write mqtts://HOST:PORT, such as mqtts://broker:8883"
        )
        yield f"--broker: {error if '://' in broker else plain}"
        return
    if options.password:
        yield (
            "--broker: a password in an address is seen by all; give a configuration with "
            "mqtt.password_file, by --config"
        )
    if options.tls is None and (request.ca or request.cert):
        yield f"--broker: certificates are for mqtts://{options.host}:8883, this is mqtt://"


def _of_store(url: str) -> Iterator[str]:
    if "://" not in url:
        yield f"--checkpoints: {url!r} is no URL; write file:///srv/checkpoints or s3://bucket/folder"
        return
    try:
        CheckpointStore(url)
    except CheckpointError as error:
        yield f"--checkpoints: {error}"


def _trusted(pairs: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    keys: dict[str, bytes] = {}
    wrong = []
    for pair in pairs:
        key_id, sign, file = pair.partition("=")
        if not sign or not key_id or not key_id.replace("-", "").replace("_", "").isalnum():
            wrong.append(f"--trusted-key: {pair!r} is not KID=FILE, such as k1=trusted-k1.pem")
            continue
        try:
            content = Path(file).read_bytes()
        except OSError as error:
            wrong.append(f"--trusted-key: {file}: {error.strerror}; correct the path")
            continue
        try:
            Signer.from_file(key_id, file)
        except BusError:
            keys[key_id] = content
        else:
            wrong.append(
                f"--trusted-key: {file} is the scheduler's private key, which no agent may have; "
                f"give its public half: openssl pkey -in {file} -pubout -out trusted-{key_id}.pem"
            )
            continue
        with tempfile.NamedTemporaryFile(suffix=".pem") as copy:
            copy.write(content)
            copy.flush()
            try:
                Verifier.of({key_id: copy.name})
            except BusError:
                wrong.append(f"--trusted-key: {file} is no public Ed25519 key in PEM form")
    return keys, wrong


def _counted(request: Request, layout: Layout) -> tuple[Server, list[str]]:
    """Describe the server, its GPUs counted where they are not given."""
    server = Server(str(request.name), str(request.broker), str(request.checkpoints), 1, "cpu")
    cpu = "give --gpus N --gpu-type cpu to offer N slots of its processors"
    if request.gpus is not None and not (layout.staged and request.gpu_type is None):
        given = replace(server, gpus=request.gpus, gpu_type=request.gpu_type or _type())
        seen = [] if layout.staged else offered(_seen(), (), request.gpus)
        return given, _of_memory(seen, given.gpu_type)
    if layout.staged:
        return server, [f"--gpus, --gpu-type: a tree has none to look at; give both, or {cpu}"]
    try:
        found = inventory()
    except NvmlUnavailable as error:
        return server, [f"--gpus: none can be counted ({error}); {cpu}"]
    if not found:
        return server, [f"--gpus: the driver lists none; {cpu}"]
    kind = request.gpu_type or type_name(found[0].name)
    counted = replace(server, gpus=len(found), gpu_type=kind, gpu_memory_mib=least_mib(found))
    return counted, _of_memory(found, kind)


def _of_memory(gpus: Sequence[Gpu], kind: str) -> list[str]:
    """Say so where an agent with these GPUs would not start, since nothing says their memory."""
    if not gpus or kind == CPU or least_mib(gpus) is not None:
        return []
    return [f"--gpus: {MEMORY_UNKNOWN}, in a configuration that you give by --config"]


def _type() -> str:
    found = _seen()
    return type_name(found[0].name) if found else CPU


def _seen() -> list[Gpu]:
    try:
        return inventory()
    except NvmlUnavailable:
        return []
