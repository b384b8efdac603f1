"""The exact filter of a model with one state component, and how far a sample is from a law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from covey.models import StateSpaceModel


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Grid:
    """Filtering laws on evenly spaced points.

    Attributes
    ----------
    x : (m,), the points
    density : (m,), ``p(x_T | y_1:T)`` at the points
    log_evidence : scalar, ``log p(y_1:T)``
    mean, variance : (T,), moments of ``p(x_t | y_1:t)``
    """

    x: Array
    density: Array
    log_evidence: Array
    mean: Array
    variance: Array


def grid_filter(
    model: StateSpaceModel,
    obs: Array,
    log_initial: Callable[[Array], Array],
    *,
    low: float,
    high: float,
    points: int = 2001,
) -> Grid:
    """Filter by adding up over a dense grid (point masses; Kitagawa, 1987).

    ``p(x_t | y_1:t)`` is in proportion to ``p(y_t | x_t) sum_i h p(x_t | g_i) p(g_i | y_1:t-1)``
    with points ``g_i`` a step h apart. For smooth densities that vanish at both ends this sum
    converges faster than any power of h. The cost is ``T m^2``; works under ``jax.vmap``.

    Parameters
    ----------
    model : StateSpaceModel with one state component, ``log_transition``, and motion that does
        not depend on the observations
    obs : observations, leading with T
    log_initial : function ``(m,) -> (m,)``, the log-density of ``x_0``
    low, high : ends of the grid, beyond which there is no mass worth counting
    points : int, m

    Examples
    --------
    >>> import jax, jax.numpy as jnp, covey
    >>> from covey.reproduce.grid import grid_filter
    >>> model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    >>> _, y = covey.simulate(jax.random.key(0), model, 10)
    >>> exact = grid_filter(model, y, jax.scipy.stats.norm.logpdf, low=-8, high=8, points=301)
    >>> bool(abs(exact.log_evidence - model.kalman(y).log_evidence) < 1e-4)
    True
    """
    if model.log_transition is None:
        raise ValueError(
            "grid_filter needs a model with log_transition(x_prev, x, obs) -> (n,), got none"
        )
    log_transition = model.log_transition
    x = jnp.linspace(low, high, points)
    column, width = x[:, None], (high - low) / (points - 1)
    first = jax.tree.map(lambda leaf: leaf[0], obs)

    def from_everywhere(to: Array) -> Array:
        return log_transition(column, jnp.broadcast_to(to, column.shape), first)

    move = width * jnp.exp(jax.vmap(from_everywhere)(x))

    def step(density: Array, y: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        log_joint = jnp.log(move @ density) + model.log_likelihood(column, y)
        log_increment = jax.nn.logsumexp(log_joint) + jnp.log(width)
        density = jnp.exp(log_joint - log_increment)
        mean = width * (x @ density)
        variance = width * ((x - mean) ** 2 @ density)
        return density, (log_increment, mean, variance)

    density, (increments, mean, variance) = jax.lax.scan(step, jnp.exp(log_initial(x)), obs)
    return Grid(x, density, increments.sum(), mean, variance)


def wasserstein(x: np.ndarray, weights: np.ndarray, grid: np.ndarray, density: np.ndarray) -> float:
    """Wasserstein distance of order 1 between weighted points and a density on a grid.

    ``W1 = integral |F_n(x) - F(x)| dx``, integrated exactly, with F linear between grid points.

    Parameters
    ----------
    x, weights : (n,), the points and their weights, which add up to one
    grid, density : (m,), evenly or unevenly spaced

    Examples
    --------
    >>> import numpy as np
    >>> from covey.reproduce.grid import wasserstein
    >>> float(wasserstein(np.array([0.5]), np.ones(1), np.array([0.0, 1.0]), np.ones(2)))
    0.25
    """
    x, weights, grid, density = (np.asarray(a, np.float64) for a in (x, weights, grid, density))
    pieces = np.diff(grid) * (density[1:] + density[:-1]) / 2
    cdf = np.concatenate([[0], np.cumsum(pieces)]) / pieces.sum()
    order = np.argsort(x)
    x, reached = x[order], np.concatenate([[0], np.cumsum(weights[order])])
    knots = np.sort(np.concatenate([x, grid]))
    sample = reached[np.searchsorted(x, knots[:-1], side="right")]
    exact = np.interp(knots, grid, cdf)
    left, right = sample - exact[:-1], sample - exact[1:]
    # F rises, so the difference falls along a piece; where it changes sign there are two triangles.
    crossing = left * right < 0
    fall = np.where(crossing, left - right, 1)
    height = np.where(crossing, (left**2 + right**2) / fall, np.abs(left + right)) / 2
    return float(height @ np.diff(knots))
