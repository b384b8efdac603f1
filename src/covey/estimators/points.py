"""Weighted points, and the few questions that every method here asks of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.sparse import csc_matrix, issparse

Array = NDArray[Any]

AT_ONCE = 2**16
"""Distances held at a time: half a megabyte stays in the cache of a core."""

UNRESOLVED = 8 * np.finfo(float).eps
"""Squared distances that are smaller, in parts of the squared lengths, are rounding errors."""


@dataclass(frozen=True)
class Points:
    """Points (n, d) in double precision, dense or CSR, with weights (n,).

    Attributes
    ----------
    lifted : (n, d + 1) ndarray with a last column of ones, or (n, d) CSR matrix
        With the ones, one product gives distances with their offsets, another sums with masses.
    weight : (n,), none negative
    norm : (n,), squared lengths

    Notes
    -----
    Distances are taken as ``|x|^2 - 2 x.c + |c|^2``, one matrix product in pieces that stay in the
    cache. What that rounds to less than a few units in the last place of ``|x|^2 + |c|^2`` counts
    as zero, so that repeated points are never drawn as particles of their own.
    """

    lifted: Any
    weight: Array
    norm: Array

    @classmethod
    def of(cls, x: Any, weight: Array) -> Points:
        """Measure the points once."""
        if issparse(x):
            return cls(x, weight, np.asarray(x.multiply(x).sum(1)).ravel())
        n, d = x.shape
        lifted = np.ones((n, d + 1))
        lifted[:, :d] = x
        return cls(lifted, weight, np.einsum("ij,ij->i", x, x))

    def __len__(self) -> int:
        return int(self.lifted.shape[0])

    @property
    def x(self) -> Any:
        """The points (n, d), an array or a CSR matrix."""
        return self.lifted if issparse(self.lifted) else self.lifted[:, :-1]

    def rows(self, index: Array) -> Array:
        """The chosen points (m, d), dense."""
        chosen = self.x[index]
        return chosen.toarray() if issparse(chosen) else chosen

    def take(self, index: Array | slice) -> Points:
        """The chosen points with their weights."""
        return Points(self.lifted[index], self.weight[index], self.norm[index])

    def nearest(self, centres: Array) -> tuple[Array, Array]:
        """Index of the nearest centre, ties to the lowest, and its squared distance: (n,), (n,)."""
        n = len(self)
        label, distance = np.empty(n, np.intp), np.empty(n)
        length = np.einsum("ij,ij->i", centres, centres)
        for part, gap in self._gaps(centres, length):
            label[part] = here = gap.argmin(1)
            distance[part] = gap[np.arange(len(gap)), here]
        return label, self._squared(distance, length[label])

    def distances(self, centres: Array) -> Array:
        """Distances (n, k) to all centres."""
        length = np.einsum("ij,ij->i", centres, centres)
        whole = np.empty((len(self), len(centres)))
        for part, gap in self._gaps(centres, length):
            whole[part] = gap
        return np.sqrt(self._squared(whole.T, length[:, None] + np.zeros(len(self))).T)

    def two_nearest(self, centres: Array) -> tuple[Array, Array, Array, Array]:
        """Index and squared distance of the nearest and of the second nearest of two or more."""
        n = len(self)
        first, second = np.empty(n, np.intp), np.empty(n, np.intp)
        near, far = np.empty(n), np.empty(n)
        length = np.einsum("ij,ij->i", centres, centres)
        for part, gap in self._gaps(centres, length):
            every = np.arange(len(gap))
            first[part] = here = gap.argmin(1)
            near[part] = gap[every, here]
            gap[every, here] = np.inf
            second[part] = here = gap.argmin(1)
            far[part] = gap[every, here]
        near, far = self._squared(near, length[first]), self._squared(far, length[second])
        return first, near, second, far

    def _gaps(self, centres: Array, length: Array) -> Iterator[tuple[slice, Array]]:
        """Squared distances less ``|x|^2``, some rows at a time."""
        n, towards, sparse = len(self), -2 * centres.T, issparse(self.lifted)
        if not sparse:
            towards = np.concatenate([towards, length[None]])
        rows = max(1, AT_ONCE // len(centres))
        for start in range(0, n, rows):
            part = slice(start, min(start + rows, n))
            gap = self.lifted[part] @ towards
            if sparse:
                gap += length
            yield part, gap

    def _squared(self, gap: Array, length: Array) -> Array:
        length += self.norm
        gap += self.norm
        length *= UNRESOLVED
        gap[gap <= length] = 0
        return gap

    def cells(self, label: Array, count: int) -> tuple[Array, Array]:
        """Sums ``sum_i w_i x_i`` (count, d) and masses ``sum_i w_i`` (count,) of the cells."""
        n, columns = self.lifted.shape
        sparse = issparse(self.lifted)
        if not sparse and n * count <= 2**14:
            # Building a sparse matrix takes 50 microseconds, longer than these products.
            member = np.zeros((count, n))
            member[label, np.arange(n)] = self.weight
            sums = member @ self.lifted
            return sums[:, :-1], sums[:, -1].copy()
        if not sparse and (columns <= 3 or n * columns <= 10_000):
            parts = [np.bincount(label, self.weight * c, count) for c in self.lifted.T[:-1]]
            return np.stack(parts, 1), np.bincount(label, self.weight, count)
        starts = np.arange(n + 1, dtype=np.int32)
        member = csc_matrix((self.weight, label.astype(np.int32), starts), shape=(count, n))
        sums = member @ self.lifted
        if sparse:
            return sums.toarray(), np.bincount(label, self.weight, count)
        return sums[:, :-1], sums[:, -1].copy()

    def means(self, label: Array, count: int) -> tuple[Array, Array]:
        """Means (m, d) and masses (m,) of the cells that have any mass."""
        sums, mass = self.cells(label, count)
        alive = mass > 0
        return sums[alive] / mass[alive, None], mass[alive]


def systematic(mass: Array, count: int, rng: Generator) -> Array:
    """Draw ``count`` indices in ascending order, index i about ``count mass_i / sum(mass)`` times.

    One uniform number places ``count`` equidistant marks on the cumulative mass: an index is drawn
    the expected number of times rounded down or up (Carpenter, Clifford and Fearnhead, 1999), so
    that draws are as different as they can be.

    Examples
    --------
    >>> import numpy as np
    >>> from covey.estimators.points import systematic
    >>> systematic(np.array([1.0, 0.0, 3.0]), 4, np.random.default_rng(0)).tolist()
    [0, 2, 2, 2]
    """
    line = np.cumsum(mass)
    marks = (np.arange(count) + rng.random()) * (line[-1] / count)
    drawn = np.searchsorted(line, marks, side="right")
    # Rounding may carry the last mark beyond the line; the last index of any mass gets it.
    return np.minimum(drawn, np.flatnonzero(mass)[-1])


def particles(
    points: Points, count: int, rng: Generator, rounds: int = 3
) -> tuple[Array, Array, Array]:
    """Draw up to ``count`` points with probability in proportion to ``w D^2``, in a few rounds.

    ``D`` is the distance to the nearest particle so far. Drawing many in a round is the idea of
    k-means|| (Bahmani and others, *Scalable k-means++*, 2012): it costs one matrix product a round
    instead of one pass a particle.

    Returns
    -------
    index : (m,), m <= count: fewer where fewer are distinct
    label : (n,), the particle nearest to each point
    distance : (n,), its squared distance
    """
    drawn = [systematic(points.weight, 1, rng)]
    label, distance = points.nearest(points.rows(drawn[0]))
    found = 1
    for to_come in range(rounds, 0, -1):
        wanted, mass = -(-(count - found) // to_come), points.weight * distance
        if wanted < 1 or not mass.max() > 0:
            break
        new = np.unique(systematic(mass, wanted, rng))
        closest, gap = points.nearest(points.rows(new))
        closer = gap < distance
        label[closer], distance[closer] = closest[closer] + found, gap[closer]
        drawn.append(new)
        found += len(new)
    return np.concatenate(drawn), label, distance
