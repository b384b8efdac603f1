"""k-means inside a compiled filter: seeds and Lloyd steps on a subsample, one pass over all."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index

import jax
import jax.numpy as jnp
from jax import Array, lax

from covey.fusion import apart


@dataclass(frozen=True)
class KMeans:
    """A k-means clusterer; make one with :func:`kmeans`."""

    clusters: int
    iterations: int = 3
    subsample: int | None = 500
    seeding: str = "k-means++"

    def __call__(self, key: Array, features: Array, log_w: Array) -> Array:
        """Label (n,) each row of the features by its nearest centre."""
        features = _floating(features)
        centres, scale = self._fit(key, features)
        return nearest(features, centres, scale)

    def centres(self, key: Array, features: Array) -> Array:
        """Centres (k, q) of the features (n, q)."""
        centres, scale = self._fit(key, _floating(features))
        return centres / scale

    def _fit(self, key: Array, features: Array) -> tuple[Array, Array]:
        """Centres of the scaled features, and the scale."""
        pick, seed = jax.random.split(key)
        points = _subsample(pick, features, self.subsample)
        usable = jnp.isfinite(points).all(1)
        points = jnp.where(usable[:, None], points, 0)
        scale = apart(lambda: _scale(points))
        points = points * scale
        centres = _seed(seed, points, usable, self.clusters, self.seeding)
        steps = lax.fori_loop(
            0, self.iterations, lambda _, centres: _lloyd(points, usable, centres), centres
        )
        return steps, scale


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
    k = _whole("k", k, at_least=1)
    iterations = _whole("iterations", iterations, at_least=0)
    if subsample is not None:
        subsample = _whole("subsample", subsample, at_least=k)
    if seeding not in ("k-means++", "random"):
        raise ValueError(f"seeding must be 'k-means++' or 'random', got {seeding!r}")
    return KMeans(k, iterations, subsample, seeding)


def _whole(name: str, number: int, at_least: int) -> int:
    try:
        whole = index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {number!r}") from None
    if whole < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {whole}; raise it")
    return whole


def nearest(features: Array, centres: Array, scale: Array | float = 1.0) -> Array:
    """Index of the centre nearest to each row times the scale, ties to the lowest: (n,).

    Few dimensions are taken column by column, which vectorises; many go through one matrix
    product. A row that is not finite gets some label.
    """
    k, q = centres.shape
    distance = _by_column if k * q <= 256 else _by_product
    distances = distance(features, centres, scale)
    best, label = next(distances), jnp.zeros(features.shape[0], jnp.int32)
    for j, here in enumerate(distances, 1):
        closer = here < best
        best, label = jnp.where(closer, here, best), jnp.where(closer, j, label)
    return label


def _by_column(features: Array, centres: Array, scale: Array | float) -> Iterator[Array]:
    """Squared distance (n,) to each centre; columns that were scaled beforehand take longer."""
    columns = list(features.T)
    for centre in centres:
        yield sum(
            ((column * scale - centre[m]) ** 2 for m, column in enumerate(columns)),
            start=jnp.zeros(features.shape[0], features.dtype),
        )


def _by_product(features: Array, centres: Array, scale: Array | float) -> Iterator[Array]:
    """Half the squared distance (n,) to each centre, less what is the same for all of them."""
    middle = centres.mean(0)
    products = jnp.matmul(centres - middle, (features * scale - middle).T, precision="highest")
    offsets = ((centres - middle) ** 2).sum(1) / 2
    for offset, product in zip(offsets, products, strict=True):
        yield offset - product


def _floating(features: Array) -> Array:
    return features if jnp.issubdtype(features.dtype, jnp.floating) else features.astype(float)


def _scale(points: Array) -> Array:
    """The power of two that brings the largest entry near one, so that its square is a number.

    By a power of two no entry is rounded.
    """
    _, exponent = jnp.frexp(abs(points).max(initial=0))
    most = jnp.finfo(points.dtype).maxexp - 3
    return jnp.ldexp(jnp.ones((), points.dtype), -exponent.clip(-most, most))


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
        turns = jnp.arange(k) % jnp.maximum(usable.sum(), 1)
        return points[jnp.argsort(clocks)[turns]]

    def draw(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        centres, clocks, weight = state
        rings = jnp.where(weight > 0, clocks / jnp.where(weight > 0, weight, 1), jnp.inf)
        first = rings.min()
        winner = jnp.where(rings <= first, jnp.arange(len(rings)), len(rings)).min()
        clocks = jnp.where(jnp.isfinite(first), clocks - first * weight, clocks)
        clocks = jnp.maximum(clocks, 0)
        # Where no clock rings, all points have a centre already.
        centre = jnp.where(jnp.isfinite(first) | (j == 0), points[winner], centres[0])
        distance = ((points - centre) ** 2).sum(1)
        weight = jnp.minimum(jnp.where(j == 0, distance, weight), distance)
        return centres.at[j].set(centre), clocks, jnp.where(usable, weight, 0)

    start = jnp.zeros((k, points.shape[1]), dtype), clocks, usable.astype(dtype)
    return lax.fori_loop(0, k, draw, start)[0]


def _lloyd(points: Array, usable: Array, centres: Array) -> Array:
    """Move each centre by the mean way to its points; a centre without points stays.

    Ways are short where the points are far from the origin, and so are their errors of rounding.
    """
    label = nearest(points, centres)
    mine = (label == jnp.arange(len(centres))[:, None]) & usable
    count = mine.sum(1)[:, None]
    ways = jnp.matmul(mine.astype(points.dtype), points - centres[label], precision="highest")
    return centres + ways / jnp.maximum(count, 1)
