"""Whether the agent's own certificates are good, before a broker is asked."""

from collections.abc import Iterator
from pathlib import Path

from services import certificates
from services.doctor.finding import Finding, Patient, Teller

_tell = Teller("certificates")


def look(patient: Patient) -> Iterator[Finding]:
    """Look at the files of `[mqtt]`."""
    mqtt, name = patient.config.mqtt, patient.config.agent.name
    paths = mqtt.ca_file, mqtt.cert_file, mqtt.key_file
    files = certificates.Files(*(Path(path) if path else None for path in paths))
    if files.cert is None and files.ca is None:
        return
    found = certificates.complaints(files, str(name), patient.clock.now_s())
    for one in found:
        tell = _tell.problem if one.serious else _tell.warning
        yield tell(f"mqtt.{one.about}_file: {one.said}", one.fix)
    if not found and files.cert is not None:
        yield _tell.ok(f"{files.cert} is for {name}, until {certificates.ends_on(files.cert)}")
