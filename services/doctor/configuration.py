"""Whether the configuration uses names of keys that the next release no longer takes."""

from collections.abc import Iterator

from services.doctor.finding import Finding, Patient, Teller

_tell = Teller("configuration")


def look(patient: Patient) -> Iterator[Finding]:
    """Name each key that has a new name; there is nothing to find where none has."""
    for sentence in patient.config.deprecated:
        yield _tell.warning(sentence, "write the new name in place of the old one")
