"""Whether the agent's own certificates and trusted keys are good, before a broker is asked."""

from collections.abc import Iterator
from pathlib import Path

from bus.contract import BusError
from bus.signing import Verifier, is_key_text
from services import certificates
from services.doctor.finding import CheckContext, Finding, Reporter

_report = Reporter("certificates")


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the public keys of who may give commands, and the files of `[mqtt]` if it is in use."""
    yield from _of_trusted_keys(context)
    if "mqtt" not in context.brokers:
        return
    mqtt, name = context.config.mqtt, context.config.agent.name
    paths = mqtt.ca_file, mqtt.cert_file, mqtt.key_file
    files = certificates.Files(*(Path(path) if path else None for path in paths))
    if files.cert is None and files.ca is None:
        return
    found = certificates.complaints(files, name, context.clock.now_s())
    for one in found:
        report = _report.problem if one.serious else _report.warning
        yield report(f"mqtt.{one.about}_file: {one.said}", one.fix)
    if not found and files.cert is not None:
        whose = "good" if name is None else f"for {name},"
        yield _report.ok(f"{files.cert} is {whose} until {certificates.ends_on(files.cert)}")


def _of_trusted_keys(context: CheckContext) -> Iterator[Finding]:
    for key_id, text in context.config.agent.trusted_keys.items():
        try:
            Verifier.of({key_id: text})
        except BusError as error:
            said = str(error).removeprefix(f"trusted key {key_id}: ").partition(";")[0]
            file = "" if is_key_text(text) else f"{text}: "
            yield _report.problem(
                f"agent.trusted_keys.{key_id}: {file}{said}",
                "name a file that the agent's user can read, with the public half of the key that "
                "the scheduler signs with: openssl pkey -in KEY -pubout -out trusted.pem",
            )
