"""Every role reads the whole configuration, also one whose machine lacks what others need."""

import subprocess
import sys

#: What the extras `machine` and `kubernetes` bring.
_LACKING = ("fsspec", "kubernetes_asyncio", "kubernetes", "pynvml", "psutil")
#: What takes an agent's or a bridge's memory for nothing: only schedulers decide.
_DECIDES = ("numpy", "scheduler.core.state", "scheduler.policies.registry")
#: What draws in terminals: each service would begin a tenth later, and take 6 MiB more.
_DRAWS = {"rich", "typer"}


def _runs(code: str, *without: str) -> None:
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    subprocess.run([sys.executable, "-c", f"import sys; {hide}{code}"], check=True)


def test_the_configuration_needs_no_store_and_no_client_of_a_cluster() -> None:
    _runs("from services.config import load; load(None)", *_LACKING, *_DECIDES)


def test_agents_and_bridges_begin_without_what_decides() -> None:
    _runs("import services.bridge, services.cloud_agent, services.edge_agent", *_DECIDES)


def test_services_begin_without_what_draws() -> None:
    roles = "services.scheduler, services.bridge, services.cloud_agent, services.edge_agent"
    _runs(f"import console.service, {roles}; assert not {_DRAWS} & set(sys.modules)")
