"""The auxiliary filter: resample with a view to the next observation."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from covey.filters.base import DEFAULT_RESAMPLE, Filter, Resampler, make_filter
from covey.models.base import Observation, StateSpaceModel, per_particle
from covey.particles import (
    FINE,
    INFINITE,
    NOT_A_NUMBER,
    Particles,
    State,
    begin_step,
    normalise,
    number_of,
    weigh,
)


def auxiliary(
    model: StateSpaceModel,
    n: int,
    *,
    lookahead: Callable[[State, Observation], Array] | None = None,
    resample: Resampler = DEFAULT_RESAMPLE,
    n_initial: int | None = None,
    hold: int = 10,
) -> Filter:
    """The auxiliary particle filter (Pitt and Shephard, 1999).

    Particles are resampled by ``W_{t-1}^i eta_i`` where ``eta_i`` guesses ``p(y_t | x_{t-1}^i)``,
    moved by the model, and weighed by ``p(y_t | x_t) / eta``. The estimate of the evidence is
    unbiased for every positive guess.

    Parameters
    ----------
    model : StateSpaceModel
    n, resample, n_initial, hold : as in :func:`covey.bootstrap`
    lookahead : function ``(x_prev, obs) -> (n,)``, optional
        ``log eta``. Default: the likelihood of a trial move of each particle. A guess with
        lighter tails than the likelihood makes wild weights; when in doubt, flatten it.

    Examples
    --------
    >>> import jax, covey
    >>> model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    >>> _, y = covey.simulate(jax.random.key(0), model, 30)
    >>> looking = covey.auxiliary(model, 1000, lookahead=model.predictive_log_likelihood)
    >>> bool(abs(covey.run(jax.random.key(1), looking, y).log_evidence
    ...          - model.kalman(y).log_evidence) < 0.5)
    True
    """

    def guess(key: Array, x_prev: State, obs: Observation) -> Array:
        if lookahead is None:
            return model.log_factor(model.move(key, x_prev, obs), obs)
        return per_particle(lookahead(x_prev, obs), number_of(x_prev), "lookahead")

    def advance(
        key: Array, particles: Particles, obs: Observation, n: int, missing: Array
    ) -> Particles:
        to_guess, to_resample, to_move = jax.random.split(key, 3)
        absent = missing | model.absent(obs)
        guessed = guess(to_guess, particles.x, obs).astype(particles.log_w.dtype)
        log_eta = _bounded(guessed, absent)
        log_w, log_mean, ess = normalise(particles.log_w + log_eta)
        viewed = replace(begin_step(particles), log_w=log_w, ess=ess)
        parents = resample(to_resample, viewed, n)
        log_w, log_rest, ess = normalise(parents.log_w - log_eta[parents.ancestors])
        x = model.move(to_move, parents.x, obs)
        log_factor = model.log_factor(x, obs) + log_mean + log_rest
        weighed = weigh(replace(parents, log_w=log_w, ess=ess), x, log_factor, absent)
        return _with_guess_checked(weighed, guessed, absent)

    return make_filter(model, advance, n, n_initial, hold)


def _with_guess_checked(particles: Particles, guessed: Array, absent: Array) -> Particles:
    """Report a guess that is NaN or +inf, although the evidence bears it."""
    guess_status = jnp.select(
        [jnp.isposinf(guessed).any(), jnp.isnan(guessed).any()], [INFINITE, NOT_A_NUMBER], FINE
    )
    first = (particles.status == FINE) & ~absent
    status = jnp.where(first, guess_status.astype(jnp.int32), particles.status)
    return replace(particles, status=status)


def _bounded(log_eta: Array, absent: Array) -> Array:
    """A guess that is finite everywhere: within 50 of its top, and flat where nothing is seen."""
    log_eta = jnp.where(jnp.isfinite(log_eta), log_eta, -jnp.inf)
    top = log_eta.max()
    hopeless = absent | ~jnp.isfinite(top)
    return jnp.where(hopeless, 0, jnp.maximum(log_eta, jnp.where(hopeless, 0, top) - 50))
