"""The common task: stochastic volatility, one series, and its exact evidence."""

from typing import Any

import numpy as np

PHI, SIGMA2, BETA = 0.8, 0.9, 0.7
SIGMA = SIGMA2**0.5
STATIONARY = SIGMA / (1 - PHI**2) ** 0.5
STEPS = 50


def series(steps: int = STEPS, seed: int = 1) -> np.ndarray:
    """Observations (steps,) of ``x_t = phi x_{t-1} + sigma eps_t``, ``y_t = beta e^{x_t/2} eta_t``.

    ``x_1`` is drawn from the stationary law. Covey starts one step earlier, from the same law, so
    its ``x_1`` has it too and all libraries estimate the same evidence.
    """
    rng = np.random.default_rng(seed)
    x = STATIONARY * rng.standard_normal()
    y = np.empty(steps)
    for t in range(steps):
        y[t] = BETA * np.exp(x / 2) * rng.standard_normal()
        x = PHI * x + SIGMA * rng.standard_normal()
    return y


def exact_log_evidence(y: np.ndarray, points: int = 2001, width: float = 9.0) -> float:
    """``log p(y_1:T)`` by a filter on a grid of ``width`` stationary deviations to either side.

    The trapezoidal rule on smooth densities that vanish at both ends errs less than rounding does.
    """
    x, step = np.linspace(-width * STATIONARY, width * STATIONARY, points, retstep=True)
    move = _normal_density(x[:, None] - PHI * x, SIGMA) * step
    density = _normal_density(x, STATIONARY)
    log_evidence = 0.0
    for t, obs in enumerate(y):
        density = move @ density if t else density
        density = density * _normal_density(obs, BETA * np.exp(x / 2))
        mass = density.sum() * step
        log_evidence += np.log(mass)
        density /= mass
    return float(log_evidence)


def _normal_density(value: Any, deviation: Any) -> Any:
    return np.exp(-0.5 * (value / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
