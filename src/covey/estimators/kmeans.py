"""k-means that does not fall into bad local minima, as a scikit-learn estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import Generator
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from covey.estimators.data import Blocks, Frame, one_blas_thread
from covey.estimators.lloyd import assigned, lloyd_in_blocks
from covey.estimators.paper import StochasticSMC
from covey.estimators.points import Array
from covey.estimators.ssmc import (
    Generation,
    Options,
    Seeding,
    check_request,
    checked_weight,
    generator,
    seed,
)
from covey.estimators.stream import Stream

REMEMBERED = 100
"""Particles for each cluster that a summary of a stream has."""


class SSMCKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """k-means started from particles that collapse onto the centres.

    Finds centres ``mu_1..k`` that make the inertia ``sum_i w_i min_j |x_i - mu_j|^2`` small.

    Parameters
    ----------
    n_clusters : int, k
    method : "collapse", "polish" or "paper"
        How to find the first centres: see :func:`covey.ssmc_init`. ``"collapse"`` is about as fast
        as one run of ``KMeans``; ``"polish"`` takes several times as long and comes closer to the
        best that is known; ``"paper"`` is the published algorithm, for comparison.
    max_iter : int, iterations of Lloyd at the end
    tol : float
        Stop when the squared moves of the centres sum to no more than this times the mean variance
        of the columns.
    random_state : int, RandomState or None
    verbose : int, 1: print the inertia in every iteration
    particles, batch_size, sigma2, candidates, passes, patience
        See :func:`covey.ssmc_init`.

    Attributes
    ----------
    cluster_centers_ : (k, d), of the type of the data
    labels_ : (n,), of the data of the last ``fit`` or ``partial_fit``
    inertia_ : float, of the same
    n_iter_ : int, iterations of Lloyd
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    trace_ : tuple of Generation
        How the particles collapsed: positions (m, d) and masses (m,) of the first particles, of
        some generations on the way, and of the last. For ``"polish"`` better centres follow, for
        ``"paper"`` it is every generation with the number of copies as masses.

    Notes
    -----
    Lloyd's iterations are the package's own, not those of ``KMeans``, for two reasons:
    ``KMeans.fit`` spends as long on checks and copies as on some iterations, and it holds a second
    copy of the data. While steps are long, every third one goes four times as far, so that fewer
    are needed.

    References
    ----------
    Fan and Heller, *k-means: Fighting against Degeneracy in Sequential Monte Carlo with an
    Application to Tracking*.

    Examples
    --------
    >>> import numpy as np
    >>> from covey.estimators import SSMCKMeans
    >>> X = np.array([[0.0, 0.0], [0.0, 2.0], [9.0, 0.0], [9.0, 2.0]])
    >>> kmeans = SSMCKMeans(2, random_state=0).fit(X)
    >>> kmeans.inertia_, sorted(kmeans.cluster_centers_.tolist())
    (4.0, [[0.0, 1.0], [9.0, 1.0]])
    """

    cluster_centers_: Array
    _frame: Frame
    _stream: Stream
    _rng: Generator

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        method: str = "collapse",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        verbose: int = 0,
        particles: int | None = None,
        batch_size: int | None = None,
        sigma2: float | None = None,
        candidates: str = "sobol",
        passes: int = 10,
        patience: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.method = method
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose
        self.particles = particles
        self.batch_size = batch_size
        self.sigma2 = sigma2
        self.candidates = candidates
        self.passes = passes
        self.patience = patience

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> SSMCKMeans:
        """Find the centres of data (n, d), an array or a CSR matrix, with weights (n,) or None."""
        options = self._options()
        X = self._validated(X, reset=True)
        weight, heaviest = checked_weight(sample_weight, X.shape[0])
        check_request(X.shape[0], self.n_clusters)
        rng = generator(self.random_state)
        blocks = Blocks.of(X, weight)
        start = seed(blocks, self.n_clusters, rng, options)
        self._lloyd(blocks, heaviest, start, X.dtype)
        self._stream = Stream(REMEMBERED * self.n_clusters)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> SSMCKMeans:
        """Learn from a batch (n, d) more, or from an iterator of batches, and forget none before.

        What has been seen is remembered as particles, 100 k for each doubling of the rows, and the
        centres are sought anew among them. The first batch needs k rows. For an iterator the
        centres are sought once, at its end. A stream begins anew after ``fit``.
        """
        options = self._options()
        batches = X if isinstance(X, Iterator) else iter([X])
        if isinstance(X, Iterator) and sample_weight is not None:
            raise ValueError(
                "sample_weight must be None for an iterator of batches, got weights; call "
                "partial_fit with one batch and its weights at a time"
            )
        stream: Stream = getattr(self, "_stream", None) or Stream(REMEMBERED * self.n_clusters)
        fresh = not stream.rows
        if fresh:
            self._rng = generator(self.random_state)
        batch = None
        with one_blas_thread():
            for batch in batches:
                batch = self._validated(batch, reset=fresh)
                weight, heaviest = checked_weight(sample_weight, batch.shape[0])
                if fresh:
                    check_request(batch.shape[0], self.n_clusters)
                stream.add(batch, weight * heaviest, self._rng)
                fresh = False
        if batch is None:
            raise ValueError("an iterator of batches must yield at least one, got none")
        self._stream = stream
        self._solve(stream, options, batch.dtype)
        self.labels_, self.inertia_ = self._assign(self._blocks(batch, weight), heaviest)
        return self

    def _solve(self, stream: Stream, options: Options, dtype: Any) -> None:
        particles, masses = stream.gathered()
        weight, heaviest = checked_weight(masses, len(masses))
        blocks = Blocks.of(particles, weight)
        start = seed(blocks, self.n_clusters, self._rng, options)
        self._lloyd(blocks, heaviest, start, dtype)

    def predict(self, X: Any) -> Array:
        """Label (n,) of the nearest centre for each row of X (n, d)."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        return self._assign(self._blocks(X), 1.0)[0]

    def transform(self, X: Any) -> Array:
        """Distances (n, k) to the centres."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        blocks = self._blocks(X)
        centres = blocks.frame.into(self.cluster_centers_)
        with one_blas_thread():
            parts = list(blocks.map(lambda block: block.distances(centres)))
        return (np.concatenate(parts) / blocks.frame.scale).astype(X.dtype)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the inertia of X (n, d): higher is better."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        weight, heaviest = checked_weight(sample_weight, X.shape[0])
        return -self._assign(self._blocks(X, weight), heaviest)[1]

    @property
    def trace_(self) -> tuple[Generation, ...]:
        """How the particles collapsed."""
        check_is_fitted(self)
        return tuple(generation.seen(self._unit) for generation in self._history)

    def _options(self) -> Options:
        if not isinstance(self.max_iter, int | np.integer) or self.max_iter < 1:
            raise ValueError(
                f"max_iter must be a whole number of at least 1, got {self.max_iter!r}"
            )
        if not 0 <= self.tol < np.inf:
            raise ValueError(f"tol must not be negative, got {self.tol!r}; 0 is the strictest")
        paper = StochasticSMC(self.batch_size, self.sigma2, self.candidates, self.passes)
        return Options(self.method, self.particles, paper, self.patience)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        return validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order="C",
            accept_large_sparse=False,
        )

    def _lloyd(self, blocks: Blocks, heaviest: float, start: Seeding, dtype: Any) -> None:
        frame = blocks.frame

        def report(iteration: int, inertia: float) -> None:
            if self.verbose:
                inertia = _restored(inertia, heaviest, frame)
                print(f"{self.method}: iteration {iteration}, inertia {inertia:.6g}")

        with one_blas_thread():
            centres, self.n_iter_ = lloyd_in_blocks(
                blocks, start.centres, self.max_iter, self.tol * max(start.variance, 0.0), report
            )
        self.cluster_centers_ = frame.back(centres).astype(dtype)
        self._frame = frame
        self.labels_, self.inertia_ = self._assign(blocks, heaviest)
        self._n_features_out = self.n_clusters
        self._history = start.history
        # The published particles are counted, all others weighed.
        self._unit = 1.0 if self.method == "paper" else heaviest
        found = np.count_nonzero(np.bincount(self.labels_, minlength=self.n_clusters))
        if found < self.n_clusters:
            warnings.warn(
                f"Number of distinct clusters ({found}) found smaller than n_clusters "
                f"({self.n_clusters}). Possibly due to duplicate points in X; lower n_clusters.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _blocks(self, X: Any, weight: Array | None = None) -> Blocks:
        """Other data in the frame of the fit, so that equal rows are treated alike to the bit."""
        weight = np.broadcast_to(1.0, (X.shape[0],)) if weight is None else weight
        return Blocks(X, weight, self._frame.holding(X))

    def _assign(self, blocks: Blocks, heaviest: float) -> tuple[Array, float]:
        with one_blas_thread():
            label, inertia = assigned(blocks, blocks.frame.into(self.cluster_centers_))
        return label, _restored(inertia, heaviest, blocks.frame)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _restored(inertia: float, heaviest: float, frame: Frame) -> float:
    """Inertia in the units of the data; infinite where no number is as large."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float64(inertia) * heaviest / frame.scale / frame.scale)
