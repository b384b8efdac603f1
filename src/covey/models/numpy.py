"""Models written in plain NumPy or Python: slower, and the same to use."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from covey.models.base import Observation, StateSpaceModel
from covey.particles import State


def from_numpy(
    initial: Callable[..., Any],
    transition: Callable[..., Any],
    log_likelihood: Callable[..., Any],
    *,
    log_transition: Callable[..., Any] | None = None,
    features: Callable[[Any], Array] | None = None,
    measurement: Callable[[Any], Any] | None = None,
) -> StateSpaceModel:
    """Make a model of functions that JAX cannot trace: NumPy, SciPy, a simulator, a table.

    Parameters
    ----------
    initial : function ``(rng, n) -> x``
        ``rng`` is a :class:`numpy.random.Generator`, seeded by the filter's key.
    transition : function ``(rng, x, obs) -> x``
    log_likelihood : function ``(x, obs) -> (n,)``
    log_transition : function ``(x_prev, x, obs) -> (n,)``, optional
    features, measurement : as in :class:`covey.StateSpaceModel`, written in JAX.

    Notes
    -----
    Every call leaves the compiled program and comes back, so a step costs what the functions
    cost in Python. ``vmap`` calls them one after the other. Results are rounded to the precision
    of ``initial``'s result under JAX's present float mode.

    Examples
    --------
    >>> import jax, numpy as np, covey
    >>> walk = covey.from_numpy(
    ...     initial=lambda rng, n: rng.normal(size=(n, 1)),
    ...     transition=lambda rng, x, obs: x + rng.normal(size=x.shape),
    ...     log_likelihood=lambda x, obs: -0.5 * (obs - x[:, 0]) ** 2,
    ... )
    >>> covey.run(jax.random.key(0), covey.bootstrap(walk, 100), np.array([0.3, 0.9])).ess.shape
    (2,)
    """

    def shape_of(value: Any) -> jax.ShapeDtypeStruct:
        value = np.asarray(value)
        return jax.ShapeDtypeStruct(value.shape, jax.dtypes.canonicalize_dtype(value.dtype))

    def call(function: Callable[..., Any], result: Any, *args: Any) -> Any:
        def on_host(*args: Any) -> Any:
            args = jax.tree.map(np.asarray, args)
            return jax.tree.map(
                lambda value, form: np.asarray(value, form.dtype), function(*args), result
            )

        return jax.pure_callback(on_host, result, *args, vmap_method="sequential")

    def seeded(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_generator(seed: np.ndarray, *args: Any) -> Any:
            return function(np.random.default_rng(seed), *args)

        return with_generator

    def draw_initial(key: Array, n: int) -> State:
        form = jax.tree.map(shape_of, initial(np.random.default_rng(0), n))
        return call(seeded(lambda rng: initial(rng, n)), form, _seed(key))

    def draw_next(key: Array, x: State, obs: Observation) -> State:
        return call(seeded(transition), _form(x), _seed(key), x, obs)

    def one_each(function: Callable[..., Any]) -> Callable[..., Array]:
        def numbers(x: State, *args: Any) -> Array:
            leaf = jax.tree.leaves(x)[0]
            dtype = leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else float
            form = jax.ShapeDtypeStruct(leaf.shape[:1], jax.dtypes.canonicalize_dtype(dtype))
            return call(function, form, x, *args)

        return numbers

    return StateSpaceModel(
        draw_initial,
        draw_next,
        one_each(log_likelihood),
        log_transition=None if log_transition is None else one_each(log_transition),
        features=features,
        measurement=measurement,
    )


def _form(x: State) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x)


def _seed(key: Array) -> Array:
    return jax.random.bits(key, (4,), jnp.uint32)
