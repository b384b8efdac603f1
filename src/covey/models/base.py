"""What a state-space model is: three functions over a batch of particles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from covey.particles import State, flatten_state, number_of

Observation = Any
"""The record of one step: a number, an array or a pytree (measurement, controls, time step)."""


@dataclass(frozen=True, eq=False)
class StateSpaceModel:
    """A hidden Markov process ``x_t`` and what is observed of it.

    ``x_0`` comes before the first observation: step ``t`` moves ``x_{t-1}`` to ``x_t`` and then
    weighs ``x_t`` by its observation ``t`` (t = 1, 2, ...). All functions work on n particles at
    once and are written in JAX; :func:`covey.from_numpy` takes plain NumPy ones.

    Parameters
    ----------
    initial : function ``(key, n) -> x``
        Draws n states ``x_0``: an array (n, d), or a pytree whose leaves lead with n.
    transition : function ``(key, x, obs) -> x``
        Draws ``x_t`` given ``x_{t-1}``. It sees the observation record because in tracking the
        measured velocity, a control or the time step drives the motion.
    log_likelihood : function ``(x, obs) -> (n,)``
        ``log p(y_t | x_t)``.
    log_transition : function ``(x_prev, x, obs) -> (n,)``, optional
        ``log p(x_t | x_{t-1})``; needed by :func:`covey.guided`.
    observe : function ``(key, x, obs) -> obs``, optional
        Draws the observation records of states; needed by :func:`covey.simulate`. ``obs`` is the
        record to fill in (controls and time steps), or None.
    features : function ``x -> (n, q)``, optional
        What clusterers see, for instance ``cos`` and ``sin`` of an angle. Default: all components
        of the state side by side.
    measurement : function ``obs -> pytree``, optional
        The part of an observation record that is measured; a step where all of it is NaN counts
        as not observed. Default: the whole record.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, covey
    >>> walk = covey.StateSpaceModel(
    ...     initial=lambda key, n: jax.random.normal(key, (n, 1)),
    ...     transition=lambda key, x, obs: x + jax.random.normal(key, x.shape),
    ...     log_likelihood=lambda x, obs: -0.5 * (obs - x[:, 0]) ** 2,
    ... )
    >>> history = covey.run(jax.random.key(0), covey.bootstrap(walk, 100), jnp.array([0.3, 0.9]))
    >>> history.mean.shape
    (2, 1)
    """

    initial: Callable[[Array, int], State]
    transition: Callable[[Array, State, Observation], State]
    log_likelihood: Callable[[State, Observation], Array]
    _: KW_ONLY
    log_transition: Callable[[State, State, Observation], Array] | None = None
    observe: Callable[[Array, State, Observation], Observation] | None = None
    features: Callable[[State], Array] | None = None
    measurement: Callable[[Observation], Any] | None = None

    def __post_init__(self) -> None:
        for part in fields(self):
            function = getattr(self, part.name)
            if not callable(function) and (function is not None or part.default is MISSING):
                raise TypeError(f"{part.name} must be a function, got {function!r}")

    def draw_initial(self, key: Array, n: int) -> State:
        """Draw n initial states and see that there are n."""
        x = jax.tree.map(jnp.asarray, self.initial(key, n))
        if number_of(x) != n:
            raise ValueError(f"initial(key, {n}) must return {n} states, got {number_of(x)}")
        return x

    def move(self, key: Array, x: State, obs: Observation) -> State:
        """Draw the next states and see that they are like the last ones."""
        return like(x, self.transition(key, x, obs), "transition")

    def log_factor(self, x: State, obs: Observation) -> Array:
        """Log-likelihoods (n,) of the states, checked for their shape."""
        return per_particle(self.log_likelihood(x, obs), number_of(x), "log_likelihood")

    def absent(self, obs: Observation) -> Array:
        """Whether the step has no observation: all that is measured is NaN."""
        measured = obs if self.measurement is None else self.measurement(obs)
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(measured)]
        floats = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
        if not floats or len(floats) < len(leaves):
            return jnp.array(False)
        return jnp.stack([jnp.isnan(leaf).all() for leaf in floats]).all()

    @property
    def seen(self) -> Callable[[State], Array]:
        """What clusterers see of a state."""
        return flatten_state if self.features is None else self.features


@dataclass(frozen=True, eq=False)
class Proposal:
    """How a guided filter moves particles.

    Parameters
    ----------
    sample : function ``(key, x_prev, obs) -> x``
    log_density : function ``(x_prev, x, obs) -> (n,)``, the log-density of ``sample`` at x.
    """

    sample: Callable[[Array, State, Observation], State]
    log_density: Callable[[State, State, Observation], Array]


def is_masked(value: Any) -> bool:
    """Whether a leaf of an observation is a masked array."""
    return isinstance(value, np.ma.MaskedArray)


def observed_array(value: Any) -> Array:
    """An observation as an array, with NaN where a masked array is masked."""
    if is_masked(value):
        if not np.issubdtype(value.dtype, np.floating):
            value = value.astype(float)
        value = value.filled(np.nan)
    try:
        array = jnp.asarray(value)
        return array.astype(array.dtype)  # a Python number counts as an array, compiled once
    except TypeError as error:
        raise TypeError(
            f"an observation must be numbers or a pytree of numbers, got {value!r}; a missing one "
            "is NaN, or any number with missing=True"
        ) from error


def per_particle(values: Any, n: int, source: str) -> Array:
    """Check that a function of the model returned one real number per particle."""
    if values is None:
        raise ValueError(f"{source} must return shape ({n},), got None; return the log-density")
    values = jnp.asarray(values)
    check_real(values.dtype, source)
    if values.shape != (n,):
        remedy = (
            f"return {source}(...)[:, 0]"
            if values.shape == (n, 1)
            else ("sum over the components of a state or an observation, not over the particles")
        )
        raise ValueError(f"{source} must return shape ({n},), got {values.shape}; {remedy}")
    return values


def check_real(dtype: Any, source: str) -> None:
    """Refuse yes or no, and complex numbers, as log-densities."""
    if any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.complexfloating)):
        raise ValueError(
            f"{source} must return real numbers, got {dtype}; where only yes or no is "
            "observed return jnp.where(condition, 0.0, -jnp.inf)"
        )


def like(x: State, moved: State, source: str) -> State:
    """Check that new states have the structure, shapes and types of the old ones."""
    moved = jax.tree.map(jnp.asarray, moved)

    def form(state: State) -> Any:
        return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", state)

    if form(moved) != form(x):
        raise ValueError(
            f"{source} must return states like those it was given: expected {form(x)}, "
            f"got {form(moved)}; convert them there, or let initial return such states"
        )
    return moved


def simulate(
    key: Array, model: StateSpaceModel, steps: int, obs: Observation = None
) -> tuple[State, Observation]:
    """Draw a path of the model and its observations.

    Parameters
    ----------
    key : JAX random key
    model : StateSpaceModel with ``observe``
    steps : int
    obs : pytree whose leaves lead with ``steps``, optional
        Records to fill in (controls, time steps), given to ``transition`` and ``observe``.

    Returns
    -------
    x : state whose leaves lead with ``steps``: ``x_1, ..., x_steps``.
    obs : pytree whose leaves lead with ``steps``.

    Examples
    --------
    >>> import jax, covey
    >>> x, y = covey.simulate(jax.random.key(1), covey.models.StochasticVolatility(), 40)
    >>> x.shape, y.shape
    ((40, 1), (40,))
    """
    observe = model.observe
    if observe is None:
        raise ValueError("simulate needs a model with observe(key, x, obs) -> obs, got none")
    first, rest = jax.random.split(key)

    def step(x: State, inputs: tuple[Array, Observation]) -> tuple[State, Any]:
        key, record = inputs
        move, look = jax.random.split(key)
        x = model.move(move, x, record)
        seen = observe(look, x, record)
        return x, jax.tree.map(lambda leaf: leaf[0], (x, seen))

    inputs = jax.random.split(rest, steps), obs
    return jax.lax.scan(step, model.draw_initial(first, 1), inputs)[1]
