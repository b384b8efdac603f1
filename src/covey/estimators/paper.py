"""Stochastic SMC seeding as published: particles resampled until k different ones are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from scipy.sparse import issparse
from scipy.special import chdtri
from scipy.stats import qmc

from covey.estimators.points import Array, Points, systematic

PROBES = 200


@dataclass(frozen=True)
class StochasticSMC:
    """The parameters of the published algorithm; None: what its experiment suggests.

    Attributes
    ----------
    batch_size : int or None, B. None: a tenth of the points, rounded up
    sigma2 : float or None, variance of a cluster in each direction. None: from neighbours
    candidates : "sobol" (in the bounding box) or "data" (points drawn from the data)
    passes : int, how often the data may be used up
    """

    batch_size: int | None = None
    sigma2: float | None = None
    candidates: str = "sobol"
    passes: int = 10

    def __post_init__(self) -> None:
        for name in ("batch_size", "passes"):
            value = getattr(self, name)
            if (value is not None or name == "passes") and not (
                isinstance(value, int | np.integer) and value >= 1
            ):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.sigma2 is not None and not 0 < self.sigma2 < np.inf:
            raise ValueError(f"sigma2 must be positive and finite, got {self.sigma2!r}")
        if self.candidates not in ("sobol", "data"):
            raise ValueError(f"candidates must be 'sobol' or 'data', got {self.candidates!r}")

    def scaled(self, scale: float) -> StochasticSMC:
        """The same for data multiplied by a number."""
        if self.sigma2 is None:
            return self
        # One factor after the other: the square alone may overflow.
        sigma2 = max(self.sigma2 * scale * scale, np.finfo(float).tiny)
        return replace(self, sigma2=sigma2)


def stochastic_smc(
    points: Points,
    k: int,
    count: int,
    rng: Generator,
    parameters: StochasticSMC,
    record: Callable[[Array, Array], None] = lambda positions, copies: None,
) -> Array:
    """Choose k centres (k, d): Algorithm 2 of Fan and Heller, with the stop that it leaves open.

    Each point ``y_b`` of a batch goes to the nearest of the different particles ``U_j``, which
    weighs ``w_j = mult_j sum_{b: z_b = j} N(y_b; U_j, sigma^2 I)``; then S particles are drawn by
    systematic resampling. When k or fewer are left, or the passes are used up, the k heaviest of
    the last generation before are the centres, unless exactly k are left; where there are fewer,
    random points join them.

    Parameters
    ----------
    count : int, S
    record : (positions (m, d), counts (m,)) -> None, called with every generation

    References
    ----------
    Fan and Heller, *k-means: Fighting against Degeneracy in Sequential Monte Carlo with an
    Application to Tracking*, section "Stochastic SMC".
    """
    unique, times = np.unique(
        candidates(points, count, parameters.candidates, rng), axis=0, return_counts=True
    )
    sigma2 = parameters.sigma2 or neighbour_variance(points, k, rng)
    kept, weight = unique, times.astype(float)
    record(unique, times)
    for batch in _batches(points, parameters, rng):
        if len(unique) <= k:
            break
        log_w = log_weights(batch, unique, times, sigma2)
        if log_w.max() == -np.inf:
            continue  # no point of the batch has any weight
        kept, weight = unique, np.exp(log_w - log_w.max())
        drawn, times = np.unique(systematic(weight, count, rng), return_counts=True)
        unique = unique[drawn]
        record(unique, times)
    if len(unique) == k:
        return unique
    heaviest = np.argsort(-weight, kind="stable")[:k]
    return _filled(kept[heaviest[weight[heaviest] > 0]], points, k, rng)


def candidates(points: Points, count: int, kind: str, rng: Generator) -> Array:
    """The first particles (count, d)."""
    n, d = points.x.shape
    if kind == "data":
        return points.rows(rng.choice(n, count, replace=count > n))
    if d > qmc.Sobol.MAXDIM:
        raise ValueError(
            f"candidates='sobol' takes at most {qmc.Sobol.MAXDIM} features, got {d}; "
            "pass candidates='data'"
        )
    low, high = points.x.min(0), points.x.max(0)
    if issparse(points.x):
        low, high = low.toarray().ravel(), high.toarray().ravel()
    # The sequence is balanced at powers of two, so draw the next one and leave the rest.
    sequence = qmc.Sobol(d, rng=rng).random_base2(int(np.ceil(np.log2(count))))[:count]
    return low + sequence * (high - low)


def neighbour_variance(points: Points, k: int, rng: Generator) -> float:
    """Guess ``sigma^2`` from how far the q-th neighbour is, q being half of a cluster's share.

    With ``q = ceil(n / 2k)``: the median over 200 points of ``r_q^2 / (2 median(chi^2_d))``. The
    difference of two points of one cluster has variance ``2 sigma^2`` in each direction, and half
    of the cluster is nearer than the median.
    """
    n, d = points.x.shape
    probes = points.rows(rng.choice(n, min(n, PROBES), replace=False))
    q = min(-(-n // (2 * k)), n - 1)
    everyone = Points.of(probes, np.ones(len(probes)))
    distances = np.maximum(
        everyone.norm[:, None] - 2 * np.asarray(points.x @ probes.T).T + points.norm, 0
    )
    radius = np.median(np.partition(distances, q, 1)[:, q])
    # Repeated points make it zero, and then every likelihood would be 0/0.
    floor = 1e-9 * distances.mean() / d
    return float(max(radius / (2 * chdtri(d, 0.5)), floor)) or 1.0


def _batches(points: Points, parameters: StochasticSMC, rng: Generator) -> Iterator[Points]:
    n = len(points)
    size = parameters.batch_size or -(-n // 10)
    for _ in range(parameters.passes):
        order = rng.permutation(n)
        for start in range(0, n, size):
            yield points.take(order[start : start + size])


def log_weights(batch: Points, unique: Array, times: Array, sigma2: float) -> Array:
    """Logarithm of ``w_j`` (m,) up to a constant, -inf where no point is nearest to j."""
    label, distance = batch.nearest(unique)
    with np.errstate(divide="ignore"):
        log_density = np.log(batch.weight) - distance / (2 * sigma2)
    highest = np.full(len(unique), -np.inf)
    np.maximum.at(highest, label, log_density)
    reached = np.isfinite(highest)
    around = np.where(reached, highest, 0)
    total = np.bincount(label, np.exp(log_density - around[label]), len(unique))
    log_w = np.full(len(unique), -np.inf)
    log_w[reached] = highest[reached] + np.log(total[reached] * times[reached])
    return log_w


def _filled(centres: Array, points: Points, k: int, rng: Generator) -> Array:
    """Up to k centres with random points, different ones as long as there are."""
    lacking = k - len(centres)
    if not lacking:
        return centres
    alive = np.flatnonzero(points.weight > 0)
    chosen = rng.choice(alive, lacking, replace=lacking > len(alive))
    return np.concatenate([centres, points.rows(chosen)])
