"""Every role reads the whole configuration, also one whose machine lacks what others need."""

import subprocess
import sys

#: What the extras `machine` and `kubernetes` bring.
_LACKING = ("fsspec", "kubernetes_asyncio", "kubernetes", "pynvml", "psutil")
#: What takes an agent's or a bridge's memory for nothing: only schedulers decide.
_DECIDES = ("numpy", "scheduler.core.state", "scheduler.policies.registry")


def _runs(code: str, *without: str) -> None:
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    subprocess.run([sys.executable, "-c", f"import sys; {hide}{code}"], check=True)


def test_the_configuration_needs_no_store_and_no_client_of_a_cluster() -> None:
    _runs("from services.config import load; load(None)", *_LACKING, *_DECIDES)


def test_agents_and_bridges_begin_without_what_decides() -> None:
    _runs("import services.bridge, services.cloud_agent, services.edge_agent", *_DECIDES)
