"""The verbs of the `tidegate` command, and one way for all of them to go wrong."""

import inspect
import os
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from console import service
from console.output import say
from console.start import imported
from scheduler.core.transitions import InvalidTransition
from schemas.release import release
from simulator.csv_rows import WorkloadError

#: What all wrong usage derives from. Typer carries it under a private name, which has changed.
WRONG_USAGE: type[Exception] = typer.BadParameter.__mro__[2]
#: What a user can cause; anything else is a bug and keeps its traceback.
KNOWN: tuple[type[Exception], ...] = (*service.KNOWN, WorkloadError, InvalidTransition)
_WATCH, _ASK, _ACT, _AGAIN = "Start here", "Look", "Act", "Again, and elsewhere"
_RUN = "Run it"

#: The verbs in the order of the help: panel, name, module. A module defines its verb under the
#: same name, with `_` for `-`, or as `app` if it has verbs of its own.
VERBS = (
    (_WATCH, "demo", "demo.verb"),
    (_ASK, "why", "console.why"),
    (_ASK, "timeline", "console.timeline"),
    (_ASK, "logs", "console.logs"),
    (_ASK, "fetch", "console.fetch"),
    (_ASK, "jobs", "console.tables"),
    (_ASK, "nodes", "console.tables"),
    (_ASK, "top", "console.top"),
    (_ASK, "loans", "console.loans"),
    (_ASK, "serve", "console.gateway"),
    (_ASK, "context", "console.context"),
    (_ACT, "submit", "console.operate"),
    (_ACT, "cancel", "console.operate"),
    (_ACT, "job", "console.job"),
    (_ACT, "node", "console.node"),
    (_ACT, "pause", "console.pause"),
    (_ACT, "resume", "console.pause"),
    (_ACT, "quota", "console.quota"),
    (_ACT, "policy", "console.policy"),
    (_ASK, "audit", "console.audit"),
    (_AGAIN, "replay", "console.replay"),
    (_AGAIN, "branch", "console.branch"),
    (_AGAIN, "simulate", "console.simulate"),
    (_AGAIN, "policies", "console.policies"),
    (_RUN, "scheduler", "console.serve"),
    (_RUN, "bridge", "console.serve"),
    (_RUN, "cloud-agent", "console.serve"),
    (_RUN, "config", "console.serve"),
    (_RUN, "doctor", "console.doctor"),
    (_RUN, "gateway", "console.gateway"),
    (_RUN, "edge-agent", "console.install"),
    (_AGAIN, "journal", "console.journal"),
)
#: Names of an earlier release, which still work but are not shown -> those of now.
RENAMED = {"log": "journal"}


def make_app(*only: str) -> typer.Typer:
    """Make the command: with all verbs, or with `only` some, so that others are not imported."""
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
    app.callback()(tidegate)
    for panel, name, module in VERBS:
        if only and name not in only:
            continue
        found = import_module(module)
        verb = getattr(found, name.replace("-", "_"), None)
        if verb is None or isinstance(verb, typer.Typer):
            app.add_typer(verb or found.app, name=name, rich_help_panel=panel)
            for old in (old for old, new in RENAMED.items() if new == name):
                app.add_typer(verb or found.app, name=old, hidden=True)
        else:
            app.command(name, rich_help_panel=panel)(verb)
    _wrap(app)
    return app


def _wrap(app: typer.Typer) -> None:
    """Let paragraphs of help wrap at the terminal's width: typer would keep the source's lines."""
    own = app.registered_callback
    every: list[Any] = [*([] if own is None else [own]), *app.registered_commands]
    for told in every:
        said = told.help if isinstance(told.help, str) else inspect.getdoc(told.callback) or ""
        told.help = "\n\n".join(" ".join(one.split()) for one in said.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _wrap(group.typer_instance)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidegate {release()}")
        raise typer.Exit


def tidegate(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which release."),
    ] = False,
) -> None:
    """Tidegate lends idle inference and edge GPUs to training, and returns them in time.

    Every decision is recorded with its reasons: ask why, and replay it.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a verb; give its exit code.

    Raises:
        BrokenPipeError: whoever reads us has enough.
    """
    debug = os.environ.get("TIDEGATE_DEBUG") == "1"
    asked = RENAMED.get(arguments[0], arguments[0]) if arguments else ""
    named = [""] if asked == "--version" else [name for _, name, _ in VERBS if asked == name]
    try:
        app = make_app(*named)
        imported()
        found = app(
            args=list(arguments),
            prog_name="tidegate",
            standalone_mode=False,
        )
    except BrokenPipeError:
        raise
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        raise BrokenPipeError from ended  # typer makes the other of it
    except WRONG_USAGE as error:
        _explain(error, named)
        return 2
    except KeyboardInterrupt:
        return _stopped()
    except KNOWN as error:
        if debug:
            raise
        say(_not_utf8(error, arguments) or _sentence(error))
        return 2
    code = found if isinstance(found, int) else 0
    return _stopped() if code == 130 else code  # what typer makes of an interrupt


def _stopped() -> int:
    say(service.STOPPED)
    return 2


def _explain(error: Any, asked: Sequence[str]) -> None:
    """Say what is wrong with the usage; without any argument, show the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return
    context = getattr(error, "ctx", None)
    # An option without its value does not say whose it is.
    path = " ".join(("tidegate", *asked)) if context is None else context.command_path
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    if message == "Option '--json' requires an argument":
        message += ": - is standard output, anything else a file"
    # A message may end with a question, such as "Did you mean 'history'?".
    said = f"{message}{_log_hint(message, context)}{_policy_hint(message, path)}"
    said += _verb_hint(message, context, path)
    say(f"{said}{'' if said.endswith('?') else '.'} See `{path} --help`.")


def _log_hint(message: str, context: Any) -> str:
    """Tell who gave the log as an argument how to give it."""
    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((kafka:\S*|\S+\.db)\)", message)
    takes = context is not None and any("--log" in one.opts for one in context.command.params)
    return f"; the log is named by --log {extra[1]}" if extra and takes else ""


def _verb_hint(message: str, context: Any, path: str) -> str:
    """Tell who names a verb that only others have where it is."""
    named = re.match(r"No such command '(.*?)'", message)
    if named is None or path != "tidegate":
        return ""
    groups = context.command.commands.items()
    found = [
        f"`tidegate {name} {named[1]}`"
        for name, group in groups
        if named[1] in getattr(group, "commands", {}) and not group.hidden
    ]
    if not found:
        return ""
    services = "; docs/deploy.md says how roles become services" if named[1] == "install" else ""
    return f"; there is {' and '.join(found)}{services}"


def _policy_hint(message: str, path: str) -> str:
    """Tell who names a policy after `tidegate policy` how one is set, and where they are listed."""
    named = re.fullmatch(r"No such command '(.*)'", message)
    if named is None or path != "tidegate policy":
        return ""
    from scheduler.policies.registry import nearest  # the verb itself has loaded it

    near = nearest(named[1].partition(":")[0])
    sets = f"; `tidegate policy set {near[0]}` lets the nearest policy decide" if near else ""
    return f"{sets}; `tidegate policies` lists all there are"


def _not_utf8(error: Exception, arguments: Sequence[str]) -> str:
    """Name the argument that no text can hold, if it went wrong for that."""
    if isinstance(error, UnicodeEncodeError):
        for one in arguments:
            shown = os.fsencode(one).decode(errors="backslashreplace")
            if one != shown:
                return f"{shown} is not UTF-8; write it in letters that are."
    return ""


def _sentence(error: Exception) -> str:
    if isinstance(error, InvalidTransition):
        return f"The log cannot be folded: {error}; was it written by another release?"
    return service.sentence(error)
