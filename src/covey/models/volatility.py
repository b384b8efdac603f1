"""Stochastic volatility, as in the paper."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from covey.models.base import StateSpaceModel
from covey.noise import normal


class StochasticVolatility(StateSpaceModel):
    """Log-volatility of returns as a first-order autoregression.

    ``x_t = phi x_{t-1} + sigma eps_t``, ``y_t = beta exp(x_t / 2) eta_t`` with standard normal
    ``eps_t`` and ``eta_t``, and ``x_0`` from the stationary law ``N(0, sigma^2 / (1 - phi^2))``
    (Durbin and Koopman, 2000). States have shape (n, 1), observations are scalars.

    Parameters
    ----------
    phi, sigma2, beta : floats or JAX scalars, ``|phi| < 1``.

    Examples
    --------
    >>> import covey
    >>> covey.models.StochasticVolatility().sigma2
    0.9
    """

    phi: float | Array
    sigma2: float | Array
    beta: float | Array

    def __init__(
        self,
        phi: float | Array = 0.8,
        sigma2: float | Array = 0.9,
        beta: float | Array = 0.7,
    ):
        _check_ranges(phi, sigma2, beta)
        for name, value in (("phi", phi), ("sigma2", sigma2), ("beta", beta)):
            object.__setattr__(self, name, value)
        super().__init__(
            self._initial,
            self._transition,
            self._log_likelihood,
            log_transition=self._log_transition,
            observe=self._observe,
        )

    def stationary_variance(self) -> float | Array:
        """``sigma^2 / (1 - phi^2)``."""
        return self.sigma2 / (1 - self.phi**2)

    def _initial(self, key: Array, n: int) -> Array:
        return jnp.sqrt(self.stationary_variance()) * normal(key, (n, 1))

    def _transition(self, key: Array, x: Array, obs: Array) -> Array:
        noise = normal(key, x.shape, x.dtype)
        return (self.phi * x + jnp.sqrt(jnp.asarray(self.sigma2, x.dtype)) * noise).astype(x.dtype)

    def _log_likelihood(self, x: Array, obs: Array) -> Array:
        deviation = obs / self.beta * jnp.exp(-x[:, 0] / 2)
        return -0.5 * (deviation**2 + x[:, 0] + jnp.log(2 * jnp.pi * self.beta**2))

    def _log_transition(self, x_prev: Array, x: Array, obs: Array) -> Array:
        deviation = (x - self.phi * x_prev)[:, 0]
        return -0.5 * (deviation**2 / self.sigma2 + jnp.log(2 * jnp.pi * self.sigma2))

    def _observe(self, key: Array, x: Array, obs: Array) -> Array:
        return self.beta * jnp.exp(x[:, 0] / 2) * normal(key, x.shape[:1], x.dtype)


def _check_ranges(phi: float | Array, sigma2: float | Array, beta: float | Array) -> None:
    rules: dict[str, tuple[float | Array, Callable[[float], bool]]] = {
        "phi must lie in (-1, 1)": (phi, lambda v: abs(v) < 1),
        "sigma2 must be positive": (sigma2, lambda v: v > 0),
        "beta must be positive": (beta, lambda v: v > 0),
    }
    for rule, (value, holds) in rules.items():
        if isinstance(value, int | float | np.number) and not holds(value):
            raise ValueError(f"{rule}, got {value}")
