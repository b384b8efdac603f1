"""Resampling within clusters: the paper's weight adjustment, for any clusterer and scheme."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from covey.fusion import apart, written_out
from covey.particles import Particles, checked_number
from covey.resampling import schemes
from covey.resampling.line import (
    Strata,
    by_lane,
    in_lanes,
    sum_up,
)
from covey.resampling.schemes import Scheme

Allocation = Callable[[Array, Array, int], Array]
"""A function ``(v, counts, n) -> shares`` of masses (K,), sizes (K,) and the number to draw."""

ALLOCATIONS: dict[str, Allocation] = {
    "count": lambda v, counts, n: counts,
    "mass": lambda v, counts, n: v,
    "equal": lambda v, counts, n: jnp.ones_like(v),
    "sqrt": lambda v, counts, n: jnp.sqrt(v),
}
"""Shares of the offspring, up to a factor, from masses ``v``, sizes ``counts`` and ``n``."""


@dataclass(frozen=True)
class Clustered:
    """A resampler that draws within clusters; make one with :func:`clustered`."""

    clusterer: Callable[[Array, Array, Array], Array]
    clusters: int
    allocation: Allocation
    within: Scheme

    def __call__(self, key: Array, particles: Particles, n: int) -> Particles:
        """Draw n offspring within the clusters; each cluster keeps its mass."""
        n = checked_number(n)
        find, draw = jax.random.split(key)
        log_w = in_lanes(particles.log_w, -jnp.inf)
        labels = in_lanes(self._labels(find, particles))
        log_v, counts, strata = _tally(log_w, labels, self.clusters, particles.n)
        if self.clusters > n:
            # With more living clusters than offspring one would vanish: draw from all as one.
            merge = (log_v > -jnp.inf).sum() > n
            labels = jnp.where(merge, 0, labels)
            log_v, counts, strata = _tally(log_w, labels, self.clusters, particles.n)
        number = allocate(self.allocation(jnp.exp(log_v), counts, n), log_v > -jnp.inf, n)
        drawn = self.within.draw(draw, strata, number, n)
        log_each = log_v - jnp.log(jnp.maximum(number, 1).astype(log_v.dtype))
        table, of = written_out(log_each), labels.reshape(-1)
        log_w = apart(lambda: table[of[drawn.ancestors]])
        squares = jnp.where(number > 0, jnp.exp(log_v + log_each), 0).sum()
        offspring = particles.select(drawn.ancestors, log_w, drawn.unique, 1 / squares)
        return replace(offspring, cluster_kl=_divergence(log_v, number, n))

    def _labels(self, key: Array, particles: Particles) -> Array:
        seen = particles.features(particles.x)
        labels = jnp.asarray(self.clusterer(key, seen, particles.log_w))
        if labels.shape != (particles.n,) or not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError(
                f"a clusterer must return integer labels of shape ({particles.n},), "
                f"got {labels.dtype}{list(labels.shape)}"
            )
        small = jnp.int8 if self.clusters <= 127 else jnp.int32  # a quarter of the memory to pass
        return jnp.clip(labels.astype(jnp.int32), 0, self.clusters - 1).astype(small)


def clustered(
    clusterer: Callable[[Array, Array, Array], Array],
    *,
    allocation: str | Allocation = "count",
    within: str | Scheme = "multinomial",
    clusters: int | None = None,
) -> Clustered:
    """Resample within clusters of particles and keep each cluster's mass exactly.

    With masses ``v_j`` and ``n_j`` offspring drawn within cluster j, each offspring weighs
    ``v_j / n_j``: the expectation of every function is unchanged (the paper's Proposition 1) and
    no living cluster is ever lost. Clusters without mass get no offspring.

    Parameters
    ----------
    clusterer : function ``(key, features (n, q), log_w (n,)) -> labels (n,)``
        For instance :func:`covey.kmeans`.
    allocation : "count", "mass", "equal", "sqrt" or function ``(v, counts, n) -> shares``
        How the offspring are dealt out: by cluster size (the paper), by mass, alike, or by the
        root of the mass; a function gets masses (K,), sizes (K,) and n, and returns shares up to
        a factor. Every living cluster gets at least one.
    within : name of a scheme, or a scheme
    clusters : int
        Number of labels the clusterer may use; not needed where it says so itself.

    Examples
    --------
    >>> import covey
    >>> resample = covey.clustered(covey.kmeans(10), allocation="sqrt", within="systematic")
    >>> resample.clusters
    10
    """
    clusters = getattr(clusterer, "clusters", None) if clusters is None else clusters
    if clusters is None:
        raise ValueError(
            "clustered cannot tell how many clusters there may be; pass clusters=..., one more "
            "than the highest label"
        )
    return Clustered(
        clusterer, checked_number(clusters), _allocation(allocation), scheme_named(within)
    )


def _allocation(allocation: str | Allocation) -> Allocation:
    if callable(allocation):
        return allocation
    if allocation not in ALLOCATIONS:
        raise ValueError(
            f"allocation must be one of {[*ALLOCATIONS]} or a function, got {allocation!r}"
        )
    return ALLOCATIONS[allocation]


def scheme_named(scheme: Any) -> Scheme:
    """Return the scheme, or the one of that name."""
    if isinstance(scheme, Scheme):
        return scheme
    known = {s.name: s for s in vars(schemes).values() if isinstance(s, Scheme)}
    if scheme not in known:
        raise ValueError(f"a scheme must be one of {[*known]} or a Scheme, got {scheme!r}")
    return known[scheme]


def _tally(log_w: Array, labels: Array, clusters: int, size: int) -> tuple[Array, Array, Strata]:
    """Log-masses (K,), sizes (K,), and the weights, added up.

    Where a cluster is so faint that its weights would vanish beside the heaviest, each weight is
    taken relative to the heaviest of its own cluster: a mass of 1e-300 is as good as one of 1.
    """

    def relative_to(top: Array) -> tuple[Array, Strata]:
        strata = sum_up(jnp.exp(log_w - top), labels, clusters)
        return jnp.log(strata.mass()), strata

    best = log_w.max()
    best = apart(lambda: jnp.where(jnp.isfinite(best), best, 0))
    log_v, strata = relative_to(best)
    counts = strata.sizes.sum(0) - jnp.zeros(clusters, jnp.int32).at[0].set(log_w.size - size)
    faint = ((log_v < jnp.log(jnp.finfo(log_v.dtype).tiny) + 27) & (counts > 0)).any()

    def one_by_one() -> tuple[Array, Strata]:
        top = by_lane(jnp.maximum, -jnp.inf, log_w, labels, clusters).max(0)
        top = jnp.where(jnp.isfinite(top), top, 0)
        log_v, strata = relative_to(written_out(top)[labels])
        return top + log_v, strata

    log_v, strata = lax.cond(faint, one_by_one, lambda: (best + log_v, strata))
    return log_v, counts, strata


def allocate(shares: Array, living: Array, n: int) -> Array:
    """Deal out n offspring: at least one to each living cluster, the rest by largest remainder.

    Parameters
    ----------
    shares : (K,) non-negative, up to a factor.
    living : (K,) bools, at most n of them true; the others get nothing.
    n : int

    Returns
    -------
    (K,) integers that add up to n. Shares that are whole numbers of offspring are met exactly.
    """
    shares = jnp.where(living, jnp.asarray(shares, jnp.result_type(float)), 0)
    shares = jnp.where(shares.sum() > 0, shares, living)
    spare = n - living.sum()
    wanted = jnp.maximum(n * shares / shares.sum() - 1, 0)
    wanted = spare * wanted / jnp.where(wanted.sum() > 0, wanted.sum(), 1)
    whole = jnp.floor(wanted)
    left = spare - whole.sum().astype(jnp.int32)
    rest = jnp.where(living, wanted - whole, -1)
    index = jnp.arange(len(rest))
    ahead = (rest[None] > rest[:, None]) | (
        (rest[None] == rest[:, None]) & (index < index[:, None])
    )
    whole = whole.astype(jnp.int32) + (ahead.sum(1) < left) + living
    return whole.astype(jnp.int32)


def _divergence(log_v: Array, number: Array, n: int) -> Array:
    """``D(v || c) = sum_j v_j log(v_j n / n_j)``: the paper's Eq. (KL)."""
    v = jnp.exp(log_v)
    # Whole numbers must become floats first: JAX takes the logarithm of int32 in single precision.
    share = jnp.maximum(number, 1).astype(log_v.dtype) / n
    return jnp.where(v > 0, v * jnp.where(v > 0, log_v - jnp.log(share), 0), 0).sum()
