"""The trace of a log: in the Trace Event Format to the letter, and true to the log."""

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from bus.reading import open_log
from console.main import main
from explain.tide import tide_of
from scheduler.core.state import ClusterState
from scheduler.journal import JournalReader, fold
from schemas.topics import JOURNAL

GOLDEN = Path(__file__).parents[1] / "golden"
_NUMBERS = (int, float)
Events = list[dict[str, Any]]


def states(log: Path) -> list[tuple[float, dict[tuple[str, int], str], dict[str, float], float]]:
    """Give after each entry: moment, who is on which GPU, the tide, GPU-seconds held so far."""
    state, reader, found = ClusterState(), JournalReader(), []
    with open_log(log) as opened:
        for record in opened.records(JOURNAL.name):
            if (entry := reader.read(record)) is None:
                continue
            fold(state, entry)
            held = {
                (node.id, gpu): holder
                for node in state.nodes.values()
                for gpu, holder in enumerate(node.holder)
                if holder is not None
            }
            tide = tide_of(state)
            counts = {"need": tide.need, "used": tide.used, "queued": tide.queue}
            found.append((entry.at_s, held, counts, state.totals.training_gpu_s))
    return found


def well_formed(document: Any) -> Events:
    """Hold a trace to the format as it is documented, and as Perfetto's importer reads it."""
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: Events = document["traceEvents"]
    named: dict[str, set[Any]] = {"process_name": set(), "thread_name": set()}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        kind = event["ph"]
        assert type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["args"], dict)
        where = event["pid"], event["tid"]
        if kind == "M":
            assert set(event) == {"ph", "name", "pid", "tid", "args"}
            if event["name"] in named:
                key = where if event["name"] == "thread_name" else event["pid"]
                assert key not in named[event["name"]], "named once"
                named[event["name"]].add(key)
                assert list(event["args"]) == ["name"]
            else:
                assert event["name"] in ("process_labels", "process_sort_index")
            continue
        assert type(event["ts"]) is int
        assert 0 <= event["ts"] < 2**53, "exact in JSON, and in nanoseconds within 63 bits"
        assert event["pid"] in named["process_name"], "named before it is used"
        if kind == "X":
            assert set(event) == {"ph", "name", "pid", "tid", "args", "cat", "ts", "dur"}
            assert type(event["dur"]) is int
            assert event["dur"] > 0
            assert where in named["thread_name"]
            tracks[where].append((event["ts"], event["ts"] + event["dur"]))
        elif kind == "i":
            assert set(event) == {"ph", "name", "pid", "tid", "args", "cat", "ts", "s"}
            assert event["s"] == ("t" if event["tid"] else "p")
            assert not event["tid"] or where in named["thread_name"]
        else:
            assert kind == "C"
            assert set(event) == {"ph", "name", "pid", "tid", "args", "ts"}
            assert all(type(value) in _NUMBERS for value in event["args"].values())
    threads = {track for _, track in named["thread_name"]}
    assert len(threads) == len(named["thread_name"]), "a track is of one process"
    assert not threads & named["process_name"], "and none is a process's own"
    for spans in tracks.values():
        spans.sort()
        for (_, end), (begin, _) in pairwise(spans):
            assert end <= begin, "slices of a track do not overlap"
    return events


def drawn(log: Path, folder: Path, *more: str, name: str = "t.json") -> Events:
    target = folder / name
    assert main(["journal", "perfetto", str(log), str(target), *more]) == 0
    data = target.read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    target.unlink()
    return well_formed(document)


def places(events: Events) -> dict[tuple[int, int], tuple[str, int]]:
    """Give by process and track the node and GPU."""
    nodes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {
        (e["pid"], e["tid"]): (nodes[e["pid"]], int(e["args"]["name"].removeprefix("GPU ")))
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"].startswith("GPU ")
    }


@pytest.mark.parametrize("name", ["tide", "verbs"])
def test_a_trace_says_who_was_on_which_gpu(name: str, tmp_path: Path) -> None:
    log = GOLDEN / f"{name}.jsonl.zst"
    events, truth = drawn(log, tmp_path), states(log)
    where, slices = places(events), [e for e in events if e["ph"] == "X"]
    held_us = sum(event["dur"] for event in slices)
    assert held_us / 1e6 == pytest.approx(truth[-1][3], abs=0.01), "all GPU time, and no other"
    chance = np.random.default_rng(3)
    for number in chance.choice(len(truth) - 1, 60, replace=False):
        (at_s, held, _, _), after_s = truth[number], truth[number + 1][0]
        middle_us = (at_s + after_s) / 2 * 1e6
        if after_s - at_s > 1e-5:
            found = {
                where[e["pid"], e["tid"]]: e["name"]
                for e in slices
                if e["ts"] <= middle_us < e["ts"] + e["dur"]
            }
            assert found == held
    # Slices say which entry put the job there, and how large it was.
    for event in slices[::7]:
        said = event["args"]
        assert said["job"] == event["name"]
        after = truth[said["entry"]][1]
        assert after[where[event["pid"], event["tid"]]] == event["name"]
        assert 0 < said["gpus"] <= sum(holder == event["name"] for holder in after.values())
        assert said["tenant"]
    assert any("reason" in event["args"] for event in slices)
    at = {round(at_s * 1e6): counts for at_s, _, counts, _ in truth}
    for event in (e for e in events if e["ph"] == "C"):
        counts = at[event["ts"]]
        for key, value in event["args"].items():
            assert counts.get(key, value) == value


def test_loans_and_requests_are_instants(tmp_path: Path) -> None:
    log = GOLDEN / "verbs.jsonl.zst"
    events = drawn(log, tmp_path)
    told = Counter(event["name"] for event in events if event.get("cat") == "loan")
    facts: Counter[str] = Counter()
    asked: list[str] = []
    with open_log(log) as opened:
        for record in opened.records(JOURNAL.name):
            data = orjson.loads(record.value or b"")["data"]
            facts.update(kind for kind, _ in data["decision"]["facts"])
            if data["stimulus"]["kind"] in ("Requested", "JobSubmitted", "JobCancelled"):
                asked.append(data["number"])
    assert told["lent"] == facts["LoanGranted"] > 0
    assert told["called back"] == facts["ReclaimStarted"] > 0
    assert told["back with its owner"] == facts["LoanReturned"]
    people = [event for event in events if event.get("cat") == "asked"]
    assert [event["args"]["entry"] for event in people] == asked
    assert {"ann"} <= {event["args"]["who"] for event in people} or people[0]["args"]["who"]
    assert any(event["args"]["result"] == "refused" for event in people)


def test_a_stretch_is_cut_out_of_the_whole(tmp_path: Path) -> None:
    log = GOLDEN / "tide.jsonl.zst"
    truth = states(log)
    origin_s, end_s = truth[0][0], truth[-1][0]
    length_s = end_s - origin_s
    low_s, high_s = 0.38 * length_s, 0.5 * length_s
    since, until = f"{low_s:.0f}", f"{high_s:.0f}"
    low_us = round((origin_s + float(since)) * 1e6)
    high_us = round((origin_s + float(until)) * 1e6)
    whole = drawn(log, tmp_path, "--since", "0")
    part = drawn(log, tmp_path, "--since", since, "--until", until, name="part.json.gz")

    def slices(events: Events, low: int, high: int) -> Counter[tuple[Any, ...]]:
        where, found = places(events), Counter[tuple[Any, ...]]()
        for event in (e for e in events if e["ph"] == "X"):
            begin, end = max(low, event["ts"]), min(high, event["ts"] + event["dur"])
            if begin < end:
                found[where[event["pid"], event["tid"]], event["name"], begin, end] += 1
        return found

    assert slices(part, 0, 2**53) == slices(whole, low_us, high_us)
    assert all(low_us <= event["ts"] <= high_us for event in part if "ts" in event)
    before = [event for event in part if event["args"].get("began before")]
    assert before
    assert all(event["ts"] == low_us for event in before)
    going = [event for event in part if event["args"].get("goes on")]
    assert going
    assert all(event["ts"] + event["dur"] == high_us for event in going)


def test_a_stretch_in_which_nothing_was_decided_shows_who_was_there(tmp_path: Path) -> None:
    log = GOLDEN / "tide.jsonl.zst"
    truth = states(log)
    gaps = [(after[0] - at[0], at) for at, after in pairwise(truth) if at[1]]
    length_s, (at_s, held, *_) = max(gaps, key=lambda gap: gap[0])
    origin_s = truth[0][0]
    since, until = (f"{at_s - origin_s + part * length_s:.3f}" for part in (0.3, 0.7))
    events = drawn(log, tmp_path, "--since", since, "--until", until)
    where = places(events)
    slices = [event for event in events if event["ph"] == "X"]
    assert {where[one["pid"], one["tid"]]: one["name"] for one in slices} == held
    assert all(one["args"]["began before"] and one["args"]["goes on"] for one in slices)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("t.txt",), "end it in .json or .json.gz"),
        (("t.json", "u.json", "v.json"), "name the log and the file"),
        (("t.json", "--since", "soon"), "--since: 'soon' is no moment"),
        (("t.json", "--since", "1000h"), "--since: the log ends before that"),
        (("t.json", "--since", "d99 06:30"), "--since: the log ends before that"),
        (("t.json", "--since", "2h", "--until", "1h"), "--until: it must be after --since"),
        (("t.json", "--until", "2020-01-01"), "--until: it must be after --since"),
        (("t.json", "--until", "0"), "--until: it must be after --since"),
        (("no/t.json",), "the folder"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    more: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / more[0])
    log = ["--log", str(GOLDEN / "tide.jsonl.zst")]
    assert main(["journal", "perfetto", target, *more[1:], *log]) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "no file is left behind"


def test_a_file_that_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "t.json"
    target.write_text("mine")
    assert main(["journal", "perfetto", str(GOLDEN / "tide.jsonl.zst"), str(target)]) == 2
    assert "exists" in capsys.readouterr().err
    assert target.read_text() == "mine"
