"""What a filter is: a start and a step, pure functions that jit, vmap and shard."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from covey.keys import quick
from covey.models.base import Observation, StateSpaceModel
from covey.particles import Particles, checked_number, equally_weighted
from covey.resampling import systematic, when_ess_below

Resampler = Callable[[Array, Particles, int], Particles]
Step = Callable[[Array, Particles, Observation, int, Array], Particles]

DEFAULT_RESAMPLE = when_ess_below(0.5, systematic)


@dataclass(frozen=True, eq=False)
class Filter:
    """A particle filter, made by :func:`covey.bootstrap` and its like.

    Attributes
    ----------
    model : StateSpaceModel
    advance : function ``(key, particles, obs, n, missing) -> particles``
        Resample to n particles if that is due, move them, weigh them.
    n : int, number of particles.
    n_initial : int, number of particles at the start.
    hold : int, number of steps for which there are ``n_initial``.
    """

    model: StateSpaceModel
    advance: Step
    n: int
    n_initial: int
    hold: int

    def init(self, key: Array) -> Particles:
        """Draw the particles at time 0, before any observation."""
        x = self.model.draw_initial(quick(key), self.n_initial)
        return equally_weighted(x, self.model.seen)

    def step(
        self,
        key: Array,
        particles: Particles,
        obs: Observation,
        *,
        n: int | None = None,
        missing: Any = False,
    ) -> Particles:
        """Take in one observation; ``n`` changes the number of particles."""
        n = particles.n if n is None else n
        return self.advance(quick(key), particles, obs, n, jnp.asarray(missing))

    def particles_at(self, step: int) -> int:
        """How many particles step 1, 2, ... works with."""
        return self.n_initial if step <= self.hold else self.n


def make_filter(
    model: StateSpaceModel, advance: Step, n: int, n_initial: int | None, hold: int
) -> Filter:
    """Check the numbers and put a filter together."""
    n = checked_number(n)
    if n_initial is None:
        return Filter(model, advance, n, n, 0)
    n_initial = checked_number(n_initial)
    if n_initial < n:
        raise ValueError(f"n_initial must be at least n = {n}, got {n_initial}")
    return Filter(model, advance, n, n_initial, _checked_hold(hold))


def _checked_hold(hold: int) -> int:
    """Refuse anything but a whole number of steps."""
    try:
        whole = int(hold.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"hold must be a whole number of steps, got {hold!r}") from None
    if whole < 0:
        raise ValueError(f"hold must be a number of steps, 0 or more, got {whole}")
    return whole
