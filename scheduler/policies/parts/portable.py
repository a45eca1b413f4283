"""Powers, logarithms and weighted sums that come to the same bits on every machine.

What a policy decides is decided again by replays, on other machines. numpy has several forms of
these: it takes one of AVX-512 where the processor has that, and its product of matrices adds in the
order that suits the processor. Their results differ in the last bit, and so did decisions. Sums,
products, quotients and square roots are exact to the last bit everywhere; C's own functions have
one form for all processors that multiply and add in one step (FMA: those since about 2013).
"""

import math

import numpy as np

from scheduler.policies.interface import Floats


def power(base: Floats | float, exponent: Floats | float) -> Floats:
    """Element by element, as C's `pow`, of which numpy has no second form under this name."""
    found: Floats = np.float_power(base, exponent)
    return found


def log(values: Floats) -> Floats:
    """Element by element, as C's `log`; values above 0."""
    return np.array([math.log(one) for one in values.ravel().tolist()]).reshape(values.shape)


def weighed(values: Floats, weights: Floats) -> Floats:
    """(..., n) and (n,) -> (...): the sum of each row, each value times its weight."""
    found: Floats = (values * weights).sum(axis=-1)
    return found
