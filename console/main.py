"""The `tidegate` command: verbs for operators, and services, which begin without those."""

import contextlib
import os
import sys
from collections.abc import Sequence

from console.start import importing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit code. Known failures are one sentence on standard error."""
    given = sys.argv[1:] if arguments is None else arguments
    # Before numpy comes. Matrices here have some ten rows: a second thread would only spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar's characters gets question marks, not an error.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if arguments is None:
        importing()
    from console.service import begin

    try:
        code = begin(given)
        if code is None:
            from console.verbs import run  # a service does without it, and all that it imports

            code = run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read us has enough; leave nothing for the interpreter to flush into the pipe.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
