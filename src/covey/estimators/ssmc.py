"""Initial centres for k-means from particles that collapse."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state

from covey.estimators.collapse import Merging, collapse
from covey.estimators.data import Blocks, Frame, one_blas_thread, sample
from covey.estimators.lloyd import State, lloyd
from covey.estimators.paper import StochasticSMC, stochastic_smc
from covey.estimators.points import Array, Points, particles
from covey.estimators.polish import breathe

METHODS = ("paper", "collapse", "polish")

SAMPLE = 50_000
"""Rows that are looked at, or 100 a cluster where that is more."""

PER_CLUSTER, PER_CLUSTER_POLISHED = 5, 25
"""Particles drawn for each cluster."""


@dataclass(frozen=True)
class Generation:
    """Particles at one time of a collapse.

    Attributes
    ----------
    positions : (m, d)
    masses : (m,), weight of the points that each stands for; for ``"paper"`` how many copies
    """

    positions: Array
    masses: Array

    def seen(self, unit: float) -> Generation:
        """The same with masses in units of this much."""
        return Generation(self.positions, unit * self.masses)


@dataclass(frozen=True)
class Cut:
    """The generation of a merging that has ``count`` particles, computed when it is looked at."""

    merging: Merging
    count: int
    frame: Frame

    def seen(self, unit: float) -> Generation:
        """Positions in the coordinates of the data, masses in units of this much."""
        positions, masses = self.merging.groups(self.count)
        return Generation(self.frame.back(positions), unit * masses)


@dataclass(frozen=True)
class Seeding:
    """Centres (k, d) in the frame of the data, and how they came about.

    Attributes
    ----------
    variance : float, of the data in the frame, the mean over the columns
    """

    centres: Array
    variance: float
    history: tuple[Generation | Cut, ...]


@dataclass(frozen=True)
class Options:
    """How to seed: the parameters of :func:`ssmc_init` that do not depend on the data."""

    method: str
    particles: int | None
    paper: StochasticSMC
    patience: int | None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        for name in ("particles", "patience"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
                raise ValueError(f"{name} must be None or a whole number from 1 on, got {value!r}")


def ssmc_init(
    X: Any,
    n_clusters: int,
    *,
    random_state: Any = None,
    sample_weight: Any = None,
    method: str = "collapse",
    particles: int | None = None,
    batch_size: int | None = None,
    sigma2: float | None = None,
    candidates: str = "sobol",
    passes: int = 10,
    patience: int | None = None,
) -> Array:
    """Choose initial centres for k-means by particles that collapse onto them.

    Parameters
    ----------
    X : (n, d), array or CSR matrix, finite
    n_clusters : int, k
    random_state : int, RandomState or None
    sample_weight : (n,) or None, none negative, some positive
    method : "collapse", "polish" or "paper"
        ``"collapse"`` draws ``5 k`` particles in proportion to the squared distance, lets each
        stand for the points nearest to it, and merges the two that are cheapest to merge until k
        are left. That merging is Ward's. ``"polish"`` draws ``25 k`` and then adds centres and
        takes the least useful away as long as the inertia falls. ``"paper"`` is stochastic SMC as
        published: particles weighed by batches of the data and resampled until k are left.
    particles : int or None, how many to draw, for any method; None: ``5 k``, ``25 k``, or for the
        paper ``max(256, 20 k)``
    batch_size, sigma2, candidates, passes
        Of the paper's method: see :class:`covey.estimators.paper.StochasticSMC`.
    patience : int or None
        Of ``"polish"``: how many rounds in a row may fail. None: 6 on the particles, then 2 to 4 on
        the points. Twelve take about twice as long and find a little more.

    Returns
    -------
    (k, d) array of the type of X. With fewer than k distinct points some centres are equal, and a
    ``ConvergenceWarning`` says so.

    Notes
    -----
    Also fits scikit-learn as ``KMeans(k, init=ssmc_init, n_init=1)``. Give ``n_init=1``:
    ``n_init="auto"`` means ten runs for a callable. KMeans does not hand on sample weights there;
    :class:`covey.SSMCKMeans` does.

    With more than 50,000 rows (or 100 k where that is more) ``"collapse"`` and ``"polish"`` look
    at so many only, drawn and weighted so that small groups far away are not overlooked.

    References
    ----------
    Fan and Heller, *k-means: Fighting against Degeneracy in Sequential Monte Carlo with an
    Application to Tracking*; Arthur and Vassilvitskii, *k-means++* (2007); Ward (1963).

    Examples
    --------
    >>> import numpy as np
    >>> from covey.estimators import ssmc_init
    >>> X = np.array([[0.0], [0.2], [5.0], [5.2], [9.0]])
    >>> np.sort(ssmc_init(X, 3, random_state=0), axis=0).ravel().round(2).tolist()
    [0.1, 5.1, 9.0]
    """
    X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
    options = Options(
        method, particles, StochasticSMC(batch_size, sigma2, candidates, passes), patience
    )
    weight, _ = checked_weight(sample_weight, X.shape[0])
    check_request(X.shape[0], n_clusters)
    blocks = Blocks.of(X, weight)
    found = seed(blocks, n_clusters, generator(random_state), options)
    distinct = len(np.unique(found.centres, axis=0))
    if distinct < n_clusters:
        warnings.warn(
            f"only {distinct} distinct centres for n_clusters={n_clusters}: there seem to be no "
            "more distinct points; lower n_clusters",
            ConvergenceWarning,
            stacklevel=2,
        )
    return blocks.frame.back(found.centres).astype(X.dtype)


def generator(random_state: Any) -> Generator:
    """Make a NumPy generator from what scikit-learn takes as a random state."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1, size=4))


def check_request(n: int, n_clusters: int) -> None:
    """Refuse what cannot be done."""
    if not isinstance(n_clusters, int | np.integer) or n_clusters < 1:
        raise ValueError(f"n_clusters must be a whole number of at least 1, got {n_clusters!r}")
    if n < n_clusters:
        raise ValueError(f"n_samples={n} should be >= n_clusters={n_clusters}; lower n_clusters")


def checked_weight(sample_weight: Any, n: int) -> tuple[Array, float]:
    """Weights (n,) in parts of the largest, and the largest: so no sum overflows."""
    if sample_weight is None:
        return np.broadcast_to(1.0, (n,)), 1.0
    if isinstance(sample_weight, int | float):
        sample_weight = np.full(n, sample_weight)
    weight = check_array(
        sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    if weight.shape != (n,):
        raise ValueError(f"sample_weight must have shape ({n},), got {weight.shape}")
    if (weight < 0).any():
        raise ValueError(
            f"Negative values in sample_weight: expected none, got {weight.min()}; drop these rows "
            "or give them weight 0"
        )
    if not weight.any():
        raise ValueError(
            "sample_weight must have a positive entry, got only zeros: pass None to weigh all alike"
        )
    return weight / weight.max(), float(weight.max())


History = list[Generation | Cut]


def seed(blocks: Blocks, k: int, rng: Generator, options: Options) -> Seeding:
    """Choose centres for checked data."""
    history: History = []
    search = {"paper": _published, "collapse": _collapsed, "polish": _polished}[options.method]
    with one_blas_thread():
        size = blocks.x.shape[0] if options.method == "paper" else max(SAMPLE, 100 * k)
        points = sample(blocks, size, rng)
        centres = search(points, k, rng, options, blocks.frame, history)
        if len(points) < blocks.x.shape[0]:
            # On few points Lloyd is cheap, and leaves little to do on all of them.
            centres = lloyd(points, State.at(points, centres), 100, tolerance=1e-4).centres
    # Numbered by where they lie, clusters keep their names when rows come in another order.
    centres = centres[np.lexsort(centres.T[::-1])]
    return Seeding(centres, _variance(points), tuple(history))


def _variance(points: Points) -> float:
    total = points.weight.sum()
    mean = points.weight @ points.x / total
    return float(points.weight @ points.norm / total - mean @ mean) / len(mean)


def _published(
    points: Points, k: int, rng: Generator, options: Options, frame: Frame, history: History
) -> Array:
    def record(positions: Array, copies: Array) -> None:
        history.append(Generation(frame.back(positions), copies.astype(float)))

    count = options.particles or max(256, 20 * k)
    return stochastic_smc(points, k, count, rng, options.paper.scaled(frame.scale), record)


def _collapsed(
    points: Points, k: int, rng: Generator, options: Options, frame: Frame, history: History
) -> Array:
    count = options.particles or max(PER_CLUSTER * k, 40)
    return _merged(collapse(points, max(k, count), k, rng), k, frame, history)


def _merged(merging: Merging, k: int, frame: Frame, history: History) -> Array:
    _record(merging, k, frame, history)
    centres, _ = merging.groups(k)
    # The first ones again where there are too few distinct points.
    return centres[np.arange(k) % len(centres)]


def _record(merging: Merging, k: int, frame: Frame, history: History) -> None:
    """Some generations of a collapse, each half the one before, and the last."""
    left = len(merging.masses)
    while left > k:
        history.append(Cut(merging, left, frame))
        left = (left + 1) // 2
    history.append(Cut(merging, k, frame))


def _polished(
    points: Points, k: int, rng: Generator, options: Options, frame: Frame, history: History
) -> Array:
    """Breathe on particles, which are few, and then on the points."""
    count = max(k, options.particles or PER_CLUSTER_POLISHED * k)
    few = points
    if count < 0.7 * len(points):
        drawn, label, _ = particles(points, count, rng)
        few = Points.of(*points.means(label, len(drawn)))
    centres = _merged(collapse(few, 2 * PER_CLUSTER * k, k, rng), k, frame, history)
    if few is not points:
        start = lloyd(few, State.at(few, centres), 8)
        centres = breathe(few, start, rng, patience=options.patience or min(6, k + 1)).centres

    def improved(state: State) -> None:
        masses = np.bincount(state.label, points.weight, k)
        history.append(Generation(frame.back(state.centres), masses))

    # With few clusters a round tries few changes, so there must be more of them.
    patience = min(4, max(2, -(-40 // k))) if few is not points else 6
    patience = options.patience or min(patience, k + 1)
    start = lloyd(points, State.at(points, centres), 8)
    return breathe(points, start, rng, patience=patience, report=improved).centres
