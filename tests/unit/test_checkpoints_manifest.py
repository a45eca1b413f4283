"""Manifests: one form, and nothing that leads out of the folder."""

import hashlib
import json
from typing import Any

import orjson
import pytest

from runtime.checkpoints.errors import Damaged
from runtime.checkpoints.manifest import Manifest, StoredFile, decode, encode

EMPTY = hashlib.sha256().hexdigest()
PART = hashlib.sha256(b"x" * 10).hexdigest()


def body(**changes: Any) -> dict[str, Any]:
    """A manifest of one file of two parts and an empty one, with some fields changed."""
    files = [
        {"path": "c/a", "size_bytes": 20, "sha256": "0" * 64, "parts": [PART, PART]},
        {"path": "c/b", "size_bytes": 0, "sha256": EMPTY, "parts": []},
    ]
    return {
        "version": 1,
        "job": "job-1",
        "epoch": 3,
        "step": 10,
        "created_s": 1.5,
        "part_bytes": 10,
        "files": files,
        "empty_folders": ["c/d"],
        "size_bytes": 20,
    } | changes


def signed(fields: dict[str, Any]) -> bytes:
    """As a forger writes it: with a digest that fits."""
    digest = hashlib.sha256(orjson.dumps(fields)).hexdigest()
    return orjson.dumps({**fields, "digest": digest}) + b"\n"


def test_a_manifest_is_read_as_written() -> None:
    manifest = decode(signed(body()), "here")
    assert decode(encode(manifest), "here") == manifest
    assert manifest.name == "c"
    assert manifest.objects() == {PART: 10}
    assert manifest.part_sizes(manifest.files[0]) == [10, 10]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../c", "c/../../x", "c//a", "c/./a", "c/", "", ".", "..", "c/\0", "c" * 5000],
)
def test_paths_that_lead_elsewhere_are_refused(path: str) -> None:
    one = {"path": path, "size_bytes": 0, "sha256": EMPTY, "parts": []}
    with pytest.raises(Damaged, match="is no manifest"):
        decode(signed(body(files=[one], empty_folders=[], size_bytes=0)), "here")
    with pytest.raises(Damaged, match="is no manifest"):
        decode(signed(body(empty_folders=[path])), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"job": "../job"},
        {"epoch": -1},
        {"step": "10"},
        {"created_s": None},
        {"files": []},
        {"size_bytes": 21},
        {"part_bytes": 0},
        {"part_bytes": 20},
        {"part_bytes": 2**40},
        {"more": 1},
        {"empty_folders": ["c/a"]},
        {"empty_folders": ["c/a/d"]},
        {"empty_folders": ["d"]},
        {"empty_folders": ["c/d", "c/d"]},
        {"empty_folders": ["c"]},
    ],
)
def test_what_does_not_agree_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="is no manifest"):
        decode(signed(body(**change)), "here")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"1", b'"a"', b"{" * 5000, b"\xff", b'{"digest": 1}']
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged, match="is no manifest"):
        decode(data, "here")


def test_any_other_form_of_the_same_is_refused() -> None:
    good = signed(body())
    decode(good, "here")
    for other in (good + b" ", json.dumps(json.loads(good)).encode(), good[:-1]):
        with pytest.raises(Damaged, match="differs"):
            decode(other, "here")


def test_every_changed_byte_is_noticed() -> None:
    good = signed(body())
    for at in range(len(good)):
        for change in (1, 32, 255):
            bad = bytearray(good)
            bad[at] ^= change
            with pytest.raises(Damaged):
                decode(bytes(bad), "here")


def test_a_part_has_one_size() -> None:
    files = [
        StoredFile(path="c/a", size_bytes=10, sha256=PART, parts=[PART]),
        StoredFile(path="c/b", size_bytes=9, sha256=PART, parts=[PART]),
    ]
    with pytest.raises(ValueError, match="sizes"):
        Manifest(**body(files=files, empty_folders=[], size_bytes=19))
