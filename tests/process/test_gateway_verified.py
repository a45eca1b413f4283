"""The proof of its log that a gateway makes in a process of its own: found, lost and denied."""

import asyncio
from pathlib import Path
from typing import Any

from bus.reading import import_log, open_log
from tests.gateway.conftest import serve
from tests.golden.alter import rechained
from tests.process.branching import children


async def test_the_log_is_proven(log: Path) -> None:
    async with serve(log) as served:
        assert (await served.get("verified"))["state"] == "none"

        while (found := await served.get("verified"))["state"] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert found["state"] == "identical"
        assert found["entries"] == found["of"] == served.feed.entries
        assert len(children()) == 1, "it waits for what is new"
    assert not children()


async def test_a_proof_whose_process_was_killed_is_begun_again(log: Path) -> None:
    async with serve(log) as served:
        verifying = served.gateway.verifying
        await served.get("verified")
        await served.until(children)
        children()[0].kill()
        proof = verifying._proofs[served.feed.cell]
        await served.until(lambda: proof.problem)
        assert (await served.get("verified"))["state"] == "failed"
        verifying.again_s = 0.0
        assert (await served.get("verified"))["state"] == "none"
        verifying.again_s = 1e9
        again = verifying._proofs[served.feed.cell]
        await served.until(lambda: again.caught_up)
        assert (await served.get("verified"))["state"] == "identical"


async def test_a_log_that_decides_otherwise_is_told(log: Path) -> None:
    changed: list[int] = []

    def change(number: int, stimulus: dict[str, Any], decision: dict[str, Any]) -> None:
        if number >= 300 and decision.get("reasons") and not changed:
            decision["reasons"] = []
            changed.append(number)

    path = log.with_name("altered.db")
    with open_log(rechained(log, log.with_name("altered.jsonl"), change)) as altered:
        await asyncio.to_thread(import_log, altered, path)
    async with serve(path) as served:
        await served.get("verified")
        proof = served.gateway.verifying._proofs[served.feed.cell]
        await served.until(lambda: proof.difference or proof.problem)
        found = await served.get("verified")
    assert (found["state"], found["problem"]) == ("differs", None)
    assert f"entry {changed[0]}, on " in found["first_difference"]
    assert found["entries"] == changed[0]
