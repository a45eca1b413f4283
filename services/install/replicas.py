"""The owner's servers that an agent started, which run on without it."""

from pathlib import Path

from runtime.owners.processes import recorded, session

#: Of hooks and of orders to a webhook: no servers.
_OTHERS = (".hook.json", ".order.json")


def running_replicas(workers: Path) -> list[str]:
    """Name those below `agent.workers.folder`, each with its process."""
    records = sorted((workers / "owner").glob("*.json"))
    known = [(one, recorded(one)) for one in records if not one.name.endswith(_OTHERS)]
    return [f"{one.stem} (process {who.pid})" for one, who in known if who and session(who)]
