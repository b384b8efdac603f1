"""Particles that collapse onto k centres, the cheapest merge first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from covey.estimators.points import Array, Points, particles

LEAST = 200
"""So few points are all particles, and then nothing is left to chance."""


@dataclass(frozen=True)
class Merging:
    """Particles (m, d) with masses (m,), and the merges among them, cheapest first.

    Attributes
    ----------
    positions, masses : (m, d), (m,)
    merges : (p, 3), which two become which; the j-th merge found makes number m + j
    """

    positions: Array
    masses: Array
    merges: Array

    def labels(self, count: int) -> Array:
        """Which of ``count`` groups each particle (m,) is in, numbered as they first occur."""
        m = len(self.masses)
        done = self.merges[: max(0, m - count)]
        parent = np.arange(self.merges[:, 2].max(initial=m - 1) + 1)
        parent[done[:, 0]] = parent[done[:, 1]] = done[:, 2]
        while (parent[parent] != parent).any():
            parent = parent[parent]
        _, first, label = np.unique(parent[:m], return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[label]

    def groups(self, count: int) -> tuple[Array, Array]:
        """Means (count, d) and masses (count,) of the groups."""
        return Points.of(self.positions, self.masses).means(self.labels(count), count)


def ward(positions: Array, masses: Array, count: int) -> Merging:
    """Merge particles, always the two that are cheapest to merge, until ``count`` are left.

    Parameters
    ----------
    positions : (m, d), masses : (m,), all positive

    Notes
    -----
    Merging i and j raises the inertia by ``m_i m_j / (m_i + m_j) |x_i - x_j|^2`` (Ward,
    *Hierarchical grouping to optimize an objective function*, 1963). No merge makes another one
    cheaper, so that two which are each other's cheapest partner will be merged sooner or later,
    whatever happens elsewhere (Bruynooghe, 1977; Murtagh, 1983). All such pairs are merged at once,
    about twenty times instead of m - count times, and put in order afterwards; it is enough when so
    many merges are known that cost no more than any still to come. SciPy's and scikit-learn's Ward
    take no masses.

    Examples
    --------
    >>> import numpy as np
    >>> from covey.estimators.collapse import ward
    >>> merging = ward(np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 3.0, 1.0]), 2)
    >>> [part.ravel().tolist() for part in merging.groups(2)]
    [[0.75, 5.0], [4.0, 1.0]]
    """
    m = fresh = len(masses)
    merges, costs = np.empty((0, 3), np.intp), np.empty(0)
    # Equal costs form chains, on a grid for example, and in the order of the data only their ends
    # would be mutual.
    name = np.random.default_rng(0).permutation(m)
    mean, mass, height = positions[name], masses[name], np.zeros(m)
    while len(name) > 1:
        partner, cost = _cheapest_partners(mean, mass)
        if (costs <= cost.min()).sum() >= m - count:
            break
        one, other = _mutual(partner, cost)
        # A whole never comes before its parts, whatever rounding says.
        height[one] = np.maximum(cost[one], np.maximum(height[one], height[other]))
        new = fresh + np.arange(len(one))
        fresh += len(one)
        merges = np.concatenate([merges, np.stack([name[one], name[other], new], 1)])
        costs = np.concatenate([costs, height[one]])
        both = mass[one] + mass[other]
        mean[one] += (mass[other] / both)[:, None] * (mean[other] - mean[one])
        name[one], mass[one] = new, both
        stay = np.ones(len(name), bool)
        stay[other] = False
        name, mean, mass, height = name[stay], mean[stay], mass[stay], height[stay]
    order = np.argsort(costs, kind="stable")[: max(0, m - count)]
    return Merging(positions, masses, merges[order])


def _cheapest_partners(mean: Array, mass: Array) -> tuple[Array, Array]:
    """Cheapest partner of each particle, ties to the lowest, and the cost: (m,), (m,)."""
    norm = np.einsum("ij,ij->i", mean, mean)
    cost = mean @ (-2 * mean.T)
    cost += norm
    cost += norm[:, None]
    np.maximum(cost, 0, out=cost)
    # Harmonic: 1 / (1/a + 1/b) = a b / (a + b), without the product, which may underflow.
    inverse = 1 / mass
    cost /= inverse + inverse[:, None]
    np.fill_diagonal(cost, np.inf)
    partner = cost.argmin(1)
    return partner, cost[np.arange(len(mass)), partner]


def _mutual(partner: Array, cost: Array) -> tuple[Array, Array]:
    """Pairs that are each other's cheapest partner; where rounding hides them, the cheapest."""
    every = np.arange(len(partner))
    one = np.flatnonzero((partner[partner] == every) & (every < partner))
    if not len(one):
        one = np.array([cost.argmin()])
    return one, partner[one]


def collapse(points: Points, count: int, k: int, rng: Generator, least: int = LEAST) -> Merging:
    """Draw ``count`` particles, let each stand for its cell, and merge them to k.

    1. Particles are drawn with probability in proportion to ``w D^2``.
    2. Each moves to the mean of the points nearest to it and takes on their mass.
    3. The two that are cheapest to merge do so, until k are left.

    Where fewer than k points are distinct, fewer particles come out. No more than ``least`` points
    are all particles.
    """
    if len(points) <= least:
        alive = np.flatnonzero(points.weight > 0)
        return ward(points.rows(alive), points.weight[alive], k)
    drawn, label, _ = particles(points, count, rng)
    return ward(*points.means(label, len(drawn)), k)
