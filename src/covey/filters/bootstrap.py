"""The bootstrap filter, and with clustered resampling the paper's clustering-based filter."""

import jax
from jax import Array

from covey.clustering import kmeans
from covey.filters.base import DEFAULT_RESAMPLE, Filter, Resampler, make_filter
from covey.models.base import Observation, StateSpaceModel
from covey.particles import Particles, begin_step, weigh
from covey.resampling import Scheme, clustered, when_ess_below


def bootstrap(
    model: StateSpaceModel,
    n: int,
    *,
    resample: Resampler = DEFAULT_RESAMPLE,
    n_initial: int | None = None,
    hold: int = 10,
) -> Filter:
    """The bootstrap filter: move by the model, weigh by the likelihood (Gordon et al., 1993).

    ``W_t^i`` is in proportion to ``W_{t-1}^i p(y_t | x_t^i)``, with ``W_{t-1}`` the weights after
    resampling, if there was any.

    Parameters
    ----------
    model : StateSpaceModel
    n : int, number of particles
    resample : function ``(key, particles, n) -> particles``
    n_initial : int, optional
        A larger number of particles for the start, when nothing is known yet.
    hold : int
        For how many steps to hold ``n_initial`` particles; the next step resamples to n.

    Examples
    --------
    >>> import jax, covey
    >>> model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    >>> _, y = covey.simulate(jax.random.key(0), model, 30)
    >>> history = covey.run(jax.random.key(1), covey.bootstrap(model, 1000), y)
    >>> bool(abs(history.log_evidence - model.kalman(y).log_evidence) < 1)
    True
    """

    def advance(
        key: Array, particles: Particles, obs: Observation, n: int, missing: Array
    ) -> Particles:
        to_resample, to_move = jax.random.split(key)
        parents = resample(to_resample, begin_step(particles), n)
        x = model.move(to_move, parents.x, obs)
        return weigh(parents, x, model.log_factor(x, obs), missing | model.absent(obs))

    return make_filter(model, advance, n, n_initial, hold)


def cluster_filter(
    model: StateSpaceModel,
    n: int,
    *,
    k: int = 10,
    threshold: float = 0.5,
    within: str | Scheme = "multinomial",
    iterations: int = 3,
    subsample: int | None = 500,
    n_initial: int | None = None,
    hold: int = 10,
) -> Filter:
    """The paper's clustering-based bootstrap filter (CBF), its weights corrected to add up to 1.

    When the effective sample size falls below ``threshold * n``: cluster the particles by
    k-means without weights; in cluster j of ``|C_j|`` particles and mass ``v_j`` draw ``|C_j|``
    offspring, each of weight ``v_j / |C_j|``. Clusters without mass give their places to the
    others. Fan and Heller, *k-means: Fighting against Degeneracy in Sequential Monte Carlo with
    an Application to Tracking*, Algorithms Weight Adjust and CBF.

    Parameters
    ----------
    model, n, n_initial, hold : as in :func:`covey.bootstrap`
    k, iterations, subsample : as in :func:`covey.kmeans`
    threshold : float, as in :func:`covey.when_ess_below`
    within : scheme within the clusters; the paper's is multinomial

    Examples
    --------
    >>> import jax, covey
    >>> model = covey.models.StochasticVolatility()
    >>> _, y = covey.simulate(jax.random.key(0), model, 40)
    >>> history = covey.run(jax.random.key(1), covey.cluster_filter(model, 1000), y)
    >>> bool((history.cluster_kl[history.resampled] > 0).all())
    True
    """
    clusterer = kmeans(k, iterations=iterations, subsample=subsample)
    resample = when_ess_below(threshold, clustered(clusterer, allocation="count", within=within))
    return bootstrap(model, n, resample=resample, n_initial=n_initial, hold=hold)
