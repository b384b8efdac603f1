"""What the tests share: the things that laws hold for, hard cases, and thresholds for z."""

import contextlib
from functools import partial
from statistics import NormalDist
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import covey
import covey.noise
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


def guided(model, n, **options):
    return covey.guided(model, model.optimal_proposal(), n, **options)


def looking_ahead(model, n, **options):
    return covey.auxiliary(model, n, lookahead=model.predictive_log_likelihood, **options)


def starting_large(model, n, **options):
    return covey.bootstrap(model, n, n_initial=2 * n, hold=2, **options)


FILTERS = {
    **{name: partial(covey.bootstrap, resample=scheme) for name, scheme in RESAMPLERS.items()},
    **{
        f"clustered by {allocation}": partial(
            covey.bootstrap, resample=covey.clustered(covey.kmeans(3), allocation=allocation)
        )
        for allocation in ("equal", "sqrt")
    },
    "never": partial(covey.bootstrap, resample=covey.when_ess_below(0, covey.systematic)),
    "nearly always": partial(covey.bootstrap, resample=covey.when_ess_below(1, covey.systematic)),
    "guided": guided,
    "guided, resampled at every step": partial(guided, resample=covey.systematic),
    "auxiliary": covey.auxiliary,
    "auxiliary at every step": partial(covey.auxiliary, resample=covey.multinomial),
    "looking ahead": looking_ahead,
    "cluster filter": partial(covey.cluster_filter, k=3),
    "starting large": starting_large,
    "starting large, dropped at once": partial(covey.bootstrap, n_initial=60, hold=0),
}
"""Builders ``(model, n) -> filter``; those that look ahead ask for a linear-Gaussian model."""
NEED_LINEAR_GAUSSIAN = ("guided", "guided, resampled at every step", "looking ahead")

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


def brute_force(y, F, u, Q, H, R, m0, P0):
    """Laws of a linear-Gaussian model from the joint normal law of all its variables.

    Observations (T, p) with NaN where missing, and matrices for each step or for all. Returns
    ``log p(y_1:t)`` (T,), and means (T, d) and covariances (T, d, d) of ``p(x_t | y_1:t)``.
    """
    steps, (p, d) = len(y), np.shape(H)[-2:]
    F, Q = (np.broadcast_to(matrix, (steps, d, d)) for matrix in (F, Q))
    u = np.broadcast_to(u, (steps, d))
    gains, mean = np.zeros((steps + 1, d, (steps + 1) * d)), np.zeros((steps + 1, d))
    gains[0, :, :d], mean[0] = np.eye(d), m0  # x_t = gains_t @ (x_0 - m0, w_1, ..., w_T) + mean_t
    for t in range(1, steps + 1):
        gains[t] = F[t - 1] @ gains[t - 1]
        gains[t, :, t * d : (t + 1) * d] += np.eye(d)
        mean[t] = F[t - 1] @ mean[t - 1] + u[t - 1]
    noise = np.zeros((steps + 1, d, steps + 1, d))
    for t, covariance in enumerate((P0, *Q)):
        noise[t, :, t] = covariance
    flat = gains[1:].reshape(steps * d, -1)
    of_x = flat @ noise.reshape(len(flat) + d, -1) @ flat.T
    H = np.kron(np.eye(steps), H)
    of_y, across = H @ of_x @ H.T + np.kron(np.eye(steps), R), of_x @ H.T
    x, residual = mean[1:].ravel(), np.ravel(y) - H @ mean[1:].ravel()
    results = []
    for t in range(steps):
        seen = np.flatnonzero(~np.isnan(residual[: (t + 1) * p]))
        now = slice(t * d, (t + 1) * d)
        S, r, C = of_y[np.ix_(seen, seen)], residual[seen], across[now][:, seen]
        log_det = np.linalg.slogdet(S)[1]
        log_evidence = -0.5 * (r @ np.linalg.solve(S, r) + log_det + len(seen) * np.log(2 * np.pi))
        middle = x[now] + C @ np.linalg.solve(S, r)
        results.append((log_evidence, middle, of_x[now, now] - C @ np.linalg.solve(S, C.T)))
    return tuple(np.stack(part) for part in zip(*results, strict=True))


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
        "randint": (
            lambda _, low, high: low,
            lambda _, low, high: (low + high) // 2,
            lambda _, low, high: high - 1,
        ),
    }
    exponential = loaded(
        covey.noise.exponential,
        lambda *_: 0,
        lambda *_: 0.69,
        lambda dtype, *_: -jnp.log(jnp.finfo(dtype).tiny) / 2,
    )
    dice = {name: loaded(getattr(jax.random, name), *bounds) for name, bounds in draws.items()}
    with (
        mock.patch.multiple(jax.random, **dice),
        mock.patch.object(covey.noise, "exponential", exponential),
    ):
        yield
