"""The console's pages and files: who is let in, what browsers may keep, and a checkout without."""

import re
from pathlib import Path

import pytest

from gateway.pages import VIEWS
from gateway.subjects import Role
from tests.gateway.conftest import PORT, TOKEN, Serving
from tests.gateway.issuing import Issuer, identities
from tests.gateway.test_access import problem

ROOT = Path(__file__).resolve().parents[2]
PAGE = b"<!doctype html><title>Tidegate</title><script src=/assets/index-abcd1234.js></script>"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A built console, in a folder of its own."""
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_bytes(PAGE)
    (static / "assets" / "index-abcd1234.js").write_text("1")
    (static / "assets" / "index-abcd1234.css").write_text("a{}")
    (static / "secret.txt").write_text("not for anybody")
    return static


async def test_every_address_of_a_view_is_the_console(
    log: Path, serving: Serving, built: Path
) -> None:
    async with serving(log) as served:
        served.app.state.static = built
        browser = served.stranger()
        await browser.get("/", params={"token": TOKEN})
        paths = ["/", *(f"/{view}" for view in VIEWS), "/jobs/job-0042?cell=default&entry=7"]
        for path in [*paths, "/jobs/a%2Fb/c", "/fleet/%E2%80%AEnode"]:
            answer = await browser.get(path)
            assert (answer.status_code, answer.content) == (200, PAGE), path
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        problem(await browser.get("/nothing"), 404)
        problem(await browser.get("/index.html"), 404)


async def test_a_mistyped_address_is_the_console_which_says_so(
    log: Path, serving: Serving, built: Path
) -> None:
    async with serving(log) as served:
        served.app.state.static = built
        browser = served.stranger(accept="text/html,application/xhtml+xml,*/*;q=0.8")
        stranger = await browser.get("/jbos")
        assert (stranger.status_code, "tidegate serve" in stranger.text) == (401, True)
        let_in = await browser.get("/jbos", params={"token": TOKEN})
        assert (let_in.status_code, let_in.headers["location"]) == (303, "/jbos")
        for path in ("/jbos", "/jbos/job-0042", "/index.html"):
            answer = await browser.get(path)
            assert (answer.status_code, answer.content) == (404, PAGE), path
            assert answer.headers["content-security-policy"] == POLICY
        for path in ("/api/v1/jbos", "/api", "/assets/index-zzzz9999.js"):
            problem(await browser.get(path), 404)


async def test_its_files_may_be_kept_for_ever(log: Path, serving: Serving, built: Path) -> None:
    async with serving(log) as served:
        served.app.state.static = built
        anybody = served.stranger()
        for name, kind in (("js", "text/javascript"), ("css", "text/css")):
            answer = await anybody.get(f"/assets/index-abcd1234.{name}")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["x-content-type-options"] == "nosniff"
        wrong = ("..%2Fsecret.txt", "index-zzzz9999.js", "secret.txt", "..%2F..%2Fapp.py")
        for name in (*wrong, f"{'a' * 300}-zzzz9999.js"):  # longer than a file system has names
            problem(await anybody.get(f"/assets/{name}"), 404)
        problem(await anybody.get("/assets/index-abcd1234.js", headers={"Host": "evil.org"}), 421)


async def test_a_stranger_reads_how_to_come_in(log: Path, serving: Serving, built: Path) -> None:
    async with serving(log) as served:
        served.app.state.static = built
        for path in ("/", "/jobs/job-1"):
            answer = await served.stranger().get(path)
            assert answer.status_code == 401
            assert "is a scheduler of GPUs" in answer.text
            assert "You are not signed in" in answer.text
            assert "tidegate serve" in answer.text
            assert f"context add mine http://127.0.0.1:{PORT} --token-file FILE" in answer.text
            assert "<script" not in answer.text
            assert "<style" not in answer.text  # which the policy would not let in
            assert "style-src 'self'" in answer.headers["content-security-policy"]
            assert 'href="/page.css"' in answer.text
        style = await served.stranger().get("/page.css")
        assert (style.status_code, style.headers["content-type"][:8]) == (200, "text/css")
        # A bearer's token is for programs: a page is opened by a browser, which has the cookie.
        assert (await served.client.get("/")).status_code == 401


async def test_a_token_is_exchanged_at_any_address(
    log: Path, serving: Serving, built: Path
) -> None:
    async with serving(log) as served:
        served.app.state.static = built
        browser = served.stranger()
        asked = {"entry": "7", "token": TOKEN, "text": "a b&c"}
        answer = await browser.get("/jobs/job-0042", params=asked)
        where = "/jobs/job-0042?entry=7&text=a+b%26c"
        assert (answer.status_code, answer.headers["location"]) == (303, where)
        assert (await browser.get(where)).content == PAGE
        problem(await served.stranger().get("/jobs/x", params={"token": "x"}), 401)
        # Who opens yesterday's address reads what to do, not what a program would.
        late = await served.stranger(accept="text/html").get("/jobs/x", params={"token": "<x>"})
        assert (late.status_code, "not of this gateway" in late.text) == (401, True)
        assert "<x>" not in late.text
        assert "tidegate serve" in late.text


async def test_a_stranger_reads_who_is_let_in(
    log: Path, serving: Serving, issuer: Issuer, built: Path
) -> None:
    for authority, says, keeps_silent in (
        (identities({"terminal_client_id": "t"}, issuer),
         ("href='/login'", f"mine https://127.0.0.1:{PORT}\n", "context login mine"),
         ("--token-file", "Nobody signs in")),
        (identities({"client_secret_file": "/x"}, issuer),
         ("href='/login'", "--token-file FILE", "gateway token NAME"), ("context login",)),
        (identities({"robots": []}),
         ("Nobody signs in", "--token-file FILE", "gateway token NAME"),
         ("/login", "tidegate serve")),
    ):  # fmt: skip
        async with serving(log, authority=authority) as served:
            served.app.state.static = built
            answer = await served.stranger().get("/jobs/job-1")
            assert answer.status_code == 401
            assert "is a scheduler of GPUs" in answer.text
            assert all(word in answer.text for word in says), answer.text
            assert not any(word in answer.text for word in keeps_silent), answer.text


async def test_without_the_console_a_page_says_how_to_build_it(
    log: Path, serving: Serving, tmp_path: Path
) -> None:
    async with serving(log) as served:
        served.app.state.static = tmp_path / "nothing"
        browser = served.stranger()
        await browser.get("/", params={"token": TOKEN})
        answer = await browser.get("/jobs")
        assert answer.status_code == 200
        assert "make console" in answer.text
        assert "/api/v1" in answer.text
        problem(await browser.get("/assets/index-abcd1234.js"), 404)


def test_the_gateway_knows_the_views_of_the_console() -> None:
    said = (ROOT / "web" / "src" / "views" / "index.ts").read_text(encoding="utf-8")
    assert tuple(re.findall(r'path: "([a-z-]+)"', said)) == VIEWS


def test_the_lock_file_names_no_registry() -> None:
    said = (ROOT / "web" / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in said
    assert "registry" not in said


async def test_me_says_what_may_be_asked_for(log: Path, serving: Serving) -> None:
    for role, verbs in (
        (Role.VIEWER, set()),
        (Role.OPERATOR, {"job.cancel", "node.drain", "loans.recall"}),
        (Role.ADMIN, {"job.cancel", "quota.set"}),
    ):
        async with serving(log, role=role, ready=False) as served:
            me = await served.get("me")
            assert verbs <= set(me["verbs"])
            assert bool(verbs) == bool(me["verbs"])
            assert ("quota.set" in me["verbs"]) == (role is Role.ADMIN)
            assert me["signs_out"] is False


async def test_moments_are_what_the_log_tells(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        await served.until(served.level)
        found = await served.get("moments")
        assert found["complete"]
        assert found["first"] == 0
        moments = found["moments"]
        assert moments == sorted(moments, key=lambda one: one["entry"])
        overview = await served.get("overview")
        kinds = [one["kind"] for one in moments]
        assert kinds.count("lent") == overview["loans"]["loans_granted"] > 0
        back = kinds.count("returned") + kinds.count("late")
        assert back == overview["loans"]["loans_reclaimed"]
        assert kinds.count("late") == overview["loans"]["reclaims_late"]
        for one in moments[:: max(1, len(moments) // 5)]:
            entry = await served.get(f"entries/{one['entry']}")
            assert entry["at_s"] == one["at_s"]
        places = found["places"]
        assert places[0] == [0, found["origin_s"]]
        assert places == sorted(places)

        half = moments[len(moments) // 2]["entry"]
        earlier = await served.get("moments", entry=half)
        assert earlier["moments"] == [one for one in moments if one["entry"] <= half]
