"""`tidegate policy`: which policy decides; administrators set it and clear that again."""

from typing import Annotated

import typer
from rich.text import Text

from console.forms import Found, looks, moves
from console.output import fail
from console.quota import too_much_guaranteed
from console.source import Source, Wish, already
from explain.cell import quotas_in
from explain.moments import day_clock
from scheduler.policies.registry import make_policy
from scheduler.policies.tide.quotas import read
from schemas.requests import ClearPolicy, SetPolicy

app = typer.Typer(invoke_without_command=True)
_Recall = Annotated[
    bool,
    typer.Option("--recall", help="Call all nodes on loan back first."),
]


@app.callback()
@looks
def shown(at: Source) -> Found:
    """Say which policy decides, and whose word that is.

    What an administrator set here holds in place of what the configuration names, also after
    restarts, until it is cleared or scheduler.policy_pinned is true.

    Example: tidegate policy --log run.db
    """
    seen = at.rules()
    found = seen.it.policy
    said = [Text.assemble((found.policy or "none yet", "bold"), " decides.")]
    if found.set_by is None or found.since_s is None:
        said.append(Text("That is what the configuration names."))
    else:
        since = day_clock(found.since_s, seen.it.origin_s)
        why = f": {found.reason}" if found.reason else ""
        said.append(Text(f"{found.set_by} set it, {since}{why}."))
        said.append(Text(f"The configuration names {found.configured}."))
    return Found(found, said, seen.age)


@app.command("set")
@moves
def set_(
    at: Source,
    line: Annotated[
        str, typer.Argument(help="A policy, with options if wanted: tide:patience_s=7200.")
    ],
    recall: _Recall = False,
) -> Wish:
    """Let another policy decide from now on. For administrators.

    The line replaces the whole line of before, with all of its options. A policy that never gives
    nodes back is refused while some are on loan, unless --recall calls them back.

    Example: tidegate policy set tide:patience_s=7200 --log run.db
    """
    try:
        made = make_policy(line)
    except ValueError as error:
        fail(f"{error}.")
    given = {tenant: read(tenant, text)[0] for tenant, text in quotas_in(made).items()}
    if any(given.values()):
        given |= {row.tenant: row.guaranteed for row in at.rules().it.quotas if row.set_by}
    said = f"{line} decides from now on."
    hints = too_much_guaranteed(at, given) if given else ()
    return Wish(SetPolicy(line=line, recall=recall), said, {"policy": line}, hints=hints)


@app.command()
@moves
def clear(at: Source, recall: _Recall = False) -> Wish:
    """Let the policy decide again that the configuration names. For administrators.

    Example: tidegate policy clear --log run.db
    """
    found = at.rules().it.policy
    if found.set_by is None:
        said = "No policy was set; the one that the configuration names decides."
        return already(said, {"policy": found.configured})
    then = found.configured
    return Wish(ClearPolicy(recall=recall), f"{then} decides again.", {"policy": then})
