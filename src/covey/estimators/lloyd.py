"""Lloyd's iterations where scikit-learn's do not serve: on few points, and on data not copied.

``KMeans.fit`` checks, copies and centres its data, which costs as much as some iterations: too
much when a search starts Lloyd a hundred times, and too much memory for very many points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covey.estimators.data import Blocks
from covey.estimators.points import Array, Points

LEAP = 3
"""How much further than to the mean every third step goes, in parts of the step.

Where clusters touch, steps are short and alike for a long time. So fewer are needed, and
shallow minima are leapt over.
"""

TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class State:
    """Centres (k, d), the nearest of each point (n,), squared distances (n,), and the inertia."""

    centres: Array
    label: Array
    distance: Array
    inertia: float

    @classmethod
    def at(cls, points: Points, centres: Array) -> State:
        """Assign all points anew."""
        return cls.given(points, centres, *points.nearest(centres))

    @classmethod
    def given(cls, points: Points, centres: Array, label: Array, distance: Array) -> State:
        """Take an assignment that is known."""
        return cls(centres, label, distance, float(points.weight @ distance))


def lloyd(
    points: Points,
    state: State,
    iterations: int,
    *,
    tolerance: float = 1e-5,
    overshoot: float = 0.0,
    goal: float = np.inf,
) -> State:
    """Move centres to the means of their points until the inertia falls by less than a tolerance.

    Parameters
    ----------
    overshoot : float
        How much further than the mean a centre goes, in parts of its step. Steps of Lloyd are
        short where clusters touch; half as much again needs fewer of them.
    goal : float
        Give up when two more steps as good as the last one would not bring the inertia here.
    """
    for step in range(iterations):
        centres = _moved(points, state)
        if 0 < step < iterations - 1:
            centres = centres + overshoot * (centres - state.centres)
        before, after = state.inertia, State.at(points, centres)
        if not after.inertia < before:
            break
        state, gain = after, before - after.inertia
        hopeless = step > 0 and state.inertia - 2 * gain > goal
        if gain <= tolerance * state.inertia or hopeless:
            break
    return state


def _moved(points: Points, state: State) -> Array:
    """Means of the cells; the centre of an empty cell goes to one of the farthest points."""
    sums, mass = points.cells(state.label, len(state.centres))
    empty = np.flatnonzero(mass <= 0)
    if len(empty):
        cost = points.weight * state.distance
        far = np.argpartition(-cost, min(len(empty), len(cost)) - 1)[: len(empty)]
        sums[empty[: len(far)]], mass[empty[: len(far)]] = points.rows(far), 1
        stay = empty[len(far) :]
        sums[stay], mass[stay] = state.centres[stay], 1
    return sums / mass[:, None]


def lloyd_in_blocks(
    blocks: Blocks,
    centres: Array,
    max_iter: int,
    tolerance: float,
    report: Callable[[int, float], None] = lambda iteration, inertia: None,
) -> tuple[Array, int]:
    """Lloyd's iterations over data of any size, until the centres hardly move.

    Parameters
    ----------
    centres : (k, d), the start
    tolerance : float, stop when the sum of squares of their moves is not more
    report : (iteration, inertia) -> None, called in every iteration

    Returns
    -------
    centres (k, d), and how many iterations were done
    """
    k, done = len(centres), 0

    def sums(block: Points) -> tuple[Array, Array, float]:
        label, distance = block.nearest(centres)
        return *block.cells(label, k), float(block.weight @ distance)

    for done in range(1, max_iter + 1):
        parts = zip(*blocks.map(sums), strict=True)
        total, mass, inertia = (sum(part) for part in parts)
        report(done, inertia)
        empty = np.flatnonzero(mass <= 0)
        if len(empty):
            far = _farthest(blocks, centres, len(empty))
            empty = empty[: len(far)]
            total[empty], mass[empty] = far, 1
        moved = np.where(mass[:, None] > 0, total / np.maximum(mass, TINY)[:, None], centres)
        shift = float(((moved - centres) ** 2).sum())
        # Not to the end: a centre that leaps never stands still.
        leap = LEAP if done % 3 == 2 and shift > 16 * tolerance > 0 and done < max_iter else 0
        centres = moved + leap * (moved - centres)
        if shift <= tolerance:
            break
    return centres, done


def assigned(blocks: Blocks, centres: Array) -> tuple[Array, float]:
    """Nearest centre of each row (n,), and the inertia."""

    def one(block: Points) -> tuple[Array, float]:
        label, distance = block.nearest(centres)
        return label.astype(np.int32), float(block.weight @ distance)

    labels, inertias = zip(*blocks.map(one), strict=True)
    return np.concatenate(labels), float(sum(inertias))


def _farthest(blocks: Blocks, centres: Array, count: int) -> Array:
    """Up to ``count`` points (m, d) that cost most where they are, none that cost nothing."""

    def candidates(block: Points) -> tuple[Array, Array]:
        cost = block.weight * block.nearest(centres)[1]
        index = np.argsort(-cost, kind="stable")[:count]
        index = index[cost[index] > 0]
        return cost[index], block.rows(index)

    found = list(blocks.map(candidates))
    cost, rows = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows[np.argsort(-cost, kind="stable")[:count]]
