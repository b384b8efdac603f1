"""The paper's simulation study of k-means seeding, with enough data sets to decide.

Fan and Heller, *k-means: Fighting against Degeneracy in Sequential Monte Carlo with an Application
to Tracking*, Table 1: four clusters of 100 points, and how often k-means ends in a bad minimum. The
paper counts 15 data sets; here are any number, more ways to start, and intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

MEANS = np.array([[0.7, 3.5], [1.0, 1.5], [2.7, 1.0], [5.0, 3.5]])
VARIANCE, PER_CLUSTER = 0.1, 100
K = len(MEANS)
TOLERANCE = 1.05
"""A run has failed whose inertia is more than this times the best known."""

PRINTED = {"random": 4, "plain k-means++": 3, "SSMC": 1}
PRINTED_FIRST = {"random": 3, "plain k-means++": 4, "SSMC": 15}
PRINTED_RUNS = 15
"""Failures that Table 1 of the paper prints, the first of them, and of how many data sets."""

PAPER, PLAIN, RANDOM = "SSMC", "plain k-means++", "random"
SMALL_BATCHES, FARTHEST = "SSMC, batches of 10", "farthest first"
GREEDY, COLLAPSE, POLISH = "greedy k-means++", "collapse", "polish"
BREATHING = "breathing k-means"

DESCRIBED = {
    RANDOM: "k data points at random",
    PLAIN: "one draw a centre by D² (Arthur, Vassilvitskii, 2007)",
    PAPER: "the paper's: σ² known, batches of a tenth of the points",
    SMALL_BATCHES: "the same with the batch size as printed",
    "SSMC, σ² guessed": "the same with σ² from neighbours instead of known",
    GREEDY: "scikit-learn's: the best of several draws a centre",
    FARTHEST: "the point farthest from all centres so far (Gonzalez, 1985)",
    BREATHING: "package bkmeans: adds and removes centres (Fritzke, 2020)",
    COLLAPSE: "SSMCKMeans: particles merge, the cheapest merge first",
    POLISH: "SSMCKMeans: the same, then better centres are sought",
}


@dataclass(frozen=True)
class Settings:
    """The size of the experiment.

    Parameters
    ----------
    datasets : int, simulated data sets; every method starts once on each
    seed : int, decides everything that is drawn

    Examples
    --------
    >>> from covey.reproduce.seeding import Settings
    >>> Settings(datasets=2000).datasets
    2000
    """

    datasets: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in {
            "datasets": (2, 1_000_000),
            "seed": (0, 2**32 - 1),
        }.items():
            value = getattr(self, name)
            if not least <= value <= most:
                remedy = f"raise it to {least}" if value < least else f"lower it to {most}"
                raise ValueError(
                    f"{name} must be from {least} to {most}, got {value}; {remedy} or choose "
                    "a number between"
                )


@dataclass(frozen=True)
class Local:
    """A bad start and the local minimum it ends in.

    Attributes
    ----------
    points : (400, 2)
    start, centres : (4, 2), before and after Lloyd's iterations
    labels : (400,)
    ratio : float, inertia over the best known
    """

    points: np.ndarray
    start: np.ndarray
    centres: np.ndarray
    labels: np.ndarray
    ratio: float


@dataclass(frozen=True)
class Collapse:
    """The generations of the paper's particles on one data set, and the clusters at the end."""

    points: np.ndarray
    generations: tuple[Any, ...]
    labels: np.ndarray
    ratio: float


@dataclass(frozen=True)
class Result:
    """What the experiment found.

    Attributes
    ----------
    settings : Settings
    inertia : method -> (datasets,)
    best : (datasets,), the lowest inertia known
    bad : Local or None, the first data set on which the random start failed
    collapse : Collapse, the first data set
    """

    settings: Settings
    inertia: dict[str, np.ndarray]
    best: np.ndarray
    bad: Local | None = field(repr=False)
    collapse: Collapse = field(repr=False)

    def failed(self, name: str) -> np.ndarray:
        """On which data sets a method failed: (datasets,)."""
        return self.inertia[name] > TOLERANCE * self.best

    def rate(self, name: str) -> tuple[float, float, float]:
        """Share of failures and its Wilson 95% interval."""
        failures = int(self.failed(name).sum())
        return failures / len(self.best), *wilson(failures, len(self.best))

    def paired(self, name: str, rival: str) -> tuple[int, int, float]:
        """Failures of one alone, of the other alone, and the p of McNemar's exact test.

        Both met the same data sets, so only those on which they differ tell them apart.
        """
        ours, theirs = self.failed(name), self.failed(rival)
        alone, other = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        p = stats.binomtest(alone, alone + other).pvalue if alone + other else 1.0
        return alone, other, float(p)


def wilson(failures: int, runs: int) -> tuple[float, float]:
    """95% interval of a share (Wilson, 1927), which is right for rare events too.

    Examples
    --------
    >>> from covey.reproduce.seeding import wilson
    >>> [round(end, 3) for end in wilson(1, 15)]
    [0.012, 0.298]
    """
    found = stats.binomtest(failures, runs).proportion_ci(0.95, "wilson")
    return float(found.low), float(found.high)


def printed_p(name: str, rival: str) -> float:
    """Return the p of Fisher's exact test on two counts that the paper prints.

    Examples
    --------
    >>> from covey.reproduce.seeding import PAPER, RANDOM, printed_p
    >>> round(printed_p(PAPER, RANDOM), 2)
    0.33
    """
    counts = [[PRINTED[one], PRINTED_RUNS - PRINTED[one]] for one in (name, rival)]
    return float(stats.fisher_exact(counts).pvalue)


def data(rng: np.random.Generator) -> np.ndarray:
    """Draw the paper's four clusters: (400, 2), one cluster after the other."""
    noise = rng.normal(scale=np.sqrt(VARIANCE), size=(K * PER_CLUSTER, 2))
    return np.repeat(MEANS, PER_CLUSTER, axis=0) + noise


def farthest_first(x: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Start at a random point; then always take the point farthest from those taken: (k, d)."""
    chosen = [int(np.random.default_rng(seed).integers(len(x)))]
    distance = np.full(len(x), np.inf)
    while len(chosen) < k:
        distance = np.minimum(distance, ((x - x[chosen[-1]]) ** 2).sum(1))
        chosen.append(int(distance.argmax()))
    return x[chosen]


Start = Callable[[np.ndarray, int], Any]


def methods() -> dict[str, Start]:
    """Functions (data, seed) -> a fitted estimator; those that are not installed are left out."""
    from covey import SSMCKMeans, ssmc_init

    def from_centres(start: Start, x: np.ndarray, seed: int) -> Any:
        return _lloyd(x, start(x, seed))

    def paper(x: np.ndarray, seed: int, **options: Any) -> np.ndarray:
        return ssmc_init(x, K, method="paper", random_state=seed, **options)

    def ours(x: np.ndarray, seed: int, method: str) -> Any:
        return SSMCKMeans(K, method=method, random_state=seed).fit(x)

    starts: dict[str, Start] = {
        RANDOM: random_points,
        PLAIN: _plain,
        PAPER: partial(paper, sigma2=VARIANCE),
        SMALL_BATCHES: partial(paper, sigma2=VARIANCE, batch_size=10),
        "SSMC, σ² guessed": paper,
        GREEDY: _greedy,
        FARTHEST: lambda x, seed: farthest_first(x, K, seed),
    }
    found: dict[str, Start] = {name: partial(from_centres, start) for name, start in starts.items()}
    breathing = _breathing()
    if breathing is not None:
        found[BREATHING] = breathing
    return found | {COLLAPSE: partial(ours, method=COLLAPSE), POLISH: partial(ours, method=POLISH)}


def random_points(x: np.ndarray, seed: int) -> np.ndarray:
    """Take k different rows: (k, d)."""
    return x[np.random.default_rng(seed).choice(len(x), K, replace=False)]


def _plain(x: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.cluster import kmeans_plusplus

    return kmeans_plusplus(x, K, random_state=seed, n_local_trials=1)[0]


def _greedy(x: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.cluster import kmeans_plusplus

    return kmeans_plusplus(x, K, random_state=seed)[0]


def _breathing() -> Start | None:
    try:
        from bkmeans import BKMeans
    except ImportError:
        return None
    return lambda x, seed: BKMeans(n_clusters=K, random_state=seed).fit(x)


def _lloyd(x: np.ndarray, start: np.ndarray) -> Any:
    from sklearn.cluster import KMeans

    return KMeans(K, init=start, n_init=1).fit(x)


def experiment(
    settings: Settings, progress: Callable[[int, int], None] = lambda done, total: None
) -> Result:
    """Start every method once on every data set, and tell ``progress(done, total)`` each time.

    The best known is the lowest inertia of all methods, of a start from the true means and of one
    more run of ``"polish"``.

    Examples
    --------
    >>> from covey.reproduce.seeding import Settings, experiment
    >>> result = experiment(Settings(datasets=2))
    >>> result.inertia["collapse"].shape, bool((result.inertia["collapse"] >= result.best).all())
    ((2,), True)
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    compared = methods()
    rows, best = [], []
    bad, collapse = None, None
    # Four hundred points are too few to share among cores.
    with threadpool_limits(1):
        for index in range(settings.datasets):
            rng = np.random.default_rng([settings.seed, index])
            x, seed, other = data(rng), *map(int, rng.integers(2**31, size=2))
            row = {name: float(fit(x, seed).inertia_) for name, fit in compared.items()}
            more = _lloyd(x, MEANS).inertia_, compared[POLISH](x, other).inertia_
            rows.append(row)
            best.append(min(*row.values(), *more))
            if bad is None and row[RANDOM] > TOLERANCE * best[-1]:
                bad = _local(x, seed, best[-1])
            if collapse is None:
                collapse = _collapse(x, seed, best[-1])
            progress(index + 1, settings.datasets)
    assert collapse is not None
    inertia = {name: np.array([row[name] for row in rows]) for name in compared}
    return Result(settings, inertia, np.array(best), bad, collapse)


def _local(x: np.ndarray, seed: int, best: float) -> Local:
    start = random_points(x, seed)
    found = _lloyd(x, start)
    return Local(x, start, found.cluster_centers_, found.labels_, found.inertia_ / best)


def _collapse(x: np.ndarray, seed: int, best: float) -> Collapse:
    import covey

    kmeans = covey.SSMCKMeans(K, method="paper", sigma2=VARIANCE, random_state=seed).fit(x)
    return Collapse(x, kmeans.trace_, kmeans.labels_, kmeans.inertia_ / best)
