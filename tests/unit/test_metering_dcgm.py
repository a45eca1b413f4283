"""The DCGM exporter's page: which row is which GPU's, and what cannot be a value."""

import pytest

from runtime.metering.dcgm import DcgmGpus
from runtime.metering.sampled import Reading, SampledMeter, Unreadable
from tests.metering.pages import Site, hanging, page, served, text
from tests.patience import wait_until

UUID = "GPU-604ac76c-0000-0000-0000-000000000000"


def test_rows_are_found_by_index_uuid_and_mig_instance() -> None:
    with served(text(page("dcgm"))) as site:
        gpus = DcgmGpus(site.url, {"a": [0, UUID], "b": ["2.1", "2.2", 7]})
        assert gpus.gpus == {"a": 2, "b": 3}
        readings = gpus.read()
    assert readings["a"] == [Reading(0.93, 70123.0, 61.0, 352.5)] * 2
    # Of a MIG device the activity counts, and the power is its GPU's, so nobody's.
    assert readings["b"] == [
        Reading(0.75, 30000.0, 45.0, None),
        Reading(0.0, 12.0, 45.0, None),
        Reading(),
    ]


def test_numbers_that_mean_no_value_are_none() -> None:
    with served(text(page("dcgm"))) as site:
        meter = SampledMeter(DcgmGpus(site.url, {"a": [1]}), every_s=60.0)
        wait_until(lambda: meter.counters.samples == 1)
        (measured,) = meter.measure(0.0, 60.0)
        meter.close()
    assert measured.gpu_utilisation == measured.gpu_power_w == [None]
    assert measured.gpu_memory_used_mib == [4]
    assert measured.gpu_temperature_c == [34.0]


def test_a_page_of_several_hosts_is_refused() -> None:
    both = page("dcgm") + page("dcgm").replace("gpu-a", "gpu-b").replace("} 93\n", "} 7\n")
    one_alone = "shows several hosts; give the page of this machine"
    with served(text(both)) as site, pytest.raises(Unreadable, match=one_alone):
        DcgmGpus(site.url, {"a": [0]}).read()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("<html>404</html>\n", "line 1: no metric begins with .* is this a DCGM exporter"),
        ("node_load1 0.5\n", "none of .*DCGM_FI_DEV_FB_USED.* is there; add them"),
        ('DCGM_FI_DEV_FB_USED{gpu="0} 1\n', "line 1: cannot read"),
    ],
)
def test_another_page_is_told_from_an_exporters(body: str, what: str) -> None:
    with served(text(body)) as site, pytest.raises(Unreadable, match=what):
        DcgmGpus(site.url, {"a": [0]}).read()


def test_an_exporter_that_hangs_goes_or_comes_back_never_holds_up_the_measure() -> None:
    site = Site(hanging)
    meter = SampledMeter(DcgmGpus(site.url, {"a": [0]}, timeout_s=0.05), every_s=0.01)
    wait_until(lambda: any("no whole answer within 0.05 s" in one for one in meter.problems()))
    assert meter.measure(0.0, 60.0)[0].gpu_utilisation == [None]
    site.down()
    wait_until(lambda: any("is the server up" in problem for problem in meter.problems()))
    site.answer = text(page("dcgm"))
    site.up()
    wait_until(lambda: meter.measure(0.0, 60.0)[0].gpu_utilisation == [pytest.approx(0.93)])
    assert not meter.problems()
    meter.close()
    site.down()


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"give http\(s\)://HOST"):
        DcgmGpus("localhost:9400/metrics", {})
