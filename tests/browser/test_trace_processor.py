"""The trace of a log in Perfetto's own trace processor: read without an error, and true."""

import gzip
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from console.main import main
from tests.browser.conftest import apart
from tests.browser.trace_processor import TraceProcessor, reading
from tests.composed import ROOT
from tests.process.gateway_process import Process
from tests.unit.test_perfetto import states

_SLICES = """
select process.name, cast(replace(thread.name, 'GPU ', '') as int), slice.name, ts, ts + dur
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid)
where dur > 0
"""
_COUNTERS = """
select counter_track.name, ts, value from counter
join counter_track on counter.track_id = counter_track.id
"""


@pytest.fixture(scope="module")
def packed(night: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The night's trace, as the command writes it."""
    target = tmp_path_factory.mktemp("trace") / "night.json.gz"
    apart(lambda: main(["journal", "perfetto", str(night), str(target)]))
    return target.read_bytes()


@pytest.fixture(scope="module")
def processor(browser: Browser, packed: bytes) -> Iterator[TraceProcessor]:
    """Perfetto's trace processor, with the night's trace."""
    with reading(browser, packed) as found:
        yield found


def test_it_reads_all_of_it(processor: TraceProcessor) -> None:
    assert processor.rows("select name, value from stats where severity = 'error' and value") == []
    with pytest.raises(AssertionError, match="no such table"):
        processor.rows("select * from what_is_not_there")


def test_its_slices_are_the_logs(processor: TraceProcessor, night: Path) -> None:
    truth = states(night)
    slices = processor.rows(_SLICES)
    held_ns = sum(end - begin for _, _, _, begin, end in slices)
    assert held_ns / 1e9 == pytest.approx(truth[-1][3], abs=0.01), "all GPU time, and no other"
    looked = 0
    for (at_s, held, _, _), (after_s, _, _, _) in zip(truth[::40], truth[1::40], strict=False):
        middle_ns = (at_s + after_s) / 2 * 1e9
        if after_s - at_s > 1e-5:
            found = {
                (node, gpu): job
                for node, gpu, job, begin, end in slices
                if begin <= middle_ns < end
            }
            assert found == held
            looked += bool(held)
    assert looked > 10
    assert len(processor.rows("select * from args where key = 'args.reason'")) > 10


def test_its_counters_are_the_logs(processor: TraceProcessor, night: Path) -> None:
    at = defaultdict[int, list[dict[str, float]]](list)  # several entries may be of one moment
    for at_s, _, counts, _ in states(night):
        at[round(at_s * 1e6) * 1000].append(counts)
    seen = set()
    for name, ts, value in processor.rows(_COUNTERS):
        key = name.split()[-1]
        if key in ("need", "used", "queued"):
            assert value in [counts[key] for counts in at[ts]]
            seen.add(key)
    assert seen == {"need", "used", "queued"}


def test_the_question_of_the_page_finds_what_jobs_had(
    processor: TraceProcessor, night: Path
) -> None:
    page = (ROOT / "docs" / "perfetto.md").read_text(encoding="utf-8")
    (sql,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    rows = processor.rows(sql.strip())
    assert 0 < len(rows) <= 10
    hours = [hours for _, hours in rows]
    assert hours == sorted(hours, reverse=True)
    assert 0 < sum(hours) <= states(night)[-1][3] / 3600 + 0.01


def test_what_a_gateway_sends_is_read_alike(
    browser: Browser, gateway: Process, processor: TraceProcessor
) -> None:
    answer = httpx.get(
        f"{gateway.url}/api/v1/perfetto",
        headers={"Authorization": f"Bearer {gateway.token}"},
        timeout=60,
    )
    assert answer.status_code == httpx.codes.OK
    with reading(browser, gzip.compress(answer.content)) as other:
        assert sorted(other.rows(_SLICES)) == sorted(processor.rows(_SLICES))
