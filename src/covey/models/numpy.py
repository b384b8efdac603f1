"""Models written in plain NumPy or Python: slower, and the same to use."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from covey.models.base import Observation, StateSpaceModel, check_real
from covey.particles import State, number_of, weight_dtype


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
    cost in Python. The functions get arrays of their own, which they may change. What they raise
    arrives within a ``jax.errors.JaxRuntimeError`` that ends with the function's name and the
    error. ``vmap`` calls them one after the other. Results are rounded to the precision
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

    def draw_initial(key: Array, n: int) -> State:
        form = jax.tree.map(_form, initial(np.random.default_rng(0), n))
        return _call(_seeded(lambda rng: initial(rng, n)), "initial", form, _seed(key))

    def draw_next(key: Array, x: State, obs: Observation) -> State:
        form = jax.tree.map(_form, x)
        return _call(_seeded(transition), "transition", form, _seed(key), x, obs)

    def one_each(function: Callable[..., Any], name: str) -> Callable[..., Array]:
        def numbers(x: State, *args: Any) -> Array:
            form = jax.ShapeDtypeStruct((number_of(x),), weight_dtype(x))
            return _call(function, name, form, x, *args)

        return numbers

    density = None if log_transition is None else one_each(log_transition, "log_transition")
    return StateSpaceModel(
        draw_initial,
        draw_next,
        one_each(log_likelihood, "log_likelihood"),
        log_transition=density,
        features=features,
        measurement=measurement,
    )


def _form(value: Any) -> jax.ShapeDtypeStruct:
    value = np.asarray(value) if not isinstance(value, Array) else value
    return jax.ShapeDtypeStruct(value.shape, jax.dtypes.canonicalize_dtype(value.dtype))


def _seed(key: Array) -> Array:
    return jax.random.bits(key, (4,), jnp.uint32)


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    def with_generator(seed: np.ndarray, *args: Any) -> Any:
        return function(np.random.default_rng(seed), *args)

    return with_generator


def _call(function: Callable[..., Any], name: str, form: Any, *args: Any) -> Any:
    """Call a function of the host from compiled code; errors of its own name it.

    Numbers of 64 bits travel as pairs of words: the call may come on a thread of its own, where
    JAX would round them if double precision were switched on by a ``with`` block.
    """
    args = jax.tree.map(jnp.asarray, args)
    types = jax.tree.map(lambda leaf: leaf.dtype, args)

    def on_host(*words: Any) -> Any:
        copies = jax.tree.map(_joined, words, types)  # which the function may change
        try:
            result = function(*copies)
        except Exception as error:
            raise RuntimeError(f"{name} of the model failed: {error!r}") from error
        return jax.tree.map(_parted, _fitted(result, form, name))

    words = jax.eval_shape(lambda leaves: jax.tree.map(_in_words, leaves), form)
    sent = jax.tree.map(_in_words, args)
    result = jax.pure_callback(on_host, words, *sent, vmap_method="sequential")
    return jax.tree.map(lambda like, leaf: _of_words(leaf, like.dtype), form, result)


def _wide(dtype: Any) -> bool:
    return dtype.itemsize == 8 and dtype.kind in "fiu"


def _in_words(leaf: Array) -> Array:
    return lax.bitcast_convert_type(leaf, jnp.uint32) if _wide(leaf.dtype) else leaf


def _of_words(leaf: Array, dtype: Any) -> Array:
    return lax.bitcast_convert_type(leaf, dtype) if _wide(dtype) else leaf


def _joined(leaf: Any, dtype: Any) -> np.ndarray:
    leaf = np.array(leaf)
    return leaf.view(dtype)[..., 0] if _wide(dtype) else leaf


def _parted(leaf: np.ndarray) -> np.ndarray:
    leaf = np.asarray(leaf, order="C")
    return leaf[..., None].view(np.uint32) if _wide(leaf.dtype) else leaf


def _fitted(result: Any, form: Any, name: str) -> Any:
    """A result of the host in the promised types, or an error in place of JAX's own."""
    if isinstance(form, jax.ShapeDtypeStruct) and isinstance(result, list):
        result = np.asarray(result)
    expected, got = jax.tree.map(lambda leaf: leaf.shape, form), jax.tree.map(np.shape, result)
    if got != expected:
        remedy = "a number for each particle" if name.startswith("log") else "states like the old"
        raise ValueError(f"{name} must return shape {expected}, got {got}; return {remedy}")
    return jax.tree.map(partial(_cast, name), form, result)


def _cast(name: str, like: Any, leaf: Any) -> np.ndarray:
    """A result in the promised precision, unless more than that would be lost."""
    leaf = np.asarray(leaf)
    if name.startswith("log"):
        check_real(leaf.dtype, name)
    if not np.can_cast(leaf.dtype, like.dtype, "same_kind"):
        raise ValueError(
            f"{name} must return {like.dtype} like the states it was given, got {leaf.dtype}; "
            "convert it there, or let initial return such states"
        )
    return leaf.astype(like.dtype)
