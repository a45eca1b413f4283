"""What an agent's process keeps of memory that was freed."""

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import sys
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from runtime.heap import give_back_large_blocks
if sys.argv[1] == "given back":
    give_back_large_blocks()
def mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
before = mib()
with ThreadPoolExecutor(4) as pool:
    for _ in range(6):
        list(pool.map(lambda _: len(bytes(bytearray(16 * 2**20))), range(8)))
    print(mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc")
def test_freed_parts_of_checkpoints_go_back_to_the_system() -> None:
    def kept_mib(how: str) -> int:
        command = [sys.executable, "-c", _SCRIPT, how]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    assert kept_mib("given back") < 8
    assert kept_mib("kept") > 16, "else nobody needs it any more"
