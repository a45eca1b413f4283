"""Scraping real servers on loopback that serve, hang, drip, lie, restart and vanish."""

from collections.abc import Iterator

import pytest

from runtime.metering.reading import ServerReading
from runtime.metering.scrape import Replica, Scraper, TargetState
from runtime.metering.servers import SERVERS, Metric, Server
from tests.metering.pages import Answer, Site, dripping, endless, hanging, page, served, text
from tests.patience import wait_until


@pytest.fixture
def scraper() -> Iterator[Scraper]:
    scraper = Scraper(every_s=0.02, timeout_s=1.0)
    yield scraper
    scraper.close()


def only(scraper: Scraper) -> TargetState:
    (heard,) = scraper.targets()
    return heard


def reading(scraper: Scraper, site: Site, server: Server | None = None) -> ServerReading:
    """Watch one replica until it was read."""
    scraper.watch([Replica("r", site.url, server=server)])
    wait_until(lambda: only(scraper).reading)
    found = only(scraper).reading
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "running", "waiting"),
    [("vllm_v0", 7.0, 5.0), ("vllm_v1", 11.0, 1.0), ("sglang", 21.0, 5.0), ("tgi", 9.0, 5.0)],
)
def test_each_kind_is_recognised_and_read(
    scraper: Scraper, name: str, running: float, waiting: float
) -> None:
    with served(text(page(name))) as site:
        found = reading(scraper, site)
    assert (found.running, found.waiting) == (running, waiting)


def test_triton_is_heard_with_the_second_page(scraper: Scraper) -> None:
    with served(text(page("triton"))) as site:
        reading(scraper, site)
        assert scraper.counters.useless == 1


@pytest.mark.parametrize("answer", [hanging, dripping], ids=["hanging", "dripping"])
def test_one_that_hangs_delays_no_other(answer: Answer) -> None:
    scraper = Scraper(every_s=0.02, timeout_s=0.2)
    with served(answer) as stuck, served(text(page("tgi"))) as well:
        scraper.watch([Replica("stuck", stuck.url), Replica("well", well.url)])
        wait_until(lambda: scraper.counters.timeouts >= 2 and well.asked >= 3)
        first, second = scraper.targets()
        scraper.close()
    assert first.reading is None
    assert "no whole answer within 0.2 s" in (first.error or "")
    assert second.reading is not None
    assert second.error is None


#: Each of them is a number, and their sum is none.
HUGE = "".join(
    f'vllm:num_requests_{what}{{engine="{engine}"}} 1e308\n'
    for what in ("waiting", "running")
    for engine in (0, 1)
)


@pytest.mark.parametrize(
    ("answer", "counter", "error"),
    [
        (text("", "500 Internal Server Error"), "failures", "answers 500"),
        (endless, "failures", "more than 8388608 bytes"),
        (text("<html></html>\n"), "useless", "line 1: no metric begins with"),
        (text("node_load1 0.5\n"), "useless", "not a page of vllm, sglang, tgi, triton; say agent"),
        (text("vllm:num_requests_running 3\n"), "useless", "vllm:num_requests_waiting is not on"),
        (text(page("tgi")[:-30]), "useless", "the page is cut off here"),
        (text(HUGE), "useless", "its figures are larger than those of any server"),
    ],
)
def test_a_useless_answer_is_counted_and_is_not_a_reading(
    answer: Answer, counter: str, error: str
) -> None:
    scraper = Scraper(every_s=0.02, timeout_s=60.0)
    with served(answer) as site:
        scraper.watch([Replica("r", site.url)])
        wait_until(lambda: getattr(scraper.counters, counter))
        heard = only(scraper)
        scraper.close()
    assert heard.reading is None
    assert error in (heard.error or "")


def test_one_that_vanishes_keeps_its_last_reading_which_ages(scraper: Scraper) -> None:
    site = Site(text(page("tgi")))
    reading(scraper, site)
    site.down()
    wait_until(lambda: only(scraper).error and only(scraper).age_s > 0.3)
    assert only(scraper).reading is not None
    assert "is the server up" in (only(scraper).error or "")
    # And when it is back, restarted and with its counters at zero, it is heard again.
    site.answer = text(page("tgi").replace("tgi_request_count 2200", "tgi_request_count 1"))
    site.up()
    wait_until(lambda: only(scraper).error is None)
    wait_until(lambda: scraper.counters.restarts == 1)
    assert 0 <= (reading(scraper, site).rate_per_s or 0.0) < 100
    site.down()


def test_replicas_come_and_go(scraper: Scraper) -> None:
    with served(text(page("tgi"))) as first, served(text(page("sglang"))) as second:
        one, two = Replica("1", first.url), Replica("2", second.url)
        scraper.watch([one])
        wait_until(lambda: only(scraper).reading)
        kept = only(scraper).reading
        scraper.watch([one, two])
        assert scraper.targets()[0].reading is not None
        assert kept is not None
        wait_until(lambda: all(heard.reading for heard in scraper.targets()))
        scraper.watch([two])
        assert only(scraper).replica == two
        asked = first.asked
        wait_until(lambda: second.asked > 10)
        assert first.asked <= asked + 1  # one may have been under way


def test_another_server_at_the_same_address_begins_anew(scraper: Scraper) -> None:
    with served(text(page("tgi"))) as site:
        reading(scraper, site)
        site.answer = text(page("vllm_v0"))
        wait_until(lambda: reading(scraper, site).running == 7.0)


def test_a_mapping_of_ones_own_is_used(scraper: Scraper) -> None:
    ours = Server("ours", waiting=(Metric(("depth",)),), running=(Metric(("busy",)),))
    with served(text("depth 3\nbusy 4\n")) as site:
        found = reading(scraper, site, ours)
    assert (found.running, found.waiting, found.doubts) == (4.0, 3.0, ())


def test_a_replica_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="gpus: r holds 0"):
        Replica("r", "http://127.0.0.1:1/metrics", gpus=0)
    with pytest.raises(ValueError, match="url: "):
        Replica("r", "127.0.0.1:1", server=SERVERS[0])
