"""What the tests share: the things that laws hold for, hard cases, and thresholds for z."""

import contextlib
from statistics import NormalDist
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import covey
from covey.particles import equally_weighted

SCHEMES = {
    scheme.name: scheme
    for scheme in (
        covey.multinomial,
        covey.stratified,
        covey.systematic,
        covey.residual,
        covey.ssp,
        covey.killing,
    )
}
RESAMPLERS = {
    **SCHEMES,
    "when due": covey.when_ess_below(0.5, covey.systematic),
    "clustered": covey.clustered(covey.kmeans(3)),
    "clustered by mass": covey.clustered(covey.kmeans(3), allocation="mass", within="systematic"),
}
CLUSTERERS = {
    "k-means++": covey.kmeans(4),
    "k-means++ on all": covey.kmeans(4, subsample=None),
    "random k-means": covey.kmeans(4, seeding="random"),
}

FALSE_ALARM = 1e-4
"""Chance that a statistical test fails although the law holds, were its seed drawn anew."""

QUICK = {"xla_backend_optimization_level": 0}
"""For small shapes, where compiling costs more than computing."""

HONEST, LOWEST, HIGHEST, EXTREME = range(4)


def z_threshold(comparisons: int, false_alarm: float = FALSE_ALARM) -> float:
    """|z| that any of so many comparisons exceeds with that chance at most (Bonferroni)."""
    return NormalDist().inv_cdf(1 - false_alarm / (2 * comparisons))


def precision(dtype: str):
    """Work in this precision inside a ``with`` block."""
    return jax.enable_x64(dtype == "float64")


def cloud(log_w, x=None) -> covey.Particles:
    """Particles with these log-weights, not yet normalised; their states are their indices."""
    log_w = jnp.asarray(log_w)
    x = jnp.arange(log_w.shape[0], dtype=log_w.dtype) if x is None else x
    return equally_weighted(x, dtype=log_w.dtype).reweighted(log_w)


def hard_log_weights(n: int) -> dict[str, np.ndarray]:
    """Log-weights of n particles at which resamplers have gone wrong."""
    rng = np.random.default_rng(n)
    index = np.arange(n)
    usual = 2 * rng.normal(size=n)

    def only(kept):
        return np.where(kept, usual, -np.inf)

    return {
        "equal": np.zeros(n),
        "usual": usual,
        "30 orders": rng.permutation(np.linspace(-30 * np.log(10), 0, n)),
        "30 orders, sorted": np.linspace(-30 * np.log(10), 0, n),
        "one heavy": np.where(index == n // 3, 0, -12 * np.log(10)),
        "zeros first": only(index >= n // 2),
        "zeros last": only(index <= n // 2),
        "every third": only(index % 3 == n % 3 if n > 2 else index == 0),
        "only the first": only(index == 0),
        "only the last": only(index == n - 1),
        "only one within": only(index == n // 2),
    }


@contextlib.contextmanager
def loaded_dice(luck):
    """Make JAX's draws honest, or their lowest, or their highest, or one of both at random.

    ``luck`` may be traced, so that one compiled function serves all four.
    """

    def loaded(draw, lowest, middle, highest):
        def drawn(*arguments, **options):
            honest = draw(*arguments, **options)
            low, middling, high = (
                jnp.asarray(bound(honest.dtype, *arguments[2:]), honest.dtype)
                for bound in (lowest, middle, highest)
            )
            either = jnp.where(honest < middling, low, high)
            kinds = [luck == LOWEST, luck == HIGHEST, luck == EXTREME]
            return jnp.select(kinds, [low, high, either], honest)

        return drawn

    draws = {
        "uniform": (lambda *_: 0, lambda *_: 0.5, lambda dtype, *_: 1 - jnp.finfo(dtype).eps),
        "exponential": (
            lambda *_: 0,
            lambda *_: 0.69,
            lambda dtype, *_: -jnp.log(jnp.finfo(dtype).eps),
        ),
        "randint": (
            lambda _, low, high: low,
            lambda _, low, high: (low + high) // 2,
            lambda _, low, high: high - 1,
        ),
    }
    with mock.patch.multiple(
        jax.random,
        **{name: loaded(getattr(jax.random, name), *bounds) for name, bounds in draws.items()},
    ):
        yield
