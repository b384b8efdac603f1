"""The same filter written with other libraries, each in the way that is fastest for it."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.problem import BETA, PHI, SIGMA, STATIONARY

Call = Callable[[], float]
"""A run of a filter over the series; returns the log-evidence."""


def installed(name: str) -> Any:
    """The library, or None."""
    return import_module(name) if find_spec(name) else None


def covey_call(filter: Any, y: np.ndarray, keys: int = 1000) -> Call:
    """Covey, with a new key at every call until there have been so many."""
    jax, covey = import_module("jax"), import_module("covey")
    key_of: Iterator[Any] = cycle(list(jax.random.split(jax.random.key(0), keys)))
    obs = jax.numpy.asarray(y)

    def call() -> float:
        return float(covey.run(next(key_of), filter, obs).log_evidence)

    return call


def particles_model(y: np.ndarray, *, lean: bool = False) -> Any:
    """The bootstrap formalism of `particles`: with its distributions, or with bare NumPy."""
    models = import_module("particles.state_space_models")
    laws = import_module("particles.distributions")
    state_space_model: Any = models.StateSpaceModel
    feynman_kac: Any = import_module("particles").FeynmanKac

    class Volatility(state_space_model):
        def PX0(self) -> Any:  # noqa: N802
            return laws.Normal(scale=STATIONARY)

        def PX(self, t: int, xp: Any) -> Any:  # noqa: N802
            return laws.Normal(loc=PHI * xp, scale=SIGMA)

        def PY(self, t: int, xp: Any, x: Any) -> Any:  # noqa: N802
            return laws.Normal(scale=BETA * np.exp(x / 2))

    class LeanVolatility(feynman_kac):
        def M0(self, N: int) -> Any:
            return STATIONARY * np.random.standard_normal(N)

        def M(self, t: int, xp: Any) -> Any:
            return PHI * xp + SIGMA * np.random.standard_normal(len(xp))

        def logG(self, t: int, xp: Any, x: Any) -> Any:  # noqa: N802
            return log_likelihood(x, y[t], np.empty_like(x))

    if lean:
        return LeanVolatility(len(y))
    return models.Bootstrap(ssm=Volatility(), data=y)


def particles_call(y: np.ndarray, n: int, *, moments: bool = False, lean: bool = False) -> Call:
    """`particles`: systematic resampling below half the particles."""
    particles = import_module("particles")
    collect = [import_module("particles.collectors").Moments()] if moments else None
    model = particles_model(y, lean=lean)

    def call() -> float:
        smc = particles.SMC(fk=model, N=n, resampling="systematic", ESSrmin=0.5, collect=collect)
        smc.run()
        return float(smc.logLt)

    return call


def cuthbert_call(y: np.ndarray, n: int, keys: int = 1000) -> Call:
    """`cuthbert`: its particle filter, compiled, keeping only summaries of each step.

    Its own `filter` loop returns all particles of all steps, which costs time and memory that
    the others do not spend, so the steps are chained here with the same functions.
    """
    jax = import_module("jax")
    jnp = jax.numpy
    smc = import_module("cuthbert.smc.particle_filter")
    resampling = import_module("cuthbertlib.resampling")
    adaptive = import_module("cuthbertlib.resampling.adaptive")

    def log_potential(x_prev: Any, x: Any, obs: Any) -> Any:
        return -0.5 * ((obs / BETA) ** 2 * jnp.exp(-x) + x + jnp.log(2 * jnp.pi * BETA**2))

    filter = smc.build_filter(
        lambda key: STATIONARY * jax.random.normal(key),
        lambda key, x, obs: PHI * x + SIGMA * jax.random.normal(key),
        log_potential,
        n,
        adaptive.ess_decorator(resampling.systematic.resampling, 0.5),
    )
    obs = jnp.asarray(y)

    @jax.jit
    def run(key: Any) -> Any:
        first, rest = jax.random.split(key)

        def step(state: Any, inputs: Any) -> Any:
            record, key = inputs
            state = filter.filter_combine(state, filter.filter_prepare(record, key=key))
            weights = jax.nn.softmax(state.log_weights)
            mean = weights @ state.particles
            return state, (mean, weights @ (state.particles - mean) ** 2)

        start = filter.init_prepare(key=first)._replace(model_inputs=obs[0])
        state, moments = jax.lax.scan(step, start, (obs, jax.random.split(rest, len(obs))))
        return state.log_normalizing_constant, moments

    key_of: Iterator[Any] = cycle(list(jax.random.split(jax.random.key(0), keys)))
    return lambda: float(jax.block_until_ready(run(next(key_of)))[0])


def numpy_call(y: np.ndarray, n: int, dtype: Any) -> Call:
    """A bootstrap filter by hand: in place, and without a search."""
    rng = np.random.Generator(np.random.SFC64(0))
    x = np.empty(n, dtype)
    log_w, w, spare = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    running = np.empty(n)

    def call() -> float:
        rng.standard_normal(out=x, dtype=dtype)
        np.multiply(x, STATIONARY, out=x)
        log_w.fill(-np.log(n))
        log_evidence, ess, moments = 0.0, float(n), []
        for t, obs in enumerate(y):
            if ess < n / 2:
                x[:] = np.repeat(x, _systematic_offspring(rng, w, running))
                log_w.fill(-np.log(n))
            if t:
                rng.standard_normal(out=spare, dtype=dtype)
                np.multiply(x, PHI, out=x)
                np.multiply(spare, SIGMA, out=spare)
                np.add(x, spare, out=x)
            np.add(log_w, log_likelihood(x, obs, spare), out=log_w)
            top = log_w.max()
            np.exp(np.subtract(log_w, top, out=w), out=w)
            mass = w.sum()
            increment = top + np.log(mass)
            np.subtract(log_w, increment, out=log_w)
            np.divide(w, mass, out=w)
            log_evidence += float(increment)
            ess = 1 / float(w @ w)
            mean = w @ x
            np.square(np.subtract(x, mean, out=spare), out=spare)
            moments.append((mean, w @ spare))
        return log_evidence

    return call


def log_likelihood(x: np.ndarray, obs: float, out: np.ndarray) -> np.ndarray:
    """``log p(obs | x)``, written into ``out``."""
    np.exp(np.negative(x, out=out), out=out)
    out *= (obs / BETA) ** 2
    out += x
    out += np.log(2 * np.pi * BETA**2)
    out *= -0.5
    return out


def _systematic_offspring(rng: Any, w: np.ndarray, running: np.ndarray) -> np.ndarray:
    """Offspring (n,) of each particle: how many points ``u, 1 + u, ...`` its weight covers."""
    n = len(w)
    np.cumsum(w, dtype=float, out=running)
    np.multiply(running, n / running[-1], out=running)
    running[-1] = n
    np.subtract(running, rng.random(), out=running)
    return np.diff(np.ceil(running, out=running).astype(np.int64), prepend=0)


def filters(y: np.ndarray, n: int, dtype: str) -> dict[str, Call]:
    """All peers that are installed, by the names of :data:`NAMES`."""
    calls: dict[str, Call] = {}
    if installed("particles"):
        calls["particles"] = particles_call(y, n)
        calls["particles, moments"] = particles_call(y, n, moments=True)
        calls["particles, moments, bare model"] = particles_call(y, n, moments=True, lean=True)
    if installed("cuthbert"):
        calls["cuthbert"] = cuthbert_call(y, n)
    calls["NumPy by hand"] = numpy_call(y, n, dtype)
    return calls


NAMES = [
    "particles",
    "particles, moments",
    "particles, moments, bare model",
    "cuthbert",
    "NumPy by hand",
]
