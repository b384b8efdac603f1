"""The paper's stochastic-volatility experiment, with the exact filter beside it.

Fan and Heller, *k-means: Fighting against Degeneracy in Sequential Monte Carlo with an Application
to Tracking*: ``phi = 0.8, sigma^2 = 0.9, beta = 0.7``, 40 steps, 1000 particles, 10 clusters. The
paper shows one histogram of each filter; here are also many series, many runs, and errors against
the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import covey
from covey.reproduce.grid import Grid, grid_filter, wasserstein

MOST_SERIES = 20
LONGEST_LAG = 10
RESAMPLES = 2000

METRICS = {
    "wasserstein": "W1 to exact",
    "evidence_variance": "var log Z",
    "evidence_ratio": "mean Z / exact",
    "parents": "unique parents",
    "ancestors": "ancestors",
    "ess_after": "ESS / N after",
    "resamplings": "resamplings",
}


@dataclass(frozen=True)
class Settings:
    """The size of the experiment.

    Parameters
    ----------
    replicates : int
        Runs of each filter. They are spread evenly over at most 20 simulated series, so that the
        number is rounded up to a multiple of the series.
    particles, steps, clusters : int, the paper's N, T and k
    seed : int, decides everything that is drawn

    Examples
    --------
    >>> from covey.reproduce.volatility import Settings
    >>> settings = Settings(replicates=250)
    >>> settings.series, settings.runs
    (20, 13)
    """

    replicates: int = 40
    particles: int = 1000
    steps: int = 40
    clusters: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        # Standard errors need two series, and the variance within a series needs two runs.
        ranges = {
            "replicates": (4, 100_000),
            "particles": (2, 100_000),
            "steps": (1, 10_000),
            "clusters": (1, self.particles),
            "seed": (0, 2**32 - 1),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not least <= value <= most:
                remedy = f"raise it to {least}" if value < least else f"lower it to {most}"
                raise ValueError(
                    f"{name} must be from {least} to {most}, got {value}; {remedy} or choose "
                    "a number between"
                )
        if self.particles * self.steps > 1_000_000:
            raise ValueError(
                "particles times steps must be at most 1000000, or the paths do not fit in "
                f"memory, got {self.particles} * {self.steps}; lower one of them"
            )

    @property
    def series(self) -> int:
        """How many series are simulated."""
        return min(MOST_SERIES, self.replicates // 2)

    @property
    def runs(self) -> int:
        """How many times each filter runs on each series."""
        return -(-self.replicates // self.series)

    @property
    def lag(self) -> int:
        """How many steps back ancestors are counted."""
        return min(LONGEST_LAG, self.steps)


@dataclass(frozen=True)
class Sample:
    """The particles of one run at the end: states (n,), weights (n,), and what was measured."""

    x: np.ndarray
    weights: np.ndarray
    measured: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What the experiment found.

    Attributes
    ----------
    settings : Settings
    values : filter -> metric -> (series,), the mean over runs, or the variance within the series
    samples : filter -> Sample, the first run on the first series
    exact : Grid, the exact filter of the first series
    state : float, the true state ``x_T`` of the first series
    modes : (series,), how many modes the exact density has
    """

    settings: Settings
    values: dict[str, dict[str, np.ndarray]]
    samples: dict[str, Sample]
    exact: Grid
    state: float
    modes: np.ndarray

    def estimate(self, name: str, metric: str) -> tuple[float, float]:
        """Mean over series and its standard error by the bootstrap over series."""
        values = self.values[name][metric]
        draws = self._bootstrap() @ values
        # Drawing from S series instead of from all there could be makes the spread too small.
        correction = np.sqrt(len(values) / (len(values) - 1))
        return float(values.mean()), float(draws.std() * correction)

    def ratio(self, metric: str, name: str, to: str) -> tuple[float, float, float]:
        """Ratio of two filters' means, and its 95% interval by the bootstrap over series.

        Both filters saw the same series, so the series are drawn for both together.
        """
        ours, theirs = self.values[name][metric], self.values[to][metric]
        shares = self._bootstrap()
        low, high = np.quantile((shares @ ours) / (shares @ theirs), [0.025, 0.975])
        return float(ours.mean() / theirs.mean()), float(low), float(high)

    def _bootstrap(self) -> np.ndarray:
        """How large a share each series has in each resample: (2000, series)."""
        count = self.settings.series
        generator = np.random.default_rng(self.settings.seed)
        return generator.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count


def filters(model: covey.StateSpaceModel, settings: Settings) -> dict[str, covey.Filter]:
    """Make the filters that are compared; all resample when the ESS falls below N / 2."""
    n, k = settings.particles, settings.clusters

    def plain(scheme: covey.Scheme) -> covey.Filter:
        return covey.bootstrap(model, n, resample=covey.when_ess_below(0.5, scheme))

    def clustered(within: str) -> covey.Filter:
        return covey.cluster_filter(model, n, k=k, within=within, subsample=None)

    return {
        "BF multinomial": plain(covey.multinomial),
        "BF systematic": plain(covey.systematic),
        "CBF as printed": clustered("multinomial"),
        "CBF systematic": clustered("systematic"),
    }


def experiment(
    settings: Settings, progress: Callable[[int, int], None] = lambda done, total: None
) -> Result:
    """Run every filter on every series, and tell ``progress(done, total)`` now and then.

    Examples
    --------
    >>> from covey.reproduce.volatility import Settings, experiment
    >>> result = experiment(Settings(replicates=4, particles=50, steps=5))
    >>> result.values["BF systematic"]["parents"].shape
    (2,)
    """
    model = covey.models.StochasticVolatility()
    to_simulate, to_filter = jax.random.split(jax.random.key(settings.seed))
    series = jnp.arange(settings.series)
    simulate = jax.vmap(lambda key: covey.simulate(key, model, settings.steps))
    states, obs = simulate(_fold_in(to_simulate, series))
    exact = exact_filter(model, obs)
    compared = filters(model, settings)
    values: dict[str, Any] = {}
    samples = {}
    for name, filter in compared.items():
        rounds = []
        for index in range(settings.runs):
            keys = _fold_in(jax.random.fold_in(to_filter, index), series)
            rounds.append(_compare(jax.device_get(_measure_all(filter, keys, obs)), exact))
            progress(len(values) * settings.runs + index + 1, len(compared) * settings.runs)
        samples[name] = _first(rounds[0])
        values[name] = _per_series(rounds)
    first = jax.tree.map(lambda leaf: leaf[0], exact)
    modes = count_modes(np.asarray(exact.density))
    return Result(settings, values, samples, first, float(states[0, -1, 0]), modes)


def exact_filter(model: covey.models.StochasticVolatility, obs: Array, points: int = 2001) -> Grid:
    """Filter series (S, T) exactly, in double precision, on ten standard deviations either way."""
    deviation = float(np.sqrt(model.stationary_variance()))

    def log_initial(x: Array) -> Array:
        return jax.scipy.stats.norm.logpdf(x, scale=deviation)

    def one(y: Array) -> Grid:
        ends = {"low": -10 * deviation, "high": 10 * deviation}
        return grid_filter(model, y, log_initial, **ends, points=points)

    with jax.enable_x64(True):
        grids = jax.jit(jax.vmap(one))(jnp.asarray(np.asarray(obs), float))
        return jax.device_get(grids)


def _fold_in(key: Array, numbers: Array) -> Array:
    """One key for each number, the same however many there are."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)


def count_modes(density: np.ndarray) -> np.ndarray:
    """Count the peaks of densities (..., m) that reach a thousandth of the highest.

    Examples
    --------
    >>> import numpy as np
    >>> from covey.reproduce.volatility import count_modes
    >>> int(count_modes(np.array([0, 2, 1, 3, 0])))
    2
    """
    left, middle, right = density[..., :-2], density[..., 1:-1], density[..., 2:]
    high = middle > density.max(-1, keepdims=True) / 1000
    return (high & (middle > left) & (middle >= right)).sum(-1)


@partial(jax.jit, static_argnames="filter")
def _measure_all(filter: covey.Filter, keys: Array, obs: Array) -> dict[str, Array]:
    """One run on each series, one after the other: a vmap compiles longer and resamples always."""
    return jax.lax.map(lambda pair: _measure(filter, *pair), (keys, obs))


def _measure(filter: covey.Filter, key: Array, obs: Array) -> dict[str, Array]:
    """Run a filter once: the particles at the end, and what needs no exact answer."""
    history = covey.run(key, filter, obs, save="particles")
    kept, n = history.kept, filter.n
    resampled, steps = history.resampled, jnp.arange(len(obs))
    last = jnp.where(resampled, steps, -1).max()
    # The weights before a step's observation came in are those its resampling left.
    log_before = kept["log_w"] - jax.vmap(filter.model.log_likelihood)(kept["x"], obs)
    ess_before = jnp.exp(2 * jax.nn.logsumexp(log_before, 1) - jax.nn.logsumexp(2 * log_before, 1))
    times = resampled.sum()
    ess_after = jnp.where(resampled, ess_before, 0).sum() / jnp.maximum(times, 1)
    return {
        "x": history.final.x[:, 0],
        "weights": history.final.weights,
        "log_evidence": history.log_evidence,
        "parents": jnp.where(times > 0, history.unique[last], n),
        "ancestors": distinct_ancestors(kept["ancestors"], LONGEST_LAG),
        "ess_after": jnp.where(times > 0, ess_after / n, 1),
        "resamplings": times,
    }


def distinct_ancestors(ancestors: Array, lag: int) -> Array:
    """How many different particles, ``lag`` steps before the end, have descendants at the end.

    Parameters
    ----------
    ancestors : (T, n), for each step and particle the index of its parent
    lag : int, where T is less: since the start

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from covey.reproduce.volatility import distinct_ancestors
    >>> int(distinct_ancestors(jnp.array([[0, 0, 1], [1, 0, 2]]), 2))
    2
    """

    def back(index: Array, parents: Array) -> tuple[Array, None]:
        return parents[index], None

    everyone = jnp.arange(ancestors.shape[1])
    index, _ = jax.lax.scan(back, everyone, ancestors[-lag:], reverse=True)
    return jnp.zeros(len(everyone), jnp.int32).at[index].set(1).sum()


def _compare(found: dict[str, Any], exact: Grid) -> dict[str, np.ndarray]:
    """Add what needs the exact answer, one number a series."""
    rows = zip(found["x"], found["weights"], exact.x, exact.density, strict=True)
    found["wasserstein"] = np.array([wasserstein(*row) for row in rows])
    found["log_evidence"] = found["log_evidence"].astype(float)
    found["evidence_ratio"] = np.exp(found["log_evidence"] - exact.log_evidence)
    return found


def _first(found: dict[str, np.ndarray]) -> Sample:
    """The first run on the first series."""
    at_hand = {name: float(found[name][0]) for name in METRICS if name in found}
    return Sample(found["x"][0], found["weights"][0], at_hand)


def _per_series(rounds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Mean over runs, or their unbiased variance, for each series: metric -> (series,)."""

    def over_runs(name: str) -> np.ndarray:
        return np.stack([found[name] for found in rounds]).astype(float)

    return {
        name: over_runs("log_evidence").var(0, ddof=1)
        if name == "evidence_variance"
        else over_runs(name).mean(0)
        for name in METRICS
    }
