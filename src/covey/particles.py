"""A weighted set of particles, and the sums over it that everything else uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

State = Any
"""An array (n, d) or (n,), or a pytree of arrays that lead with n."""

FINE, ALL_ZERO, NOT_A_NUMBER, INFINITE, STATE_NOT_FINITE = range(5)
"""What went wrong in a step, from nothing to the gravest."""


def flatten_state(x: State) -> Array:
    """Lay the leaves of a state side by side: (n, q)."""
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(x)]
    if len(leaves) == 1:
        return leaves[0]
    return jnp.concatenate([leaf.astype(jnp.result_type(*leaves, float)) for leaf in leaves], 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Particles:
    """A weighted sample of the filtering distribution.

    Attributes
    ----------
    x : array (n, d), or a pytree whose leaves lead with n
        The states.
    log_w : (n,) array
        Logarithms of the weights, which add up to one.
    ancestors : (n,) integers
        For each particle, the index of its parent among the particles of the step before.
    log_evidence : scalar
        Logarithm of the estimate of ``p(y_1:t)``.
    resampled : bool scalar
        Whether the last step began with a resampling.
    unique : integer scalar
        How many different parents the particles have (n where there was no resampling).
    cluster_kl : scalar
        ``D(v || c)`` of the last step's clustered resampling, NaN where there was none.
    status : integer scalar
        0, or what went wrong in the last step (see :class:`covey.FilterError`).
    features : function ``x -> (n, q)``
        What clusterers see of a state.
    """

    x: State
    log_w: Array
    ancestors: Array
    log_evidence: Array
    resampled: Array
    unique: Array
    cluster_kl: Array
    status: Array
    features: Callable[[State], Array] = field(
        default=flatten_state, metadata={"static": True}, repr=False
    )

    @property
    def n(self) -> int:
        """Number of particles."""
        return self.log_w.shape[-1]

    @property
    def weights(self) -> Array:
        """Weights (n,), which add up to one."""
        return jnp.exp(self.log_w)

    @property
    def ess(self) -> Array:
        """Effective sample size ``1 / sum w_i^2``."""
        return effective_sample_size(self.log_w)

    def moments(self) -> tuple[State, State]:
        """Weighted mean and variance of each component of the state."""
        mean = weighted_mean(self.weights, self.x)
        squares = jax.tree.map(lambda leaf, middle: (leaf - middle) ** 2, self.x, mean)
        return mean, weighted_mean(self.weights, squares)

    def select(
        self, ancestors: Array, log_w: Array | None = None, unique: Array | None = None
    ) -> Particles:
        """Return the particles with these indices.

        Parameters
        ----------
        ancestors : (n,) integers
        log_w : (n,), their normalised log-weights; equal if not given
        unique : integer, the number of different ancestors; counted if not given
        """
        ancestors = ancestors.astype(jnp.int32)
        size = ancestors.shape[0]
        if log_w is None:
            log_w = equal_log_weights(size, self.log_w.dtype)
        if unique is None:
            unique = jnp.zeros(self.n, jnp.int32).at[ancestors].set(1).sum()
        return replace(
            self,
            x=jax.tree.map(lambda leaf: leaf[ancestors], self.x),
            log_w=log_w,
            ancestors=ancestors,
            resampled=jnp.array(True),
            unique=unique.astype(jnp.int32),
        )


def equally_weighted(
    x: State, features: Callable[[State], Array] = flatten_state, dtype: Any = None
) -> Particles:
    """Make a sample of equal weights out of states.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from covey.particles import equally_weighted
    >>> float(equally_weighted(jnp.zeros((5, 2))).ess)
    5.0
    """
    n = number_of(x)
    dtype = weight_dtype(x) if dtype is None else dtype
    return Particles(
        x=x,
        log_w=equal_log_weights(n, dtype),
        ancestors=jnp.arange(n, dtype=jnp.int32),
        log_evidence=jnp.zeros((), dtype),
        resampled=jnp.array(False),
        unique=jnp.array(n, jnp.int32),
        cluster_kl=jnp.full((), jnp.nan, dtype),
        status=jnp.array(FINE, jnp.int32),
        features=features,
    )


def equal_log_weights(n: int, dtype: Any) -> Array:
    """``-log n``, n times."""
    return jnp.full(n, -jnp.log(jnp.asarray(n, dtype)), dtype)


def number_of(x: State) -> int:
    """How many particles a state holds; refuses states whose leaves disagree."""
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(x)}
    if len(sizes) != 1 or None in sizes:
        shapes = [leaf.shape for leaf in jax.tree.leaves(x)]
        raise ValueError(
            f"every leaf of a state must lead with the number of particles, got shapes {shapes}"
        )
    return sizes.pop()


def weight_dtype(x: State) -> Any:
    """Precision of the weights: that of the state, or JAX's default where it has no floats."""
    floats = [leaf.dtype for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.result_type(*floats) if floats else jnp.result_type(float)


def checked_number(n: int) -> int:
    """Refuse anything but a positive whole number of particles."""
    try:
        whole = int(n.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"the number of particles must be an integer, got {n!r}") from None
    if whole < 1:
        raise ValueError(f"the number of particles must be at least 1, got {whole}")
    return whole


def normalise(log_w: Array) -> tuple[Array, Array]:
    """Return ``log_w - log sum exp log_w`` and ``log sum exp log_w``.

    Where all are -inf the first is not a number; :func:`weigh` sees to that.
    """
    top = log_w.max()
    top = jnp.where(jnp.isfinite(top), top, 0)
    log_sum = top + jnp.log(total(jnp.exp(log_w - top)))
    return log_w - log_sum, log_sum


def total(values: Array) -> Array:
    """Sum over the particles in pieces: single precision holds for many millions of terms."""
    lanes = 1024
    if values.shape[0] <= lanes:
        return values.sum(0)
    head = values.shape[0] // lanes * lanes
    pieces = values[:head].reshape(-1, lanes, *values.shape[1:])
    return pieces.sum(0).sum(0) + values[head:].sum(0)


def effective_sample_size(log_w: Array) -> Array:
    """``1 / sum w_i^2`` of normalised weights."""
    return 1 / total(jnp.exp(2 * log_w))


def weighted_mean(weights: Array, x: State) -> State:
    """``sum w_i x_i``, leaf by leaf; a component with weight zero does not count, even if NaN."""

    def average(leaf):
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        products = weights.reshape(shape) * leaf
        return total(jnp.where(weights.reshape(shape) > 0, products, 0))

    return jax.tree.map(average, x)


def weigh(parents: Particles, x: State, log_factor: Array, absent: Array) -> Particles:
    """Give moved particles their weights: the step that no filter may get wrong.

    ``w_i`` becomes ``w_i exp(log_factor_i)``, normalised; the evidence is multiplied by
    ``sum w_i exp(log_factor_i)``. Particles at a state or a factor that is not a number get no
    weight. If none is left, or a factor is +inf, the weights stay as they were, the observation
    does not count, and ``status`` says so.

    Parameters
    ----------
    parents : Particles
        Resampled, if that was due, and not yet moved.
    x : state of the moved particles.
    log_factor : (n,)
    absent : bool scalar, whether there was no observation; then nothing changes but ``x``.
    """
    dtype = parents.log_w.dtype
    state_ok = _all_finite(x)
    log_factor = jnp.where(absent, 0, log_factor).astype(dtype)
    not_a_number = jnp.isnan(log_factor).any()
    infinite = jnp.isposinf(log_factor).any()
    usable = jnp.where(jnp.isnan(log_factor) | ~state_ok, -jnp.inf, log_factor)
    usable = jnp.where(jnp.isposinf(usable), -jnp.inf, usable)
    log_w, increment = normalise(parents.log_w + usable)
    none_left = ~jnp.isfinite(increment)
    status = jnp.select(
        [~state_ok.all(), infinite, not_a_number, none_left],
        [STATE_NOT_FINITE, INFINITE, NOT_A_NUMBER, ALL_ZERO],
        FINE,
    )
    keep = none_left | infinite
    return replace(
        parents,
        x=x,
        log_w=jnp.where(keep, parents.log_w, log_w),
        log_evidence=parents.log_evidence + jnp.where(keep, 0, increment),
        status=status.astype(jnp.int32),
    )


def _all_finite(x: State) -> Array:
    """For each particle, whether every floating component of its state is finite."""
    fine = jnp.ones(number_of(x), bool)
    for leaf in jax.tree.leaves(x):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            fine &= jnp.isfinite(leaf.reshape(leaf.shape[0], -1)).all(1)
    return fine


def begin_step(particles: Particles) -> Particles:
    """Forget what the last step reported: nobody resampled, everybody their own parent."""
    n = particles.n
    return replace(
        particles,
        ancestors=jnp.arange(n, dtype=jnp.int32),
        resampled=jnp.array(False),
        unique=jnp.array(n, jnp.int32),
        cluster_kl=jnp.full_like(particles.cluster_kl, jnp.nan),
        status=jnp.array(FINE, jnp.int32),
    )


def either(condition: Array, then: Callable[[], Particles], otherwise: Particles) -> Particles:
    """``then()`` where the condition holds, computed only if it does."""
    return lax.cond(condition, then, lambda: otherwise)
