"""Every role reads the whole configuration, also one whose machine lacks what others need."""

import subprocess
import sys

#: What the extras `machine` and `kubernetes` bring.
_LACKING = ("fsspec", "kubernetes_asyncio", "kubernetes", "pynvml", "psutil")


def test_the_configuration_needs_no_store_and_no_client_of_a_cluster() -> None:
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in _LACKING)
    code = f"import sys; {hide}from services.config import load; load(None)"
    subprocess.run([sys.executable, "-c", code], check=True)
