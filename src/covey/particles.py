"""A weighted set of particles, and the sums over it that everything else uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
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
        Logarithms of the weights, which add up to one. Change them with :meth:`reweighted`.
    ess : scalar
        Effective sample size ``1 / sum w_i^2``.
    ancestors : (n,) integers
        For each particle, the index of its parent among the particles of the step before.
    log_evidence : scalar
        Logarithm of the estimate of ``p(y_1:t)``.
    log_increment : scalar
        What the last step added to it: ``log p(y_t | y_1:t-1)``.
    lost : scalar
        What rounding has taken from it, to be made up for in the next step.
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
    ess: Array
    ancestors: Array
    log_evidence: Array
    log_increment: Array
    lost: Array
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

    def moments(self) -> tuple[State, State]:
        """Weighted mean and variance of each component of the state."""
        weights = lax.optimization_barrier(self.weights)
        mean = weighted_mean(weights, self.x)
        squares = jax.tree.map(lambda leaf, middle: (leaf - middle) ** 2, self.x, mean)
        return mean, weighted_mean(weights, squares)

    def reweighted(self, log_w: Array) -> Particles:
        """Return the particles with other log-weights (n,), normalised here."""
        log_w, _, ess = normalise(log_w)
        return replace(self, log_w=log_w, ess=ess)

    def select(
        self,
        ancestors: Array,
        log_w: Array | None = None,
        unique: Array | None = None,
        ess: Array | None = None,
    ) -> Particles:
        """Return the particles with these indices.

        Parameters
        ----------
        ancestors : (n,) integers
        log_w : (n,), their normalised log-weights; equal if not given
        unique : integer, the number of different ancestors; counted if not given
        ess : scalar, the effective sample size of the weights; computed if not given
        """
        ancestors = ancestors.astype(jnp.int32)
        size = ancestors.shape[0]
        if log_w is None:
            log_w = equal_log_weights(size, self.log_w.dtype)
            ess = jnp.asarray(size, log_w.dtype)
        elif ess is None:
            ess = 1 / jnp.exp(2 * log_w).sum()
        if unique is None:
            unique = jnp.zeros(self.n, jnp.int32).at[ancestors].set(1).sum()
        return replace(
            self,
            x=jax.tree.map(lambda leaf: leaf[ancestors], self.x),
            log_w=log_w,
            ess=ess,
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
        ess=jnp.asarray(n, dtype),
        ancestors=jnp.arange(n, dtype=jnp.int32),
        log_evidence=jnp.zeros((), dtype),
        log_increment=jnp.zeros((), dtype),
        lost=jnp.zeros((), dtype),
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
    shapes: list[tuple[int, ...]] = [leaf.shape for leaf in jax.tree.leaves(x)]
    if len({shape[:1] for shape in shapes}) != 1 or shapes[0] == ():
        raise ValueError(
            f"every leaf of a state must lead with the number of particles, got shapes {shapes}"
        )
    return shapes[0][0]


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


def normalise(log_w: Array) -> tuple[Array, Array, Array]:
    """Return ``log_w - log sum exp log_w``, ``log sum exp log_w`` and the effective sample size.

    Where all are -inf the first is not a number; :func:`weigh` sees to that.
    """
    top = log_w.max()
    top = jnp.where(jnp.isfinite(top), top, 0)
    relative = lax.optimization_barrier(jnp.exp(log_w - top))
    mass = relative.sum()
    log_sum = top + jnp.log(mass)
    return log_w - log_sum, log_sum, mass * mass / (relative * relative).sum()


def weighted_mean(weights: Array, x: State) -> State:
    """``sum w_i x_i``, leaf by leaf; a component with weight zero does not count, even if NaN."""

    def average(leaf: Array) -> Array:
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        products = weights.reshape(shape) * leaf
        return jnp.where(weights.reshape(shape) > 0, products, 0).sum(0)

    return jax.tree.map(average, x)


def weigh(parents: Particles, x: State, log_factor: Array, absent: Array) -> Particles:
    """Give moved particles their weights: the step that no filter may get wrong.

    ``w_i`` becomes ``w_i exp(log_factor_i)``, normalised; the evidence is multiplied by
    ``sum w_i exp(log_factor_i)``. Particles at a state or a factor that is not a number get no
    weight. If none is left, or a factor is +inf, the weights stay as they were, the observation
    does not count, and ``status`` says so. A particle whose new state is not finite stays where
    it was.

    Parameters
    ----------
    parents : Particles
        Resampled, if that was due, and not yet moved.
    x : state of the moved particles.
    log_factor : (n,)
    absent : bool scalar, whether there was no observation; then nothing changes but ``x``.
    """
    log_factor = jnp.where(absent, 0, log_factor).astype(parents.log_w.dtype)
    x, log_factor = lax.optimization_barrier((x, log_factor))
    log_w, increment, ess = normalise(parents.log_w + log_factor)
    sound = jnp.isfinite(increment) & _bounded(x)
    x, log_w, increment, ess, status = lax.cond(
        sound,
        lambda: (x, log_w, increment, ess, jnp.array(FINE, jnp.int32)),
        lambda: _salvage(parents, x, log_factor),
    )
    increment = jnp.where(absent, 0, increment)
    log_evidence, lost = added(parents.log_evidence, parents.lost, increment)
    return replace(
        parents,
        x=x,
        log_w=log_w,
        ess=ess,
        log_evidence=log_evidence,
        log_increment=increment,
        lost=lost,
        status=status,
    )


def added(total: Array, lost: Array, term: Array) -> tuple[Array, Array]:
    """Add a term to a long sum, and what rounding took from it before (Kahan, 1965).

    In single precision a sum of a hundred thousand terms would else be off by whole units.
    """
    term = term + lost
    after = total + term
    return after, term - (after - total)


def _bounded(x: State) -> Array:
    """Whether all floating components of all states are finite."""
    tops = [
        jnp.abs(leaf).max()
        for leaf in jax.tree.leaves(x)
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.size
    ]
    return jnp.isfinite(jnp.stack(tops)).all() if tops else jnp.array(True)


def _salvage(
    parents: Particles, x: State, log_factor: Array
) -> tuple[State, Array, Array, Array, Array]:
    """States, log-weights, log-increment, sample size and status of a step that went wrong."""
    state_ok = _finite_states(x)
    infinite = jnp.isposinf(log_factor).any()
    not_a_number = jnp.isnan(log_factor).any()
    usable = state_ok & ~jnp.isnan(log_factor) & ~jnp.isposinf(log_factor)
    log_w, increment, ess = normalise(parents.log_w + jnp.where(usable, log_factor, -jnp.inf))
    none_left = ~jnp.isfinite(increment)
    status = jnp.select(
        [~state_ok.all(), infinite, not_a_number, none_left],
        [STATE_NOT_FINITE, INFINITE, NOT_A_NUMBER, ALL_ZERO],
        FINE,
    )
    keep = none_left | infinite
    return (
        jax.tree.map(partial(_chosen, state_ok), x, parents.x),
        jnp.where(keep, parents.log_w, log_w),
        jnp.where(keep, 0, increment),
        jnp.where(keep, parents.ess, ess),
        status.astype(jnp.int32),
    )


def _chosen(first: Array, leaf: Array, other: Array) -> Array:
    """Particle by particle, the one leaf of a state or the other."""
    return jnp.where(first.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, other)


def _finite_states(x: State) -> Array:
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
