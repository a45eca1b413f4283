"""The `tidegate` command: verbs for operators, and services, which begin without those."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from console.start import importing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit code. Known failures are one sentence on standard error."""
    given = sys.argv[1:] if arguments is None else arguments
    # Before numpy comes. Matrices here have some ten rows: a second thread would only spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed before we came; each takes its descriptor
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar's characters gets question marks, not an error.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if arguments is None:
        importing()
    from console.service import begin, sentence

    try:
        code = begin(given)
        if code is None:
            if arguments is None and ("-" in given or "--json=-" in given):
                _keep_standard_output()
            from console.verbs import run  # a service does without it, and all that it imports

            code = run(given)
    except BrokenPipeError:  # whoever read us has enough
        _drop_the_rest()
        return 0
    try:
        sys.stdout.flush()
    except OSError as error:
        _drop_the_rest()
        if isinstance(error, BrokenPipeError):
            return 0
        if code == 0:  # else it was said
            sys.stderr.write(f"{sentence(error)}\n")
        return 2
    return code


def _drop_the_rest() -> None:
    """Leave nothing that the interpreter would write to standard output as it ends, and fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_standard_output() -> None:
    """Send what libraries in C write to standard output to standard error.

    scipy's solver of integer programs prints lines of its own (HiGHS, in every scipy up to 1.17 at
    least), which would stand in the JSON of `--json -`. Elsewhere they do no harm, and descriptor 1
    stays as it is: `--json /dev/stdout` opens it, and rich asks it how wide the terminal is.
    """
    sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        if sys.stdout.fileno() == 1:
            ours = os.dup(1)
            os.dup2(2, 1)
            encoding, errors = sys.stdout.encoding, sys.stdout.errors
            sys.stdout = os.fdopen(ours, "w", encoding=encoding, errors=errors)


if __name__ == "__main__":
    sys.exit(main())
