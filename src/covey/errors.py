"""What can go wrong in a filter, in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from covey.particles import ALL_ZERO, FINE, INFINITE, NOT_A_NUMBER, STATE_NOT_FINITE

if TYPE_CHECKING:
    from covey.history import History

CAUSES = {
    ALL_ZERO: (
        "all {n} particles have zero likelihood",
        "the observation fits no particle: use more particles or a wider initial or transition "
        "law, give the likelihood heavier tails, or check the units of the observation",
    ),
    NOT_A_NUMBER: (
        "the weights of some of the {n} particles are NaN, because log_likelihood (or in a guided "
        "or auxiliary filter log_transition, the proposal or the lookahead) returned NaN",
        "return -inf where a state is impossible; say in log_likelihood what a partly missing "
        "observation (NaN in a component) weighs; and if a record also holds controls or time "
        "steps, tell the model by measurement=... which part of it is measured",
    ),
    INFINITE: (
        "the weights of some of the {n} particles are infinite, because log_likelihood (or in a "
        "guided or auxiliary filter log_transition, the proposal or the lookahead) returned +inf",
        "a likelihood must be bounded: add noise to an exact observation, or bound the variance "
        "from below",
    ),
    STATE_NOT_FINITE: (
        "the states of some of the {n} particles are NaN or infinite after the transition",
        "look in initial and transition for overflow, division by zero, or NaN controls in a "
        "missing observation: NaN in what drives the transition must be filled in before",
    ),
}


class FilterError(RuntimeError):
    """A step of a filter went wrong.

    Attributes
    ----------
    status : int, the kind of failure
    step : int, the observation at which it happened, counted from 1
    history : History or None, what there is up to the end, with the failing steps skipped
    """

    def __init__(self, status: int, step: int, n: int, history: History | None = None) -> None:
        cause, remedy = CAUSES[status]
        super().__init__(
            f"step {step}: {cause.format(n=n)}. {remedy[0].upper()}{remedy[1:]}. "
            "Or pass on_failure='flag' to skip such observations and have them flagged."
        )
        self.status, self.step, self.n, self.history = status, step, n, history

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.step, self.n)


def raise_failure(history: History, particles_at: Callable[[int], int]) -> None:
    """Raise for the first step that went wrong, with the number of particles it had.

    From within compiled code the error is raised by a callback while the program runs. JAX then
    raises a ``jax.errors.JaxRuntimeError`` where the compiled function is called (or where its
    result is first used, on devices that run ahead), whose message ends with this one.
    """
    status = history.steps.status
    if isinstance(status, jax.core.Tracer):
        _report(partial(_raise_first, particles_at), status)
    else:
        _raise_first(particles_at, status, history)


def _report(raise_first: Callable[[Any], None], status: Array) -> None:
    """Call back with the statuses (T,) of the run, or under vmap of the first run that failed.

    Returns None; without a result that anything depends on it must be a debug callback to survive,
    and an ordered effect would not go through vmap. Left to itself vmap would compile a callback
    for each run.
    """

    @jax.custom_batching.custom_vmap
    def report(status: Array) -> tuple[()]:
        jax.debug.callback(raise_first, status)
        return ()

    @report.def_vmap
    def _(size: int, batched: Any, status: Array) -> tuple[tuple[()], tuple[()]]:
        return report(status[(status != FINE).any(1).argmax()]), ()

    report(status)


def _raise_first(
    particles_at: Callable[[int], int], statuses: Any, history: History | None = None
) -> None:
    status = np.asarray(statuses)
    failed = np.flatnonzero(status)
    if failed.size:
        step = int(failed[0]) + 1
        raise FilterError(int(status[failed[0]]), step, particles_at(step), history)
