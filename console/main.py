"""The `tidegate` command: verbs for operators, and one way for everything to go wrong."""

import contextlib
import os
import re
import sqlite3
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from bus.contract import BusError
from console import logs
from console.demo import demo
from console.operate import cancel, submit
from console.output import say
from console.policies import policies
from console.replay import replay
from console.serve import bridge, cloud_agent, config, edge_agent, scheduler
from console.simulate import simulate
from console.tables import jobs, loans, nodes
from console.timeline import timeline
from console.why import why
from runtime.store import StoreError
from scheduler.core.transitions import InvalidTransition
from simulator.workload import WorkloadError

#: What all wrong usage derives from. Typer carries it under a private name, which has changed.
WRONG_USAGE: type[Exception] = typer.BadParameter.__mro__[2]
#: What a user can cause; anything else is a bug and keeps its traceback.
KNOWN = (
    BusError,
    StoreError,
    WorkloadError,
    sqlite3.Error,
    OSError,
    ValueError,
    InvalidTransition,
)
_WATCH, _ASK, _ACT, _AGAIN = "Start here", "Look", "Act", "Again, and elsewhere"
_RUN = "Run it"

app = typer.Typer(
    name="tidegate",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "New here? [bold]tidegate demo[/bold], then [bold]tidegate jobs[/bold] and "
        "[bold]tidegate why JOB[/bold]. Every verb has --help with an example. "
        "Exit codes: 0 good, 1 found a problem, 2 bad usage or input."
    ),
)
for panel, verb in (
    (_WATCH, demo),
    (_ASK, why),
    (_ASK, timeline),
    (_ASK, jobs),
    (_ASK, nodes),
    (_ASK, loans),
    (_ACT, submit),
    (_ACT, cancel),
    (_AGAIN, replay),
    (_AGAIN, simulate),
    (_AGAIN, policies),
    (_RUN, scheduler),
    (_RUN, bridge),
    (_RUN, cloud_agent),
    (_RUN, edge_agent),
    (_RUN, config),
):
    app.command(rich_help_panel=panel)(verb)
app.add_typer(logs.app, name="log", rich_help_panel=_AGAIN)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            number = version("tidegate")
        except PackageNotFoundError:
            number = "(not installed)"
        typer.echo(f"tidegate {number}")
        raise typer.Exit


@app.callback()
def tidegate(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which release."),
    ] = False,
) -> None:
    """Tidegate lends idle inference and edge GPUs to training, and has them back in time.

    Every decision is recorded with its reasons: ask why, and replay it.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit code. Known failures are one sentence on standard error."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar's characters gets question marks, not an error.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read us has enough; leave nothing for the interpreter to flush into the pipe.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    debug = os.environ.get("TIDEGATE_DEBUG") == "1"
    try:
        found = app(
            args=None if arguments is None else list(arguments),
            prog_name="tidegate",
            standalone_mode=False,
        )
    except BrokenPipeError:
        raise
    except SystemExit as closed:  # what typer makes of a closed pipe
        raise BrokenPipeError from closed
    except WRONG_USAGE as error:
        _explain(error)
        return 2
    except KeyboardInterrupt:
        return _stopped()
    except KNOWN as error:
        if debug:
            raise
        say(_sentence(error))
        return 2
    code = found if isinstance(found, int) else 0
    return _stopped() if code == 130 else code  # what typer makes of an interrupt


def _stopped() -> int:
    say("Stopped. What was recorded stays; run the same command again.")
    return 2


def _explain(error: Any) -> None:
    """Say what is wrong with the usage; without any argument, show the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return
    context = getattr(error, "ctx", None)
    path = "tidegate" if context is None else context.command_path
    message = " ".join(error.format_message().split()).rstrip(".")
    say(f"{message}{_log_hint(message, context)}. See `{path} --help`.")


def _log_hint(message: str, context: Any) -> str:
    """Tell who gave the log as an argument how to give it."""
    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((kafka:\S*|\S+\.db)\)", message)
    takes = context is not None and any("--log" in one.opts for one in context.command.params)
    return f"; the log is named by --log {extra[1]}" if extra and takes else ""


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; check the path and who may use it."
    if isinstance(error, InvalidTransition):
        return f"The log cannot be folded: {error}; was it written by another release?"
    # Of a configuration, each wrong key has a line of its own.
    lines: Sequence[str] = getattr(error, "lines", (str(error) or type(error).__name__,))
    texts = [" ".join(line.split()) for line in lines]
    return "\n".join(text if text.endswith((".", "!", "?")) else f"{text}." for text in texts)


if __name__ == "__main__":
    sys.exit(main())
