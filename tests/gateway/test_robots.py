"""Tokens of robots: until when they let in, and how they are revoked."""

import json
import os
from pathlib import Path

from gateway.identities import new_token
from gateway.subjects import Role, Subject
from tests.gateway.conftest import Frozen
from tests.gateway.issuing import NOW_S, ask, identities, robot, told


async def test_a_robot_comes_in_until_its_token_ends(clock: Frozen) -> None:
    token, sha256 = new_token()
    assert (len(token), len(sha256)) == (52, 64)
    robots = identities({"robots": [robot(token)]}, clock=clock)
    assert await ask(robots, token) == Subject("robot:ci", Role.TENANT, "acme")
    for wrong in (new_token()[0], token[:-1], sha256):
        await told(robots, wrong)
    assert await robots.subject({"authorization": f"Basic {token}"}, {}) is None
    assert await robots.subject({}, {}) is None
    assert "tidegate gateway token" in robots.stranger
    assert "/login" not in robots.stranger  # there is no provider to sign in at
    clock.at_s = NOW_S + 100
    assert "ended at 2027" in await told(robots, token)


async def test_a_robot_is_revoked_while_the_gateway_runs(tmp_path: Path, clock: Frozen) -> None:
    file, (token, _) = tmp_path / "auth.json", new_token()
    auth = {"robots": [robot(token)]}
    file.write_text(json.dumps(auth))
    robots = identities(auth, file=file, clock=clock)
    assert await ask(robots, token) is not None
    for number, text in enumerate(
        (json.dumps({"robots": [robot(token, revoked=True)]}), json.dumps({"robots": []}))
    ):
        file.write_text(json.dumps(auth) + " " * number)
        clock.at_s = NOW_S + 10 * number + 5
        assert await ask(robots, token) is not None
        file.write_text(text)
        clock.at_s = NOW_S + 10 * number + 7
        assert "not any more" in await told(robots, token)
    file.write_text("{")  # a file that is wrong changes nothing
    clock.at_s = NOW_S + 50
    await told(robots, token)


async def test_a_configuration_that_is_just_being_written_is_not_taken_half(
    tmp_path: Path, clock: Frozen
) -> None:
    file, (token, _) = tmp_path / "auth.json", new_token()
    auth = {"robots": [robot(token)]}
    file.write_text(json.dumps(auth))
    robots = identities(auth, file=file, clock=clock)
    file.write_text("{}")  # as a file in TOML whose robots are not written yet
    for late_s in (0.1, 0.4):
        clock.at_s = file.stat().st_mtime + late_s
        assert await ask(robots, token) is not None
        clock.at_s += 100
        os.utime(file, (clock.at_s, clock.at_s))
    clock.at_s = file.stat().st_mtime + 2.0  # so it stays: it is meant
    assert "not any more" in await told(robots, token)
