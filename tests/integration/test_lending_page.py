"""docs/lending.md: an agent begins with its smallest whole file, and joins."""

import re
from pathlib import Path

from tests.integration.processes import Fleet, until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lending.md").read_text(encoding="utf-8")


async def test_an_agent_begins_with_the_smallest_whole_file(
    tmp_path: Path, file_fleet: Fleet
) -> None:
    whole = re.search(r"^## The smallest whole file.*?^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    assert whole is not None
    file_fleet.config = whole[1].replace("/srv/tidegate", str(tmp_path))
    # Hooks of here; there is no GPU, and no server.
    hooks = re.sub(r'\["/usr/bin/.*?\]', '["true"]', file_fleet.config)
    file_fleet.config = hooks + '[http]\nport = 0\n[scheduler]\nbirths = "any"\n'
    scheduler = file_fleet.start("scheduler")
    agent = file_fleet.start("cloud-agent", agent__gpu_type="cpu")
    await until(lambda: agent.port and scheduler.port, "both begin")
    seen = 'tidegate_gpus{cell="default",pool="serving"'
    await until(lambda: seen in scheduler.get("/metrics")[1], "its GPU is known")
    assert (agent.stop(), scheduler.stop()) == (0, 0)
