"""Goodput of data-parallel training, as Pollux models it, and its fit to what was observed.

Goodput is throughput times statistical efficiency (Pollux, OSDI '21). One step on K
GPUs of N nodes with b samples on each GPU, after s passes that only accumulate gradients, takes

    T = s Tg + (Tg^gamma + Ts^gamma)^(1/gamma),  Tg = alpha_c + beta_c b,
    Ts = 0 if K = 1, alpha_r + beta_r max(K - 2, 0) if N = 1, else alpha_n + beta_n max(K - 2, 0),

for a batch of B = K b (s + 1), of whose samples only a part (phi + B0) / (phi + B) counts, with
phi the gradient noise scale and B0 the batch at which the noise was measured. Everything here is a
pure function of arrays; goodput is in steps at the batch B0 per second.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from scheduler.policies.interface import Bools, Floats, Ints

#: Batch sizes tried between the smallest and the largest, in geometric steps.
_TRIED = 50
#: Below this a time is taken as not there.
_LEAST_S = 1e-8
_LEAST, _MOST = np.log(_LEAST_S), np.log(1e4)
_GAMMA_MOST = 10.0
#: How much dearer a network is than a node inside, at least.
_APART = 1.1
#: What keeps gamma at 1, and beta small against alpha, where observations say little of them.
_HOLD_GAMMA, _HOLD_SLOPE = 1e-3, 1e-3
#: What part of a step is taken for its pass to begin with, where nobody timed the pass.
_PASS = 0.8


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes. Seconds; `beta_c` per sample, the other betas per GPU above two."""

    alpha_c: float
    beta_c: float
    alpha_n: float = _LEAST_S
    beta_n: float = _LEAST_S
    alpha_r: float = _LEAST_S
    beta_r: float = _LEAST_S
    gamma: float = 1.0  #: 1: gradients are sent after the pass; 10: nearly all of it during it.

    def pass_s(self, micro: ArrayLike) -> Floats:
        """Return Tg, the time of one pass over `micro` samples on each GPU."""
        found: Floats = self.alpha_c + self.beta_c * np.asarray(micro, dtype=np.float64)
        return found

    def sync_s(self, nodes: ArrayLike, gpus: ArrayLike) -> Floats:
        """Return Ts, the time that exchanging gradients takes if nothing overlaps it."""
        count = np.asarray(gpus, dtype=np.float64)
        more = np.maximum(count - 2, 0)
        inside = self.alpha_r + self.beta_r * more
        across = self.alpha_n + self.beta_n * more
        found = np.where(np.asarray(nodes) > 1, across, inside)
        return np.where(count > 1, found, 0.0)

    def step_s(
        self, nodes: ArrayLike, gpus: ArrayLike, micro: ArrayLike, extra: ArrayLike = 0
    ) -> Floats:
        """Return T of a step with `extra` passes before the one that exchanges gradients."""
        forth, sync = self.pass_s(micro), self.sync_s(nodes, gpus)
        both = (forth**self.gamma + sync**self.gamma) ** (1 / self.gamma)
        found: Floats = np.asarray(extra) * forth + both
        return found


@dataclass(frozen=True, slots=True)
class Noise:
    """Gradient statistics at the reference batch: squared norm of the mean, trace of variance."""

    sqr: float | Floats
    var: float | Floats

    def gain(self, scale: ArrayLike) -> Floats:
        """Return the progress of one step at `scale` times the reference batch: at most `scale`."""
        times = np.asarray(scale, dtype=np.float64)
        found: Floats = (self.var + self.sqr) / (self.var / times + self.sqr)
        return found


@dataclass(frozen=True, slots=True)
class Batches:
    """Which batches a job may have."""

    reference: int  #: B0; no total batch is smaller.
    most: int  #: in total.
    micro_least: int  #: on one GPU in one pass.
    micro_most: int


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """The batches that are tried on m sizes, 50 on each."""

    gpus: Ints  #: (m, 1)
    micro: Ints  #: (m, 50) samples on each GPU in one pass.
    extra: Ints  #: (m, 50) passes before the one that exchanges gradients.
    scale: Floats  #: (m, 50) of the whole batch, over the reference; 1 where it is not allowed.
    allowed: Bools  #: (m, 50)


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """The best batch for each number of GPUs; goodput 0 where there is none."""

    goodput: Floats  #: steps at the reference batch per second.
    micro: Ints  #: samples on each GPU in one pass.
    extra: Ints  #: passes before the one that exchanges gradients.


def tried(batches: Batches, gpus: ArrayLike) -> Tried:
    """Return the batches worth trying: 50 total batches in geometric steps.

    A single GPU above the reference batch makes two passes at least, because gradient noise is
    measured between passes.

    Args:
        batches: What is allowed.
        gpus: (m,) GPUs.
    """
    count = np.atleast_1d(np.asarray(gpus, dtype=np.int64))
    least = np.maximum(batches.reference, batches.micro_least * count)
    able = (count > 0) & (least <= batches.most)
    low = np.log(np.minimum(least, batches.most))
    part = np.linspace(0, 1, _TRIED)
    total = np.exp(low[:, None] + part * (np.log(batches.most) - low)[:, None])
    each = np.maximum(count, 1)[:, None]
    local = total / each
    extra = np.ceil(local / batches.micro_most - 1e-8).astype(np.int64) - 1
    noisy = (each == 1) & (total > batches.reference * (1 + 1e-8))
    extra = np.where(noisy, np.maximum(extra, 1), extra)
    micro = np.ceil(local / (extra + 1) - 1e-8).astype(np.int64)
    micro = np.minimum(micro, batches.most // (each * (extra + 1)))
    valid = able[:, None] & (micro >= batches.micro_least) & (micro <= batches.micro_most)
    scale = np.where(valid, each * micro * (extra + 1) / batches.reference, 1.0)
    return Tried(each, np.maximum(micro, 1), extra, scale, valid)


def goodputs(batch: Tried, step_s: Floats, noise: Noise) -> Floats:
    """(m, 50) goodput of the batches tried, whose steps take (m, 50) `step_s`; 0: not allowed."""
    return np.where(batch.allowed, noise.gain(batch.scale) / step_s, 0.0)


def best_of(batch: Tried, step_s: Floats, noise: Noise) -> Best:
    """Choose of the batches tried that of highest goodput; arguments as for `goodputs`.

    For one size, m = 1, the noise may be that of several moments, (e, 1); then so is what is found.
    """
    goodput = goodputs(batch, step_s, noise)
    at = goodput.argmax(axis=1)
    rows = np.arange(len(at))
    found = goodput[rows, at]
    chosen = rows if len(batch.gpus) > 1 else 0, at
    some = found > 0
    return Best(found, batch.micro[chosen] * some, batch.extra[chosen] * some)


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Steps that were timed. m rows, at best one for each configuration, with mean times."""

    nodes: Ints  #: (m,)
    gpus: Ints  #: (m,)
    micro: Ints | Floats  #: (m,) samples on each GPU in one pass.
    pass_s: Floats  #: (m,) a pass that exchanges nothing; NaN: not known.
    step_s: Floats  #: (m,) a pass that does.


def fit(seen: Observations) -> StepTime:
    """Find the step time that explains what was observed, optimistic about the rest.

    Least squares on the logarithms of both times, in bounds, from a start that the data give.
    What was never seen is taken to cost nothing (no second node: no network; never three GPUs: no
    cost per GPU; one micro batch: half of a pass grows with it), so that a policy tries it: then
    it is seen. The network is taken to be dearer than a node inside by a tenth at least.

    Differences from the published fit: squares in place of root mean squares, which have a kink
    where they are best, with a weaker hold on gamma and the betas to match; and logarithms of the
    parameters in place of the parameters.

    Raises:
        ValueError: there is no observation, or a time is not above 0.
    """
    # Only who fits needs scipy; the model alone also runs where a plain install has none.
    from scipy.optimize import least_squares

    if not len(seen.gpus):
        raise ValueError("no observation to fit; time at least one step")
    if not (((seen.pass_s > 0) | np.isnan(seen.pass_s)).all() and (seen.step_s > 0).all()):
        raise ValueError("an observed time is not above 0 s; leave such steps out")
    several, alone = seen.nodes > 1, (seen.nodes == 1) & (seen.gpus > 1)
    start = _start(seen, several, alone)
    free = np.ones(7, dtype=np.bool_)
    free[0] = len(np.unique(seen.micro)) > 1
    free[[2, 3]] = several.any()
    free[[4, 5]] = alone.any()
    if seen.gpus.max() <= 2:
        free[[3, 5]] = False
        start[[3, 5]] = _LEAST
    free[6] = bool(several.any() or alone.any())
    low = np.array([_LEAST] * 6 + [1.0])
    high = np.array([_MOST] * 6 + [_GAMMA_MOST])
    point = np.clip(start, low, high)

    def spread(part: Floats) -> Floats:
        whole = point.copy()
        whole[free] = part
        return whole

    @lru_cache(maxsize=1)  # the solver asks for the slope where it just asked for the misfit
    def misfit(part: bytes) -> tuple[Floats, Floats]:
        return _residuals(seen, several, alone, spread(np.frombuffer(part)))

    def off(part: Floats) -> Floats:
        return misfit(part.tobytes())[0]

    def slope(part: Floats) -> Floats:
        return misfit(part.tobytes())[1][:, free]

    solved = least_squares(
        off,
        np.clip(point[free], low[free] + 1e-9, high[free] - 1e-9),
        jac=slope,
        bounds=(low[free], high[free]),
        max_nfev=100,
    )
    found = spread(solved.x)
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r = np.exp(found[:6]).tolist()
    return StepTime(
        alpha_c,
        beta_c,
        max(alpha_n, _APART * alpha_r),
        max(beta_n, _APART * beta_r),
        alpha_r,
        beta_r,
        float(found[6]),
    )


def _start(seen: Observations, several: np.ndarray, alone: np.ndarray) -> Floats:
    """Guess (7,) logarithms of the parameters, and gamma."""
    start = np.full(7, _LEAST)
    start[6] = 1.0
    micro = seen.micro.astype(np.float64)
    pass_s = np.where(np.isnan(seen.pass_s), _PASS * seen.step_s, seen.pass_s)
    if len(np.unique(seen.micro)) > 1:
        slope, offset = np.polyfit(micro, pass_s, 1)
        tenth = float(pass_s.min()) / 10
        start[0] = np.log(max(offset, tenth))
        start[1] = np.log(max(slope, tenth / micro.max()))
    else:
        half = float(pass_s.mean()) / 2
        start[0], start[1] = np.log(half), np.log(half / micro[0])
    for rows, at in ((several, 2), (alone, 4)):
        if rows.any():
            beyond = float(np.maximum(seen.step_s - pass_s, 0.1 * seen.step_s)[rows].mean())
            start[at], start[at + 1] = np.log(beyond), np.log(beyond / 10)
    return start


def _residuals(
    seen: Observations, several: np.ndarray, alone: np.ndarray, point: Floats
) -> tuple[Floats, Floats]:
    """(2 m + 3,) how far off the model is, and (2 m + 3, 7) its derivatives."""
    m = len(seen.gpus)
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r = np.exp(point[:6])
    gamma = point[6]
    micro, more = seen.micro.astype(np.float64), np.maximum(seen.gpus - 2.0, 0.0)
    forth = alpha_c + beta_c * micro
    sync = np.where(several, alpha_n + beta_n * more, alpha_r + beta_r * more)
    shared = several | alone
    a, b = np.log(forth), np.log(np.where(shared, sync, 1.0))
    both = np.logaddexp(gamma * a, gamma * b) / gamma
    both = np.where(shared, both, a)
    weight = np.where(shared, np.exp(gamma * (a - both)), 1.0)  # of the pass in the step
    known = ~np.isnan(seen.pass_s)
    scale = 1 / np.sqrt(m)
    off = np.zeros(2 * m + 3)
    off[:m] = np.where(known, a - np.log(seen.pass_s), 0.0) * scale
    off[m : 2 * m] = (both - np.log(seen.step_s)) * scale
    slope = np.zeros((2 * m + 3, 7))
    by_alpha, by_beta = alpha_c / forth, beta_c * micro / forth
    slope[:m, 0], slope[:m, 1] = np.where(known, by_alpha, 0.0), np.where(known, by_beta, 0.0)
    slope[m : 2 * m, 0], slope[m : 2 * m, 1] = weight * by_alpha, weight * by_beta
    for rows, alpha, beta, at in ((several, alpha_n, beta_n, 2), (alone, alpha_r, beta_r, 4)):
        part = np.where(rows, (1 - weight) / np.where(rows, sync, 1.0), 0.0)
        slope[m : 2 * m, at], slope[m : 2 * m, at + 1] = part * alpha, part * beta * more
    mixed = weight * a + (1 - weight) * b
    slope[m : 2 * m, 6] = np.where(shared, (mixed - both) / gamma, 0.0)
    slope[: 2 * m] *= scale
    off[2 * m] = _HOLD_GAMMA * (gamma - 1)
    slope[2 * m, 6] = _HOLD_GAMMA
    for row, rows, at in ((2 * m + 1, several, 2), (2 * m + 2, alone, 4)):
        if rows.any():
            ratio = _HOLD_SLOPE * np.exp(point[at + 1] - point[at])
            off[row], slope[row, at], slope[row, at + 1] = ratio, -ratio, ratio
    return off, slope
