"""`tidegate quota`: what tenants may have; administrators set and clear it."""

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.text import Text

from console.columns import LEFT, REST, RIGHT, Columns, fitted
from console.forms import Found, asks, looks
from console.output import fail, out
from console.source import Source, Wish, already
from explain.cell import QuotaRow, Quotas
from explain.moments import day_clock
from explain.shares import counted
from scheduler.policies.registry import KEEP_QUOTAS, POLICIES, name_of
from scheduler.policies.tide.quotas import NO_LIMIT, read
from schemas.requests import ClearQuota, SetQuota

app = typer.Typer(invoke_without_command=True)
Tenant = Annotated[str, typer.Argument(help="The tenant's name, as its jobs have it.")]
_COLUMNS: Columns = {
    "tenant": LEFT,
    "guaranteed": RIGHT,
    "GPUs at most": RIGHT,
    "holds": RIGHT,
    "jobs at most": RIGHT,
    "hold GPUs": RIGHT,
    "whose word": REST,
}
_DROP = ("hold GPUs", "guaranteed")


@app.callback()
@looks
def listed(at: Source) -> Found:
    """List tenants' quotas: what each may have, has, and whose word that is.

    What an administrator set here holds in place of what the configuration says of that tenant
    (options of the policy), also after restarts, until it is cleared.

    Example: tidegate quota --log run.db
    """
    seen = at.rules()
    found = Quotas(seen.it.now_s, seen.it.quotas)
    rows: list[list[Text | str]] = [
        [
            Text(row.tenant, "bold"),
            str(row.guaranteed or "–"),
            "any" if row.gpus is None else str(row.gpus),
            str(row.gpus_held),
            "any" if row.jobs is None else str(row.jobs),
            str(row.jobs_holding),
            _word(row, seen.it.origin_s),
        ]
        for row in found.quotas
    ]
    title = Text.assemble(("Quotas", "bold"), (f"  {seen.as_of}", "dim"))
    none = Text("No tenant has a quota: each may have all there is.")
    table = fitted(title, _COLUMNS, rows, _DROP, out()) if rows else none
    given = {row.tenant: row.guaranteed for row in found.quotas}
    return Found(found, [table, *map(Text, too_much_guaranteed(at, given))], seen.age)


@app.command("set")
@asks
def set_(
    at: Source,
    tenant: Tenant,
    gpus: Annotated[
        str,
        typer.Option(
            metavar="N|LEAST..N",
            help="GPUs that its jobs hold at once, at most; before .. how many are guaranteed.",
        ),
    ],
    max_jobs: Annotated[
        int | None, typer.Option(min=0, help="Jobs of it that hold GPUs at once, at most.")
    ] = None,
) -> Wish:
    """Give a tenant a quota, in place of the one that it has. For administrators.

    Nothing of it starts or grows beyond the quota. What runs goes on, but under tide, which shrinks
    or stops what is beyond. A guarantee counts only under a policy that knows guarantees: tide.

    Example: tidegate quota set vision --gpus 32 --max-jobs 10 --log run.db
    """
    least, most = _gpus(tenant, gpus)
    also = "" if max_jobs is None else f", of at most {counted(max_jobs, 'job')}"
    first = f", {least} of them guaranteed" if least else ""
    said = [f"{tenant}: at most {counted(most, 'GPU')}{first}{also}."]
    rules, before = at.rules().it, _configured(at, tenant)
    if before is not None:
        said.append(f"The configuration's {before} holds no more.")
    if all(job.tenant != tenant for job in at.jobs(None, every=True).it.jobs):
        said.append(f"No job of {tenant} is in {at.name} yet.")
    args = SetQuota(tenant=tenant, gpus=most, guaranteed=least, jobs=max_jobs)
    given = {row.tenant: row.guaranteed for row in rules.quotas} | {tenant: least}
    hints = too_much_guaranteed(at, given) if least else []
    decides = rules.policy.policy
    if least and name_of(decides) in POLICIES and name_of(decides) not in KEEP_QUOTAS:
        hints.append(f"{decides} decides, which knows no guarantees; tide does.")
    return Wish(args, "\n".join(said), {"tenant": tenant}, hints=hints)


@app.command()
@asks
def clear(at: Source, tenant: Tenant) -> Wish:
    """Let the configuration say again what a tenant may have. For administrators.

    Example: tidegate quota clear vision --log run.db
    """
    if all(row.tenant != tenant or row.set_by is None for row in at.rules().it.quotas):
        said = f"{tenant}: no quota was set; `tidegate quota` lists those that hold."
        return already(said, {"tenant": tenant})
    then = _configured(at, tenant) or "all there is"
    said = f"{tenant}: as configured again: {then}."
    return Wish(ClearQuota(tenant=tenant), said, {"tenant": tenant})


def too_much_guaranteed(at: Source, guaranteed: Mapping[str, int]) -> list[str]:
    """Say that a cell has fewer GPUs than tenants are guaranteed; nothing if that is not so.

    Args:
        at: Where the cell is.
        guaranteed: By tenant: how many.
    """
    gpus = sum(pool.gpus for pool in at.overview().it.pools)
    together = sum(guaranteed.values())
    if not 0 < gpus < together:  # 0: no node has joined yet
        return []
    who = ", ".join(name for name, least in sorted(guaranteed.items()) if least)
    has = f"the cell has {counted(gpus, 'GPU')}"
    return [f"More is guaranteed than there is: {together:,} GPUs to {who}, and {has}."]


def _configured(at: Source, tenant: str) -> str | None:
    said = [row.configured for row in at.rules().it.quotas if row.tenant == tenant]
    return said[0] if said else None


def _gpus(tenant: str, text: str) -> tuple[int, int]:
    """Read `N` or `LEAST..N`."""
    try:
        least, most = read(tenant, text if ".." in text else f"..{text}")
    except ValueError:
        fail(f"--gpus: {text!r} is no quota; write 32, or 16..32 with 16 of them guaranteed.")
    if most == NO_LIMIT:
        fail(f"--gpus: {text!r} names no most; write 32 or 16..32.")
    return least, most


def _word(row: QuotaRow, origin_s: float) -> str:
    if row.set_by is None or row.since_s is None:
        return "the configuration"
    text = f"{row.set_by}, {day_clock(row.since_s, origin_s)}"
    if row.reason:
        text += f": {row.reason}"
    return text if row.configured is None else f"{text} (configured: {row.configured})"
