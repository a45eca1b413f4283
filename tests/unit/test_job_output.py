"""What a job wrote is shown without what controls a terminal, however it comes in pieces."""

import re
import time

import pytest
from hypothesis import given, strategies as st

from console.job_output import Plain

ESC = "\x1b"


def shown(*parts: bytes) -> str:
    plain = Plain()
    return "".join(plain.feed(part) for part in parts) + plain.feed(b"", final=True)


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (f"{ESC}[31mred{ESC}[0m", "red"),
        (f"a{ESC}]0;title\x07b", "ab"),
        (f"a{ESC}]8;;http://x{ESC}\\link{ESC}]8;;{ESC}\\", "alink"),
        (f"{ESC}[2J{ESC}[Hclear", "clear"),
        (f"{ESC}Pq#0{ESC}\\six", "six"),
        (f"{ESC}cfresh", "fresh"),
        ("\x9b31mred", "red"),
        ("10%\r20%\r\ndone\n", "10%\n20%\ndone\n"),
        ("a\x00\x08\x7fb\tc", "ab\tc"),
        ("größer: 4 µs", "größer: 4 µs"),
    ],
)
def test_each_kind_of_control_is_taken_out_whole(written: str, plain: str) -> None:
    data = written.encode()
    assert shown(data) == plain
    assert shown(*(data[at : at + 1] for at in range(len(data)))) == plain


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_nothing_that_controls_a_terminal_is_left_of_anything(parts: list[bytes]) -> None:
    text = shown(*parts)
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text) is None
    assert text == shown(b"".join(parts))


def test_a_sequence_without_an_end_hides_no_more_than_itself() -> None:
    assert shown(f"{ESC}]0;".encode() + b"x" * 10_000 + b"\nnext").endswith("next")


@pytest.mark.parametrize("begin", [b"\xc2\x90", b"\xc2\x98", b"\xc2\x9d", b"\x1b]", b"\x1b["])
def test_beginnings_of_sequences_without_an_end_keep_nobody_waiting(begin: bytes) -> None:
    began_s = time.process_time()
    shown(begin * 32_000)  # an agent's piece has 64 KiB
    assert time.process_time() - began_s < 2.0
