"""What can go wrong in a filter, in words that say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from covey.particles import ALL_ZERO, INFINITE, NOT_A_NUMBER, STATE_NOT_FINITE

if TYPE_CHECKING:
    from covey.history import History

CAUSES = {
    ALL_ZERO: (
        "all {n} particles have zero likelihood",
        "the observation fits no particle: use more particles or a wider initial or transition "
        "law, give the likelihood heavier tails, or check the units of the observation",
    ),
    NOT_A_NUMBER: (
        "log_likelihood returned NaN for some of the {n} particles",
        "return -inf where a state is impossible, and say in log_likelihood what a partly missing "
        "observation (NaN in a component) weighs",
    ),
    INFINITE: (
        "log_likelihood returned +inf for some of the {n} particles",
        "a likelihood must be bounded: add noise to an exact observation, or bound the variance "
        "from below",
    ),
    STATE_NOT_FINITE: (
        "the transition gave states that are NaN or infinite to some of the {n} particles",
        "look for overflow, division by zero, or NaN controls in a missing observation: NaN in "
        "what drives the transition must be filled in before",
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


def raise_failure(history: History, n: int) -> None:
    """Raise for the first step that went wrong; from within compiled code by a callback."""
    status = history.steps.status
    if isinstance(status, jax.core.Tracer):
        # Returns None; without a result that anything depends on it must be a debug callback to
        # survive, and an ordered effect would not go through vmap.
        jax.debug.callback(_raise_first, status, history.steps.step, n)
    else:
        _raise_first(status, history.steps.step, n, history)


def _raise_first(statuses: Any, steps: Any, n: Any, history: History | None = None) -> None:
    status = np.asarray(statuses)
    failed = np.flatnonzero(status)
    if failed.size:
        first = failed[0]
        raise FilterError(int(status[first]), int(np.asarray(steps)[first]), int(n), history)
