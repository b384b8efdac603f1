"""The guided filter: move by a proposal that looks at the observation."""

import jax
from jax import Array

from covey.filters.base import DEFAULT_RESAMPLE, Filter, Resampler, make_filter
from covey.models.base import Observation, Proposal, StateSpaceModel, like, per_particle
from covey.particles import Particles, State, begin_step, number_of, weigh


def guided(
    model: StateSpaceModel,
    proposal: Proposal,
    n: int,
    *,
    resample: Resampler = DEFAULT_RESAMPLE,
    n_initial: int | None = None,
    hold: int = 10,
) -> Filter:
    """Move by a proposal q, weigh by ``p(y | x) p(x | x_prev) / q(x | x_prev, y)``.

    This is the paper's general weight, Eq. (weight). Where an observation is missing the particles
    move by the model.

    Parameters
    ----------
    model : StateSpaceModel with ``log_transition``
    proposal : Proposal
    n, resample, n_initial, hold : as in :func:`covey.bootstrap`

    Examples
    --------
    >>> import jax, covey
    >>> model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    >>> _, y = covey.simulate(jax.random.key(0), model, 30)
    >>> best = covey.guided(model, model.optimal_proposal(), 1000)
    >>> bool(abs(covey.run(jax.random.key(1), best, y).log_evidence
    ...          - model.kalman(y).log_evidence) < 0.3)
    True
    """
    log_transition = model.log_transition
    if log_transition is None:
        raise ValueError(
            "guided needs a model with log_transition(x_prev, x, obs) -> (n,), got none; "
            "give the model one, or use covey.bootstrap"
        )

    def move(key: Array, x_prev: State, obs: Observation) -> tuple[State, Array]:
        x = like(x_prev, proposal.sample(key, x_prev, obs), "proposal.sample")
        size = number_of(x)
        log_p = per_particle(log_transition(x_prev, x, obs), size, "log_transition")
        log_q = per_particle(proposal.log_density(x_prev, x, obs), size, "proposal.log_density")
        return x, model.log_factor(x, obs) + log_p - log_q

    def advance(
        key: Array, particles: Particles, obs: Observation, n: int, missing: Array
    ) -> Particles:
        to_resample, to_move = jax.random.split(key)
        parents = resample(to_resample, begin_step(particles), n)
        absent = missing | model.absent(obs)
        x, log_factor = jax.lax.cond(
            absent,
            lambda: (model.move(to_move, parents.x, obs), parents.log_w * 0),
            lambda: _as_weights(move(to_move, parents.x, obs), parents.log_w),
        )
        return weigh(parents, x, log_factor, absent)

    return make_filter(model, advance, n, n_initial, hold)


def _as_weights(moved: tuple[State, Array], log_w: Array) -> tuple[State, Array]:
    x, log_factor = moved
    return x, log_factor.astype(log_w.dtype)
