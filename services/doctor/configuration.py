"""Whether the configuration uses names of keys that the next release no longer takes."""

from collections.abc import Iterator

from services.doctor.finding import CheckContext, Finding, Reporter

_report = Reporter("configuration")


def check(context: CheckContext) -> Iterator[Finding]:
    """Name each key that has a new name; there is nothing to find where none has."""
    for sentence in context.config.deprecated:
        yield _report.warning(sentence, "write the new name in place of the old one")
