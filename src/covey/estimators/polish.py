"""Births and deaths of centres, and guests from other collapses, as long as they pay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from covey.estimators.collapse import collapse, ward
from covey.estimators.lloyd import State, lloyd
from covey.estimators.points import Array, Points, systematic

WORTHWHILE = 2e-4
"""A round that gains less, in parts of the inertia, counts as a failure."""

SETTLE, REFINE = 3, 8
"""Lloyd's iterations after births or on a guest, and at the end of a round."""

GUESTS = 3
"""Particles for each cluster that a guest collapses from."""


def breathe(
    points: Points,
    state: State,
    rng: Generator,
    *,
    patience: int,
    most: int = 100,
    report: Callable[[State], None] = lambda state: None,
) -> State:
    """Try other centres in rounds, keep what is better, and stop when several rounds fail.

    Parameters
    ----------
    patience : int, how many rounds in a row may fail
    most : int, how many rounds there may be at most
    report : (State) -> None, called with every state that is better than all before

    Notes
    -----
    Most rounds add centres and take as many of the least useful away, as breathing k-means does
    (Fritzke, *The breathing k-means algorithm*, 2020). Births are drawn, by ``w D^2`` as particles
    are, which finds what no centre serves, or as twins of centres by the inertia of their cells,
    which divides what one serves badly; many of them to leave a valley, then few to improve within.
    That does best where clusters touch. Another round collapses anew and joins what it finds with
    what there is, which does best where there are many dimensions.
    """
    failed = 0
    plan = [
        _breath(_twins, 0.3),
        _guest,
        _breath(_strangers, 0.3),
        _breath(_twins, 0.1),
        _breath(_strangers, 0.1),
    ]
    for turn in range(most):
        start = plan[turn % len(plan)](points, state, rng)
        gain = 0.0
        if start is not None:
            found = lloyd(points, start, REFINE, overshoot=0.8, goal=state.inertia)
            gain = state.inertia - found.inertia
        # Where clusters touch, Lloyd's iterations alone always gain a little.
        failed = 0 if gain > WORTHWHILE * state.inertia else failed + 1
        if gain > 0:
            state = found
            report(state)
        if failed >= patience:
            break
    return state


def _guest(points: Points, state: State, rng: Generator) -> State | None:
    """Merge the intersections of the cells with those of another collapse.

    Where the two disagree the intersections are small, and the cheaper boundary survives.
    """
    k = len(state.centres)
    centres, _ = collapse(points, GUESTS * k, k, rng, least=0).groups(k)
    if len(centres) < k:
        return None
    guest = lloyd(points, State.at(points, centres), SETTLE)
    pairs, label = np.unique(state.label * k + guest.label, return_inverse=True)
    positions, masses = points.means(label, len(pairs))
    if len(masses) < k:
        return None
    return State.at(points, ward(positions, masses, k).groups(k)[0])


Births = Callable[[Points, State, int, Generator], Array]


def _breath(births: Births, share: float) -> Callable[[Points, State, Generator], State | None]:
    def breath(points: Points, state: State, rng: Generator) -> State | None:
        k = len(state.centres)
        born = births(points, state, int(np.ceil(share * k)), rng)
        if not len(born):
            return None
        crowd = lloyd(points, _joined(points, state, born), SETTLE, tolerance=1e-4)
        return without_least_useful(points, crowd.centres, k)

    return breath


def _strangers(points: Points, state: State, count: int, rng: Generator) -> Array:
    """Points drawn in proportion to ``w D^2``: (m, d), none where every point is a centre."""
    mass = points.weight * state.distance
    return points.rows(np.unique(systematic(mass, count, rng)) if mass.max() > 0 else np.arange(0))


def _twins(points: Points, state: State, count: int, rng: Generator) -> Array:
    """Centres drawn in proportion to the inertia of their cells, moved by a little: (m, d)."""
    k, d = state.centres.shape
    mass = np.bincount(state.label, points.weight * state.distance, k)
    if not mass.max() > 0:
        return np.empty((0, d))
    parents = np.unique(systematic(mass, count, rng))
    width = np.sqrt(state.inertia / points.weight.sum() / d)
    return state.centres[parents] + 0.02 * width * rng.standard_normal((len(parents), d))


def _joined(points: Points, state: State, born: Array) -> State:
    """With the newborn beside the centres; only distances to the newborn need computing."""
    label, distance = points.nearest(born)
    closer = distance < state.distance
    return State.given(
        points,
        np.concatenate([state.centres, born]),
        np.where(closer, label + len(state.centres), state.label),
        np.where(closer, distance, state.distance),
    )


def without_least_useful(points: Points, centres: Array, k: int) -> State:
    """Take away the centres whose points are served nearly as well by others, until k are left.

    The use of a centre is what the inertia would rise by, were it alone taken away and no other
    moved: ``sum_i w_i (D2_i^2 - D1_i^2)`` over its points, with the distances to the nearest and
    the second nearest centre. Those who would serve many points of one that goes must stay, as
    their own use has risen.
    """
    count = len(centres)
    first, near, second, far = points.two_nearest(centres)
    use = np.bincount(first, points.weight * (far - near), count)
    moves = np.bincount(first * count + second, points.weight, count * count)
    heirs = moves.reshape(count, count)
    share = heirs / np.maximum(heirs.sum(1, keepdims=True), np.finfo(float).tiny)
    gone = _choose(np.argsort(use, kind="stable"), share, count - k)
    orphan = gone[first]
    label, distance = np.where(orphan, second, first), np.where(orphan, far, near)
    label = (np.cumsum(~gone) - 1)[label]
    # Where the second nearest is gone too, look again among all.
    lost = np.flatnonzero(orphan & gone[second])
    if len(lost):
        label[lost], distance[lost] = points.take(lost).nearest(centres[~gone])
    return State.given(points, centres[~gone], label, distance)


def _choose(order: Array, share: Array, number: int) -> Array:
    """Mark (count,) that many, in this order, passing over heirs of those chosen before."""
    gone = np.zeros(len(order), bool)
    # Who inherits 15% must stay; if so too few can go, who inherits half; if so too few, no one.
    for much in (0.15, 0.5, 2.0):
        heir = np.any(share[gone] > much, axis=0)
        for centre in order:
            if not number:
                return gone
            if not heir[centre] and not gone[centre]:
                gone[centre] = True
                number -= 1
                heir |= share[centre] > much
    return gone
