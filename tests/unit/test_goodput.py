"""The goodput model by direct evaluation, and fits that find what made the data."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from scheduler.estimator.goodput import (
    Batches,
    Best,
    Noise,
    Observations,
    StepTime,
    best_of,
    fit,
    tried,
)
from scheduler.policies.interface import Ints

TRUE = StepTime(0.05, 0.002, 0.3, 0.01, 0.1, 0.005, 2.5)


def observed(true: StepTime, rows: list[tuple[int, int, int]]) -> Observations:
    """Times of (nodes, GPUs, micro batch)."""
    nodes, gpus, micro = (np.array(column) for column in zip(*rows, strict=True))
    return Observations(nodes, gpus, micro, true.pass_s(micro), true.step_s(nodes, gpus, micro))


EVERYWHERE = [
    *((1, 1, b) for b in (16, 32, 64, 128)),
    *((1, k, b) for k in (2, 3, 4) for b in (16, 64)),
    *((n, 4 * n, b) for n in (2, 3, 4, 8) for b in (16, 128)),
]

# --- the model --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "gpus", "extra", "expected"),
    [
        (1, 1, 0, 0.25),
        (1, 1, 2, 0.75),
        (1, 2, 0, (0.25**2 + 0.1**2) ** 0.5),
        (1, 4, 1, 0.25 + (0.25**2 + 0.12**2) ** 0.5),
        (2, 4, 0, (0.25**2 + 0.32**2) ** 0.5),
        (4, 16, 0, (0.25**2 + 0.44**2) ** 0.5),
    ],
)
def test_a_step_is_its_passes_and_what_of_the_exchange_they_do_not_hide(
    nodes: int, gpus: int, extra: int, expected: float
) -> None:
    time = StepTime(0.05, 0.002, 0.3, 0.01, 0.1, 0.01, 2.0)
    assert float(time.step_s(nodes, gpus, 100, extra)) == pytest.approx(expected)


def test_overlap_goes_from_none_to_nearly_all() -> None:
    none = StepTime(0.1, 0.0, alpha_r=0.1, gamma=1.0)
    most = StepTime(0.1, 0.0, alpha_r=0.1, gamma=10.0)
    assert float(none.step_s(1, 2, 8)) == pytest.approx(0.2)
    assert 0.1 < float(most.step_s(1, 2, 8)) < 0.11


def test_large_batches_count_for_less_the_less_noise_there_is() -> None:
    """(phi + B0) / (phi + B) with phi = B0 var / sqr."""
    noise, reference = Noise(sqr=2.0, var=6.0), 32
    phi = reference * 3.0
    for batch in (32, 64, 256):
        expected = (phi + reference) / (phi + batch)
        scale = batch / reference
        assert float(noise.gain(scale)) / scale == pytest.approx(expected)


BATCHES = Batches(reference=128, most=4096, micro_least=32, micro_most=1024)
NOISE = Noise(1.0, 20.0)


def best_batch(nodes: Ints, sizes: Ints) -> Best:
    batch = tried(BATCHES, sizes)
    step_s = TRUE.step_s(nodes[:, None], batch.gpus, batch.micro, batch.extra)
    return best_of(batch, step_s, NOISE)


def test_the_best_batch_is_as_good_as_any_that_is_tried_one_by_one() -> None:
    sizes = np.arange(1, 65)
    nodes = -(-sizes // 4)
    found = best_batch(nodes, sizes)
    for at, gpus in enumerate(sizes.tolist()):
        best = 0.0
        for total in np.geomspace(max(128, 32 * gpus), 4096, 50):
            passes = max(int(np.ceil(total / gpus / 1024 - 1e-8)), 1)
            if gpus == 1 and total > 128.0001:
                passes = max(passes, 2)
            micro = min(int(np.ceil(total / gpus / passes - 1e-8)), 4096 // (gpus * passes))
            if 32 <= micro <= 1024:
                step_s = float(TRUE.step_s(nodes[at], gpus, micro, passes - 1))
                best = max(best, float(NOISE.gain(gpus * micro * passes / 128)) / step_s)
        assert float(found.goodput[at]) == pytest.approx(best)


def test_a_batch_stays_within_what_is_allowed() -> None:
    sizes = np.arange(0, 200)
    found = best_batch(np.maximum(-(-sizes // 4), 1), sizes)
    runs = found.goodput > 0
    assert runs.tolist() == [0 < k <= BATCHES.most // BATCHES.micro_least for k in sizes]
    batch = (sizes * found.micro * (found.extra + 1))[runs]
    assert (batch >= 128).all()
    assert (batch <= 4096).all()
    assert not found.micro[~runs].any()
    # One GPU above the reference batch needs two passes to see the noise.
    assert found.extra[1] >= 1 or found.micro[1] <= 128


# --- the fit ----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@example(580720)
@settings(max_examples=25, deadline=None)
def test_a_fit_explains_all_of_the_data_and_what_lies_beyond(seed: int) -> None:
    rng = np.random.default_rng(seed)
    alpha_c, beta_c = rng.uniform(0.01, 0.2), rng.uniform(0.0005, 0.005)
    alpha_r = rng.uniform(0.02, 0.2)
    beta_r = alpha_r * rng.uniform(0.01, 0.2)
    across = (alpha_r * rng.uniform(1.2, 4), beta_r * rng.uniform(1.2, 4))
    true = StepTime(alpha_c, beta_c, *across, alpha_r, beta_r, rng.uniform(1, 5))
    found = fit(observed(true, EVERYWHERE))
    beyond = [(2, 6, 48), (5, 20, 100), (12, 48, 24)]
    for where, off in ((EVERYWHERE, 0.01), (beyond, 0.06)):
        nodes, gpus, micro = (np.array(column) for column in zip(*where, strict=True))
        expected = true.step_s(nodes, gpus, micro)
        assert found.step_s(nodes, gpus, micro) == pytest.approx(expected, rel=off)
        assert found.pass_s(micro) == pytest.approx(true.pass_s(micro), rel=0.01)


def test_a_fit_finds_the_parameters() -> None:
    found = fit(observed(TRUE, EVERYWHERE))
    for name in ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.01)


def test_noisy_times_do_not_lead_astray() -> None:
    clean = observed(TRUE, EVERYWHERE * 3)
    rng = np.random.default_rng(3)
    pass_s, step_s = (
        time_s * np.exp(rng.normal(0, 0.05, len(time_s))) for time_s in (clean.pass_s, clean.step_s)
    )
    found = fit(replace(clean, pass_s=pass_s, step_s=step_s))
    found_s = found.step_s(clean.nodes, clean.gpus, clean.micro)
    assert found_s == pytest.approx(clean.step_s, rel=0.06)


def test_what_was_never_seen_costs_nothing_so_that_it_is_tried() -> None:
    alone = fit(observed(TRUE, [(1, 1, 64)]))
    assert float(alone.pass_s(64)) == pytest.approx(float(TRUE.pass_s(64)))
    assert alone.alpha_c == pytest.approx(float(TRUE.pass_s(64)) / 2)
    assert float(alone.step_s(4, 16, 64)) == pytest.approx(float(alone.pass_s(64)))
    pair = fit(observed(TRUE, [(1, 1, 32), (1, 1, 64), (1, 2, 64)]))
    assert float(pair.step_s(1, 4, 64)) == pytest.approx(float(pair.step_s(1, 2, 64)))
    # Across nodes it is a tenth dearer than inside, though no second node was seen.
    assert pair.alpha_n == pytest.approx(1.1 * pair.alpha_r)


def test_a_network_that_was_seen_is_never_cheaper_than_a_node_inside() -> None:
    odd = StepTime(0.05, 0.002, 0.05, 0.001, 0.2, 0.01, 1.5)
    found = fit(observed(odd, EVERYWHERE))
    assert found.alpha_n >= 1.1 * found.alpha_r
    assert found.beta_n >= 1.1 * found.beta_r


def test_nothing_and_nonsense_are_refused() -> None:
    none, never = np.zeros(0, dtype=np.int64), np.zeros(0)
    empty = Observations(none, none, none, never, never)
    with pytest.raises(ValueError, match="no observation"):
        fit(empty)
    with pytest.raises(ValueError, match="not above 0"):
        fit(observed(StepTime(0.0, 0.0), [(1, 1, 8)]))
