"""k-means inside a compiled filter: seeds and Lloyd steps on a subsample, one pass over all."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax


@dataclass(frozen=True)
class KMeans:
    """A k-means clusterer; make one with :func:`kmeans`."""

    clusters: int
    iterations: int = 3
    subsample: int | None = 500
    seeding: str = "k-means++"

    def __call__(self, key: Array, features: Array, log_w: Array) -> Array:
        """Label (n,) each row of the features by its nearest centre."""
        return nearest(features, self.centres(key, features))

    def centres(self, key: Array, features: Array) -> Array:
        """Centres (k, q) of the features (n, q)."""
        pick, seed = jax.random.split(key)
        points = _subsample(pick, features, self.subsample)
        usable = jnp.isfinite(points).all(1)
        points = jnp.where(usable[:, None], points, 0)
        centres = _seed(seed, points, usable, self.clusters, self.seeding)
        return lax.fori_loop(
            0, self.iterations, lambda _, centres: _lloyd(points, usable, centres), centres
        )


def kmeans(
    k: int = 10,
    *,
    iterations: int = 3,
    subsample: int | None = 500,
    seeding: str = "k-means++",
) -> KMeans:
    """k-means on the particles, unweighted, so that light hypotheses get centres too.

    Parameters
    ----------
    k : int, number of clusters (some may stay empty).
    iterations : int, Lloyd steps on the subsample.
    subsample : int or None
        How many particles, evenly spaced in their order, find the centres. None: all of them.
    seeding : "k-means++" or "random"

    Notes
    -----
    k-means++ draws each next centre with probability in proportion to the squared distance to
    the nearest centre so far (Arthur and Vassilvitskii, 2007). The draws are run as one race of
    exponential clocks: the clock that rings first wins, and by their lack of memory the other
    clocks, set back by the time gone, are as good as new for the next draw.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, covey
    >>> x = jnp.array([[0.0], [0.1], [9.0], [9.1]])
    >>> labels = covey.kmeans(2)(jax.random.key(0), x, jnp.zeros(4))
    >>> bool(labels[0] == labels[1]), bool(labels[1] == labels[2])
    (True, False)
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if iterations < 0:
        raise ValueError(f"iterations must not be negative, got {iterations}")
    if subsample is not None and subsample < k:
        raise ValueError(f"subsample must be at least k = {k}, got {subsample}")
    if seeding not in ("k-means++", "random"):
        raise ValueError(f"seeding must be 'k-means++' or 'random', got {seeding!r}")
    return KMeans(k, iterations, subsample, seeding)


def nearest(features: Array, centres: Array) -> Array:
    """Index of the nearest centre of each row, ties to the lowest: (n,).

    Few dimensions are taken column by column, which vectorises; many go through one matrix
    product.
    """
    k, q = centres.shape
    if k * q <= 256:
        columns = [features[:, m] for m in range(q)]

        def distance(j):
            return sum((column - centres[j, m]) ** 2 for m, column in enumerate(columns))

    else:
        middle = centres.mean(0)
        products = (centres - middle) @ (features - middle).T
        offsets = ((centres - middle) ** 2).sum(1) / 2

        def distance(j):
            return offsets[j] - products[j]

    best, label = distance(0), jnp.zeros(features.shape[0], jnp.int32)
    for j in range(1, k):
        here = distance(j)
        closer = here < best
        best, label = jnp.where(closer, here, best), jnp.where(closer, j, label)
    return label


def _subsample(key: Array, features: Array, size: int | None) -> Array:
    """Rows evenly spaced in order, from a random start."""
    n = features.shape[0]
    if size is None or size >= n:
        return features
    start = jax.random.randint(key, (), 0, n)
    steps = jnp.floor(jnp.arange(size) * (n / size)).astype(jnp.int32)
    return features[(start + steps) % n]


def _seed(key: Array, points: Array, usable: Array, k: int, seeding: str) -> Array:
    dtype = points.dtype
    clocks = jax.random.exponential(key, usable.shape, dtype)
    clocks = jnp.where(usable, clocks, jnp.inf)
    if seeding == "random":
        order = jnp.argsort(clocks)[jnp.arange(k) % points.shape[0]]
        return points[order]

    def draw(j, state):
        centres, clocks, weight = state
        rings = jnp.where(weight > 0, clocks / jnp.where(weight > 0, weight, 1), jnp.inf)
        first = rings.min()
        winner = jnp.where(rings <= first, jnp.arange(len(rings)), len(rings)).min()
        clocks = jnp.where(jnp.isfinite(first), clocks - first * weight, clocks)
        clocks = jnp.maximum(clocks, 0)
        centre = points[winner]
        distance = ((points - centre) ** 2).sum(1)
        weight = jnp.minimum(jnp.where(j == 0, distance, weight), distance)
        return centres.at[j].set(centre), clocks, jnp.where(usable, weight, 0)

    start = jnp.zeros((k, points.shape[1]), dtype), clocks, usable.astype(dtype)
    return lax.fori_loop(0, k, draw, start)[0]


def _lloyd(points: Array, usable: Array, centres: Array) -> Array:
    """Move each centre to the mean of its points; a centre without points stays."""
    label = nearest(points, centres)
    mine = (label == jnp.arange(len(centres))[:, None]) & usable
    count = mine.sum(1)[:, None]
    sums = mine.astype(points.dtype) @ points
    return jnp.where(count > 0, sums / jnp.maximum(count, 1), centres)
