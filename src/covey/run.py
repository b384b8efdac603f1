"""Run a filter over observations, all at once or as they arrive: one verb and its online twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from covey.errors import FilterError, raise_failure
from covey.filters.base import Filter
from covey.history import Estimate, History
from covey.keys import quick
from covey.models.base import Observation, is_masked, observed_array
from covey.particles import Particles

Save = str | Callable[[Particles], Any]

_compiled: WeakKeyDictionary[Filter, Callable[..., Any]] = WeakKeyDictionary()


def run(
    key: Array,
    filter: Filter,
    obs: Observation,
    *,
    save: Save = "summary",
    missing: Any = None,
    on_failure: str = "raise",
    progress: bool = False,
) -> History:
    """Run a filter over observations ``1, ..., T``.

    Works under ``jax.jit`` and ``jax.vmap``: over keys, observations, and models made inside.

    Parameters
    ----------
    key : JAX random key; the same key gives the same history
    filter : Filter, for instance :func:`covey.bootstrap`
    obs : array, masked array or pytree whose leaves lead with T
        A list stands for an array, or for one record of arrays if it lists dictionaries or
        tuples. NaN or masked entries are missing: a step where all that is measured is NaN is
        skipped, a partly missing one is left to the model's ``log_likelihood``.
    save : "summary", "particles" or function ``particles -> pytree``
        What to keep of each step: only the summaries, whose size does not depend on the number
        of particles; all particles, for :meth:`History.ancestry`; or whatever a function returns.
    missing : (T,) bools, optional
        True where a step has no observation.
    on_failure : "raise" or "flag"
        What to do when a step goes wrong (all particles at zero likelihood, NaN, +inf): raise a
        :class:`covey.FilterError` that names the step, the cause and the remedy; or keep the
        weights of before, go on, and say so in ``history.status``.
    progress : bool
        Show a progress bar. Not under ``jit`` or ``vmap``.

    Returns
    -------
    History

    Notes
    -----
    The compiled loop is kept with the filter. Make a filter once and run it often; a new filter, a
    new number of steps and a new ``save`` function (each ``lambda`` is one) compile again.

    Within ``jit`` a failing step raises ``jax.errors.JaxRuntimeError`` whose message ends with
    that of the :class:`covey.FilterError`.

    Examples
    --------
    >>> import jax, covey
    >>> model = covey.models.StochasticVolatility()
    >>> _, y = covey.simulate(jax.random.key(0), model, 50)
    >>> history = covey.run(jax.random.key(1), covey.bootstrap(model, 1000), y)
    >>> history.mean.shape, history.ess.shape
    ((50, 1), (50,))
    """
    _check(key, filter, on_failure)
    saver = _saver(save)
    obs, missing, steps = _records(obs, missing)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((key, obs, missing)))
    if progress and traced:
        raise ValueError("progress=True cannot show a bar under jit or vmap; leave it out there")
    many = _many(filter)
    initial = particles = filter.init(jax.random.fold_in(key, 0))
    blocks: list[Any] = []
    for start, stop in _track(_pieces(filter, steps, progress), steps, progress):
        piece = jax.tree.map(lambda leaf, at=slice(start, stop): leaf[at], (obs, missing))
        n = filter.particles_at(start + 1)
        particles, block = many(key, particles, start + 1, *piece, n=n, save=saver)
        blocks.append(block)
    history = _history(blocks, particles, initial if save == "particles" else None)
    if on_failure == "raise":
        raise_failure(history, filter.particles_at)
    return history


class State(NamedTuple):
    """Where a session stands."""

    step: int
    particles: Particles
    estimate: Estimate | None


class Session:
    """A filter that takes observations one at a time; make one with :func:`covey.online`.

    An update that fails or is interrupted leaves the session as it was.

    Attributes
    ----------
    key, filter, on_failure : as in :func:`covey.online`
    """

    def __init__(
        self, key: Array, filter: Filter, on_failure: str = "raise", state: State | None = None
    ) -> None:
        _check(key, filter, on_failure)
        self.key = key
        self.filter = filter
        self.on_failure = on_failure
        start = State(0, filter.init(jax.random.fold_in(key, 0)), None) if state is None else state
        self.state = start

    @property
    def step(self) -> int:
        """Number of observations taken in."""
        return self.state.step

    @property
    def particles(self) -> Particles:
        """Particles after the last observation."""
        return self.state.particles

    @property
    def estimate(self) -> Estimate | None:
        """Estimate of the last step, None before the first."""
        return self.state.estimate

    def update(self, obs: Observation, *, missing: bool = False) -> Estimate:
        """Take in one observation and return the estimate after it.

        If the step goes wrong (see ``on_failure`` of :func:`covey.run`) a
        :class:`covey.FilterError` is raised and the session stays as it was before.
        """
        step = self.step + 1
        n = self.filter.particles_at(step)
        record = jax.tree.map(lambda leaf: leaf[None], _arrays(obs))
        if not jax.tree.leaves(record):
            raise TypeError(
                f"an observation must be numbers or a pytree of numbers, got {obs!r}; a missing "
                "one is NaN in the shape of the others, or any number with missing=True"
            )
        absent = jnp.array([bool(missing)])
        particles, (estimates, _) = _many(self.filter)(
            self.key, self.particles, step, record, absent, n=n, save=_nothing
        )
        estimate = jax.tree.map(lambda leaf: leaf[0], estimates)
        # Errors of a model in plain Python arrive with the results: wait before trusting them.
        jax.block_until_ready((particles, estimate))
        if self.on_failure == "raise" and int(estimate.status):
            raise FilterError(int(estimate.status), step, n)
        self.state = State(step, particles, estimate)  # one assignment: all of it or nothing
        return estimate

    def save(self, path: Any) -> None:
        """Write the session to a file, at once or not at all; see :func:`covey.resume`."""
        from covey.checkpoint import write

        write(path, self)


def online(key: Array, filter: Filter, *, on_failure: str = "raise") -> Session:
    """Run a filter on a stream, with the same numbers as :func:`covey.run` for the same key.

    Parameters
    ----------
    key, filter, on_failure : as in :func:`covey.run`

    Examples
    --------
    >>> import jax, covey
    >>> session = covey.online(
    ...     jax.random.key(1), covey.bootstrap(covey.models.StochasticVolatility(), 1000))
    >>> estimate = session.update(0.3)
    >>> session.step, estimate.mean.shape
    (1, (1,))
    """
    return Session(key, filter, on_failure)


def resume(path: Any, filter: Filter, *, on_failure: str = "raise") -> Session:
    """Go on with a session that :meth:`Session.save` wrote, bit for bit as if never stopped.

    Parameters
    ----------
    path : file
    filter : the filter the session was made with; one of another shape is refused
    on_failure : as in :func:`covey.run`
    """
    from covey.checkpoint import read

    _check_filter(filter, on_failure)
    return read(path, filter, on_failure)


def _many(filter: Filter) -> Callable[..., Any]:
    """The compiled loop of a filter, kept as long as the filter is."""
    if filter not in _compiled:
        loop = partial(_loop, ref(filter))  # a loop that held its own key would never be let go
        _compiled[filter] = jax.jit(loop, static_argnames=("n", "save"))
    return _compiled[filter]


def _loop(
    filter_of: ref[Filter],
    key: Array,
    particles: Particles,
    first: Array,
    obs: Observation,
    missing: Array,
    *,
    n: int,
    save: Callable[[Particles], Any],
) -> tuple[Particles, tuple[Estimate, Any]]:
    """Take in a piece of the observations with n particles; the first step may change to n."""
    filter, key = filter_of(), quick(key)
    assert filter is not None  # its caller holds it

    def step(particles: Particles, inputs: tuple[Array, Observation, Array]) -> Any:
        index, record, absent = inputs
        particles = filter.step(
            jax.random.fold_in(key, index), particles, record, n=n, missing=absent
        )
        return particles, (Estimate.of(particles, index), save(particles))

    inputs = first + jnp.arange(missing.shape[0]), obs, missing
    if particles.n == n:
        return _scan(jax.jit(step), particles, inputs, missing.shape[0])
    particles, one = step(particles, jax.tree.map(lambda leaf: leaf[0], inputs))
    return particles, jax.tree.map(lambda leaf: leaf[None], one)


def _scan(step: Callable[..., Any], particles: Particles, inputs: Any, steps: int) -> Any:
    """``jax.lax.scan`` that takes a single step by the instructions of one among many.

    XLA dissolves a loop that it sees to turn once and fuses its body with what is around, so that
    a session would differ from a run in the last bit. Two rows, and a bound it does not see, keep
    the loop.
    """
    if steps == 1:
        inputs = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), inputs)

    def row(i: Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[i], inputs)

    shapes = jax.eval_shape(step, particles, row(jnp.int32(0)))[1]
    blank = jax.tree.map(lambda leaf: jnp.zeros((max(steps, 2), *leaf.shape), leaf.dtype), shapes)

    def body(i: Array, state: tuple[Particles, Any]) -> tuple[Particles, Any]:
        particles, kept = state
        particles, new = step(particles, row(i))
        return particles, jax.tree.map(lambda leaf, one: leaf.at[i].set(one), kept, new)

    bound = jax.lax.optimization_barrier(jnp.int32(steps))
    particles, kept = jax.lax.fori_loop(0, bound, body, (particles, blank))
    return particles, jax.tree.map(lambda leaf: leaf[:steps], kept)


def _pieces(filter: Filter, steps: int, progress: bool) -> list[tuple[int, int]]:
    """Cut the steps where the number of particles changes, and into a hundred for a bar."""
    cuts = {0, steps}
    if filter.n_initial != filter.n and filter.hold < steps:
        cuts |= {filter.hold, filter.hold + 1}
    if progress:
        start = filter.hold + 1 if filter.n_initial != filter.n else 0
        cuts |= set(range(start, steps, max(1, (steps - start) // 100)))
    ordered = sorted(cut for cut in cuts if cut <= steps)
    return [*pairwise(ordered)]


def _track(pieces: list[tuple[int, int]], steps: int, progress: bool) -> Iterator[tuple[int, int]]:
    if not progress:
        yield from pieces
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("filtering", total=steps)
        for start, stop in pieces:
            yield start, stop
            bar.update(task, completed=stop)


def _saver(save: Save) -> Callable[[Particles], Any]:
    if callable(save):
        return save
    if save not in ("summary", "particles"):
        raise ValueError(f"save must be 'summary', 'particles' or a function, got {save!r}")
    return _everything if save == "particles" else _nothing


def _nothing(particles: Particles) -> None:
    return None


def _everything(particles: Particles) -> dict[str, Any]:
    names = ("x", "log_w", "ancestors", "lost")
    return {name: getattr(particles, name) for name in names}


def _check(key: Any, filter: Any, on_failure: Any) -> None:
    """Refuse arguments in the wrong place before anything is compiled."""
    _check_filter(filter, on_failure)
    shape = getattr(key, "shape", None)
    typed = shape is not None and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if shape is None or not (typed or np.dtype(key.dtype) == np.uint32):
        raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {key!r}")
    if len(shape) != (0 if typed else 1):
        raise ValueError(
            f"key must be a single random key, got an array of shape {shape}; for several runs at "
            "once use jax.vmap(lambda key: covey.run(key, filter, obs))(keys)"
        )


def _check_filter(filter: Any, on_failure: Any) -> None:
    if not isinstance(filter, Filter):
        raise TypeError(
            f"filter must be a filter such as covey.bootstrap(model, 1000), got {filter!r}; it "
            "comes after the key, or the path of a session"
        )
    if on_failure not in ("raise", "flag"):
        raise ValueError(f"on_failure must be 'raise' or 'flag', got {on_failure!r}")


def _arrays(obs: Observation) -> Observation:
    """Observations as arrays; a list is one array, or one record of arrays if it lists records."""
    if isinstance(obs, list):
        if any(isinstance(record, dict | tuple) for record in obs):
            records = [jax.tree.map(observed_array, record, is_leaf=is_masked) for record in obs]
            return _stacked(records)
        obs = _array_of(obs)
    return jax.tree.map(observed_array, obs, is_leaf=is_masked)


def _array_of(rows: list[Any]) -> Any:
    """One array of a list of numbers or arrays, also of masked and of traced ones."""
    if any(isinstance(row, jax.core.Tracer) for row in rows):
        return jnp.asarray(rows)
    try:
        return np.ma.asarray(rows) if any(map(is_masked, rows)) else np.asarray(rows)
    except ValueError as error:
        raise ValueError(
            f"observations in a list must all have the same shape, got {rows!r:.200}; put NaN "
            "where something is missing"
        ) from error


def _stacked(records: list[Any]) -> Any:
    """One record of arrays of a list of records."""
    forms = [jax.tree.map(jnp.shape, record) for record in records]
    for step, form in enumerate(forms, 1):
        if form != forms[0]:
            raise ValueError(
                "records in a list must all have the same parts and shapes, got "
                f"{forms[0]} at step 1 and {form} at step {step}; put NaN where something is "
                "missing"
            )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *records)


def _records(obs: Observation, missing: Any) -> tuple[Observation, Array, int]:
    """Observations as arrays that lead with T, the mask of missing steps, and T."""
    obs = _arrays(obs)
    leaves = jax.tree.leaves(obs)
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in leaves}
    if len(sizes) != 1 or -1 in sizes:
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(
            "every leaf of the observations must lead with the number of steps, got shapes "
            f"{shapes}; for a single step use covey.online(...).update(obs)"
        )
    (steps,) = sizes
    missing = jnp.zeros(steps, bool) if missing is None else jnp.asarray(missing)
    if missing.shape != (steps,) or missing.dtype != bool:
        raise ValueError(
            f"missing must be {steps} bools, one for each step, got {missing.dtype}"
            f"{list(missing.shape)}"
        )
    return obs, missing, steps


def _history(blocks: list[Any], final: Particles, initial: Particles | None) -> History:
    if not blocks:
        one = Estimate.of(final, jnp.array(0))
        return History(jax.tree.map(lambda leaf: leaf[None][:0], one), (), final, initial)
    parts = [estimate for estimate, _ in blocks]
    estimates = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    return History(estimates, tuple(saved for _, saved in blocks), final, initial)
