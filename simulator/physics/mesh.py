"""Linear interpolation between scattered points in three dimensions, quick to build.

The same triangulation, hence the same values, as scipy's LinearNDInterpolator; that one spends
most of a second on matrices of all tetrahedra before its first answer, which numpy does at once.
"""

import numpy as np
from scipy.spatial import Delaunay, QhullError

from scheduler.policies.interface import Floats

#: A tetrahedron this flat (six times its volume) holds no point that its neighbours do not hold.
_FLAT = 1e-9
_EDGE = 1e-9


class Mesh:
    """Tetrahedra over points. p points, v values at each."""

    def __init__(self, points: Floats, values: Floats) -> None:
        """Triangulate.

        Args:
            points: (p, 3)
            values: (p, v)
        """
        try:
            corners = np.asarray(Delaunay(points).simplices, dtype=np.int64)  # (s, 4)
        except QhullError:  # too few, or all in one plane: nothing lies between them
            corners = np.zeros((0, 4), dtype=np.int64)
        sides = points[corners[:, :3]] - points[corners[:, 3:]]  # (s, 3, 3)
        solid = np.abs(np.linalg.det(sides)) > _FLAT
        self._corners = corners[solid]
        self._last = points[self._corners[:, 3]]
        self._into = np.linalg.inv(sides[solid])  # row vector times this: first three weights
        at = points[self._corners]
        self._low, self._high = at.min(axis=1) - _EDGE, at.max(axis=1) + _EDGE
        self._values = values

    def at(self, wanted: Floats) -> Floats:
        """Return (m, v) values at (m, 3) points; NaN outside of all tetrahedra."""
        found = np.full((len(wanted), self._values.shape[1]), np.nan)
        if not len(wanted):
            return found
        low, high = wanted.min(axis=0), wanted.max(axis=0)
        near = np.flatnonzero(((self._low <= high) & (self._high >= low)).all(axis=1))
        for i, point in enumerate(wanted):
            around = near[((self._low[near] <= point) & (self._high[near] >= point)).all(axis=1)]
            if not len(around):
                continue
            first = np.einsum("sj,sjk->sk", point - self._last[around], self._into[around])
            weights = np.concatenate((first, 1.0 - first.sum(axis=1, keepdims=True)), axis=1)
            best = int(weights.min(axis=1).argmax())
            if weights[best].min() >= -_EDGE:
                found[i] = weights[best] @ self._values[self._corners[around[best]]]
        return found
