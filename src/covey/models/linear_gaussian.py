"""The linear-Gaussian model, and the Kalman filter that is exact for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from covey.models.base import Proposal, StateSpaceModel, observed_array
from covey.noise import normal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kalman:
    """Exact filtering laws: what a particle filter should come close to.

    Attributes
    ----------
    log_evidence : scalar, ``log p(y_1:T)``
    log_increments : (T,), ``log p(y_t | y_1:t-1)``
    mean : (T, d), means of ``p(x_t | y_1:t)``
    covariance : (T, d, d)
    """

    log_evidence: Array
    log_increments: Array
    mean: Array
    covariance: Array


class LinearGaussian(StateSpaceModel):
    """``x_t = F x_{t-1} + u + N(0, Q)``, ``y_t = H x_t + N(0, R)``, ``x_0 ~ N(m0, P0)``.

    Scalars stand for 1 x 1 matrices. NaN components of an observation (p,) are left out.

    Parameters
    ----------
    transition_matrix : (d, d), F
    transition_covariance : (d, d), Q; may be singular
    observation_matrix : (p, d), H
    observation_covariance : (p, p), R
    initial_mean : (d,), m0; default zero
    initial_covariance : (d, d), P0; default the identity
    offset : (d,), u; default zero

    Examples
    --------
    >>> import jax, covey
    >>> model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    >>> x, y = covey.simulate(jax.random.key(0), model, 20)
    >>> model.kalman(y).mean.shape
    (20, 1)
    """

    transition_matrix: Array
    transition_covariance: Array
    observation_matrix: Array
    observation_covariance: Array
    initial_mean: Array
    initial_covariance: Array
    offset: Array

    def __init__(
        self,
        transition_matrix: Array | float,
        transition_covariance: Array | float,
        observation_matrix: Array | float,
        observation_covariance: Array | float,
        *,
        initial_mean: Array | float | None = None,
        initial_covariance: Array | float | None = None,
        offset: Array | float | None = None,
    ):
        F = _matrix(transition_matrix, "transition_matrix")
        H = _matrix(observation_matrix, "observation_matrix")
        d, p = F.shape[0], H.shape[0]
        m0 = jnp.zeros(d) if initial_mean is None else jnp.atleast_1d(jnp.asarray(initial_mean))
        P0 = jnp.eye(d) if initial_covariance is None else initial_covariance
        u = jnp.zeros(d) if offset is None else jnp.atleast_1d(jnp.asarray(offset))
        parts = {
            "transition_matrix": (F, (d, d)),
            "transition_covariance": (
                _matrix(transition_covariance, "transition_covariance"),
                (d, d),
            ),
            "observation_matrix": (H, (p, d)),
            "observation_covariance": (
                _matrix(observation_covariance, "observation_covariance"),
                (p, p),
            ),
            "initial_mean": (m0, (d,)),
            "initial_covariance": (_matrix(P0, "initial_covariance"), (d, d)),
            "offset": (u, (d,)),
        }
        dtype = jnp.result_type(float, *(value.dtype for value, _ in parts.values()))
        for name, (value, shape) in parts.items():
            if value.shape != shape:
                raise ValueError(f"{name} must have shape {shape}, got {value.shape}")
            object.__setattr__(self, name, value.astype(dtype))
        super().__init__(
            self._initial,
            self._transition,
            self._log_likelihood,
            log_transition=self._log_transition,
            observe=self._observe,
        )

    def kalman(self, obs: Array) -> Kalman:
        """Filter exactly: observations (T, p), or (T,) where p is 1, NaN where missing.

        The covariance is updated in Joseph's form, which stays symmetric and positive.
        """
        F, Q = self.transition_matrix, self.transition_covariance
        identity = jnp.eye(F.shape[0], dtype=F.dtype)

        def step(state: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Any]:
            mean, cov = state
            mean, cov = F @ mean + self.offset, F @ cov @ F.T + Q
            residual, H, R, missing = self._observed(y)
            residual = jnp.where(missing, 0, residual - H @ mean)
            S = H @ cov @ H.T + R
            gain = jnp.linalg.solve(S, H @ cov).T
            log_increment = _log_normal(residual[None], jnp.linalg.cholesky(S))[0]
            log_increment += 0.5 * jnp.log(2 * jnp.pi) * missing.sum()
            mean = mean + gain @ residual
            left = identity - gain @ H
            cov = left @ cov @ left.T + gain @ R @ gain.T
            return (mean, cov), (log_increment, mean, cov)

        start = self.initial_mean, self.initial_covariance
        rows = observed_array(obs).astype(F.dtype)
        rows = rows[:, None] if rows.ndim == 1 else rows
        _, (increments, means, covs) = jax.lax.scan(step, start, rows)
        return Kalman(increments.sum(), increments, means, covs)

    def optimal_proposal(self) -> Proposal:
        """``p(x_t | x_{t-1}, y_t)``, which makes a guided filter's weights least uneven.

        Needs a positive definite Q.
        """

        def moments(x_prev: Array, obs: Array) -> tuple[Array, Array]:
            y, H, R, missing = self._observed(obs)
            Q = self.transition_covariance
            gain = jnp.linalg.solve(H @ Q @ H.T + R, H @ Q).T
            ahead = x_prev @ self.transition_matrix.T + self.offset
            residual = jnp.where(missing, 0, y - ahead @ H.T)
            return ahead + residual @ gain.T, Q - gain @ H @ Q

        def sample(key: Array, x_prev: Array, obs: Array) -> Array:
            mean, cov = moments(x_prev, obs)
            return mean + normal(key, mean.shape, mean.dtype) @ _root(cov).T

        def log_density(x_prev: Array, x: Array, obs: Array) -> Array:
            mean, cov = moments(x_prev, obs)
            return _log_normal(x - mean, jnp.linalg.cholesky(cov))

        return Proposal(sample, log_density)

    def predictive_log_likelihood(self, x_prev: Array, obs: Array) -> Array:
        """``log p(y_t | x_{t-1})``: (n,), the best lookahead for an auxiliary filter."""
        y, H, R, missing = self._observed(obs)
        ahead = x_prev @ self.transition_matrix.T + self.offset
        residual = jnp.where(missing, 0, y - ahead @ H.T)
        S = H @ self.transition_covariance @ H.T + R
        spare = 0.5 * jnp.log(2 * jnp.pi) * missing.sum()
        return _log_normal(residual, jnp.linalg.cholesky(S)) + spare

    def _observed(self, y: Array) -> tuple[Array, Array, Array, Array]:
        """Observation, H and R with the missing components turned into independent N(0, 1)."""
        p = self.observation_matrix.shape[0]
        y = jnp.asarray(y, self.observation_matrix.dtype)
        if y.size != p:
            raise ValueError(
                f"an observation of this model must have shape ({p},), got {y.shape}; "
                "observation_matrix has one row for each component"
            )
        y = y.reshape(-1)
        missing = jnp.isnan(y)
        H = jnp.where(missing[:, None], 0, self.observation_matrix)
        cross = missing[:, None] | missing[None, :]
        R = jnp.where(cross, jnp.eye(y.shape[0], dtype=y.dtype), self.observation_covariance)
        return jnp.where(missing, 0, y), H, R, missing

    def _initial(self, key: Array, n: int) -> Array:
        d = self.initial_mean.shape[0]
        noise = normal(key, (n, d), self.initial_mean.dtype)
        return self.initial_mean + noise @ _root(self.initial_covariance).T

    def _transition(self, key: Array, x: Array, obs: Array) -> Array:
        noise = normal(key, x.shape, x.dtype)
        return (
            x @ self.transition_matrix.T + self.offset + noise @ _root(self.transition_covariance).T
        )

    def _log_likelihood(self, x: Array, obs: Array) -> Array:
        y, H, R, missing = self._observed(obs)
        residual = jnp.where(missing, 0, y - x @ H.T)
        spare = 0.5 * jnp.log(2 * jnp.pi) * missing.sum()
        return _log_normal(residual, jnp.linalg.cholesky(R)) + spare

    def _log_transition(self, x_prev: Array, x: Array, obs: Array) -> Array:
        residual = x - x_prev @ self.transition_matrix.T - self.offset
        return _log_normal(residual, jnp.linalg.cholesky(self.transition_covariance))

    def _observe(self, key: Array, x: Array, obs: Array) -> Array:
        p = self.observation_matrix.shape[0]
        noise = normal(key, (x.shape[0], p), x.dtype)
        return x @ self.observation_matrix.T + noise @ _root(self.observation_covariance).T


def _matrix(value: Array | float, name: str) -> Array:
    matrix = jnp.atleast_2d(jnp.asarray(value, jnp.result_type(float)))
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be a matrix or a scalar, got shape {matrix.shape}")
    return matrix


def _root(covariance: Array) -> Array:
    """A square root, also of a singular covariance."""
    values, vectors = jnp.linalg.eigh(covariance)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))


def _log_normal(residual: Array, cholesky: Array) -> Array:
    """Log-density of rows (n, p) under N(0, L L')."""
    scaled = jax.scipy.linalg.solve_triangular(cholesky, residual.T, lower=True)
    log_det = jnp.log(jnp.diagonal(cholesky)).sum()
    return -0.5 * (scaled**2).sum(0) - log_det - 0.5 * len(cholesky) * jnp.log(2 * jnp.pi)
