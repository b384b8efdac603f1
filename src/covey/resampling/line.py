"""Laying particles on a line and counting points: the arithmetic that resamplers share.

Particles are laid end to end, stratum after stratum, each as long as the number of offspring it
should have. Stratum ``j`` is exactly ``number[j]`` long, an integer. A resampling scheme puts
points on this line; the offspring of a particle are the points that fall on it.

Two things make this fast and exact at once.

* *Lanes.* The ``N`` particles are viewed as ``rows`` x ``lanes``. One pass over the rows adds up
  all lanes side by side, and only the short list of lane totals is summed one after the other: no
  sort, no search, and no running sum of a million terms in single precision. The order on the
  line is stratum, then lane, then row.
* *Whole numbers.* A position is a whole number and a fraction in units of ``2**-18``, and what is
  carried from one particle to the next is the integer number of points so far. So the offspring
  of a stratum add up to ``number[j]``, whatever was rounded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from covey.fusion import apart, written_out

FRACTION_BITS = 18
UNIT = 1 << FRACTION_BITS

Position = tuple[Array, Array]
PointsBefore = Callable[[Position], Array]


def lane_count(size: int) -> int:
    """How many lanes to sum side by side: a power of two near ``sqrt(size) / 2``, 8 to 4096."""
    return 2 ** min(12, max(3, round(log2(0.6 * sqrt(max(size, 1))))))


def in_lanes(values: Array, fill: float = 0) -> Array:
    """View (N,) as (rows, lanes), the last row filled up."""
    lanes = lane_count(values.shape[0])
    rows = max(1, -(-values.shape[0] // lanes))
    room = rows * lanes - values.shape[0]
    # Padding within another computation keeps that from being vectorised.
    padded = apart(lambda: jnp.pad(values, (0, room), constant_values=fill))
    return padded.reshape(rows, lanes)


def lane_address(order: Array, rows: int, lanes: int) -> Array:
    """Where the ``order``-th entry, counted lane after lane, stands in a flat (rows, lanes)."""
    return order % rows * lanes + order // rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Strata:
    """Shares of particles, and their sums by lane and stratum; make one with :func:`sum_up`."""

    share: Array  # (rows, lanes), non-negative
    labels: Array | None  # (rows, lanes) integers in [0, K); None where K is 1
    before: Array  # (rows, lanes), sum over the lane and stratum up to the particle
    running: Array  # (rows, lanes), the same with the particle
    totals: Array  # (lanes, K)
    sizes: Array  # (lanes, K) integers, how many particles

    @property
    def count(self) -> int:
        """Number of strata K."""
        return self.totals.shape[1]

    @property
    def place(self) -> Array | None:
        """The (lane, stratum) of each particle as one index; None where K is 1."""
        return None if self.labels is None else _place(self.labels, self.count)

    def mass(self) -> Array:
        """Sum of the shares of each stratum: (K,)."""
        return self.totals.sum(0)

    def sums(self, values: Array) -> Array:
        """Sums over each stratum of values (rows, lanes): (K,)."""
        return sum_by_lane(values, self.labels, self.count).sum(0)

    def local(self, table: Array) -> Array:
        """Give each particle the entry of its lane and stratum in a table (lanes * K,)."""
        return table if self.place is None else table[self.place]

    def spread(self, table: Array) -> Array:
        """Give each particle its stratum's entry of a table (K,)."""
        return table[0] if self.labels is None else written_out(table)[self.labels]


def sum_up(share: Array, labels: Array | None, strata: int) -> Strata:
    """Add shares (rows, lanes) up along the lanes, for each of so many strata."""
    rows, lanes = share.shape
    if labels is None:
        totals, running = lax.scan(lambda total, row: (total + row,) * 2, share[0] * 0, share)
        before = jnp.concatenate([totals[None] * 0, running[:-1]])
        return Strata(share, labels, before, running, totals[:, None], jnp.full((lanes, 1), rows))

    def add_row(table: Array, row: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        value, label = row
        here = _place(label, strata)
        before = table[here]
        after = before + lax.complex(value, jnp.ones_like(value))
        return table.at[here].set(after, unique_indices=True), (before.real, after.real)

    # One table for both: sums as real parts, sizes as imaginary ones.
    table = jnp.zeros(lanes * strata, lax.complex(share[0, 0], share[0, 0]).dtype)
    table, (before, running) = lax.scan(add_row, table, (share, labels))
    table = table.reshape(lanes, strata)
    return Strata(share, labels, before, running, table.real, table.imag.astype(jnp.int32))


def sum_by_lane(values: Array, labels: Array | None, strata: int) -> Array:
    """Sums of values (rows, lanes) over each lane and stratum: (lanes, K)."""
    if labels is None:
        return values.sum(0)[:, None]
    return by_lane(jnp.add, 0, values, labels, strata)


def by_lane(
    combine: Callable[[Array, Array], Array],
    start: float,
    values: Array,
    labels: Array,
    strata: int,
) -> Array:
    """Combine values (rows, lanes) over each lane and stratum: (lanes, K)."""

    def row_step(table: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
        value, here = row
        return table.at[here].set(combine(table[here], value), unique_indices=True), None

    table = jnp.full(labels.shape[1] * strata, start, values.dtype)
    return lax.scan(row_step, table, (values, _place(labels, strata)))[0].reshape(-1, strata)


def _place(labels: Array, strata: int) -> Array:
    return jnp.arange(labels.shape[-1], dtype=jnp.int32) * strata + labels.astype(jnp.int32)


class Drawn(NamedTuple):
    """Who was drawn: (size,) indices of particles, and how many different ones there are."""

    ancestors: Array
    unique: Array


class Laid(NamedTuple):
    """Particles on the line: how long a share is, and where each (lane, stratum) starts."""

    scale: Array  # (K,)
    start: Position  # (lanes * K,) each
    border: Array  # (K,): where the strata end

    def reached(self, strata: Strata, running: Array) -> Position:
        """Where on the line the running sums (rows, lanes) of the particles' shares are."""
        whole, fraction = (strata.local(table) for table in self.start)
        return advance((whole, fraction), running * strata.spread(self.scale))


def lay(strata: Strata, number: Array, beyond: Array | None = None) -> Laid:
    """Lay particles end to end, in proportion to their shares inside each stratum.

    Parameters
    ----------
    strata : Strata
    number : (K,) integers, the length of each stratum; 0 where a stratum has no share.
    beyond : (K,) shares that follow the last particle of each stratum, or None.
    """
    totals, lanes = strata.totals, jnp.arange(strata.totals.shape[0])
    number = number.astype(jnp.int32)
    mass = strata.mass() + (0 if beyond is None else beyond)
    scale = jnp.where(mass > 0, number / jnp.where(mass > 0, mass, 1), 0).astype(totals.dtype)
    border = jnp.cumsum(number)
    last = jnp.where(totals > 0, lanes[:, None], -1).max(0)

    def next_lane(start: Position, lane: tuple[Array, Array]) -> tuple[Position, Position]:
        """Where the lane ends; the last one with any share ends at the border."""
        total, index = lane
        whole, fraction = advance(start, total * scale)
        full = whole >= border
        if beyond is None:
            full |= index >= last
        return (jnp.where(full, border, whole), jnp.where(full, 0, fraction)), start

    first = border - number, jnp.zeros_like(border)
    _, (whole, fraction) = lax.scan(next_lane, first, (totals, lanes))
    return Laid(scale, (whole.reshape(-1), fraction.reshape(-1)), border)


def advance(start: Position, length: Array) -> Position:
    """Go on from a position by a non-negative length."""
    steps = jnp.floor(length)
    parts = jnp.round((length - steps) * UNIT).astype(jnp.int32) + start[1]
    return start[0] + steps.astype(jnp.int32) + (parts >> FRACTION_BITS), parts & (UNIT - 1)


def draw_points(
    strata: Strata, number: Array, points_before: PointsBefore, size: int, *, costly: bool = False
) -> Drawn:
    """Give each point of the line to the particle it falls on.

    Parameters
    ----------
    strata, number : as in :func:`lay`
    points_before : nondecreasing function of a position, ``p`` at every border ``p`` of strata
    size : int, the number of points: the sum of ``number``
    costly : bool, whether to ask ``points_before`` but once a particle
    """
    first, after, up_to = _points(strata, number, points_before)

    def address(before: Array, now: Array) -> Array:
        # Particles without offspring write to a spare slot: cheaper than a branch for each.
        slots = lane_count(size)
        spare = slots * -(-size // slots)
        return jnp.where(now > before, _slot_address(before, size, slots), spare)

    if strata.place is None:
        return _fill(_with_former(address, first, up_to(strata.running), None), size)
    # Stratum after stratum would scatter the offspring; lane after lane they stay near.
    held = after - first
    shift = written_out(jnp.cumsum(held) - held - first)

    def shifted(running: Array) -> Array:
        return up_to(running) + strata.local(shift)

    if costly:
        now = shifted(strata.running)
        return _fill(_with_former(address, first + shift, now, strata.place), size)
    return _fill(apart(lambda: address(shifted(strata.before), shifted(strata.running))), size)


def count_points(
    strata: Strata, number: Array, points_before: PointsBefore, *, costly: bool = False
) -> Array:
    """Count the points on each particle: (rows, lanes), ``number[j]`` in all over stratum ``j``.

    Parameters are those of :func:`draw_points`; ``number`` may add up to anything.
    """
    first, _, up_to = _points(strata, number, points_before)
    if strata.place is None or costly:
        return _with_former(lambda b, n: n - b, first, up_to(strata.running), strata.place)
    return up_to(strata.running) - up_to(strata.before)


def _points(
    strata: Strata, number: Array, points_before: PointsBefore
) -> tuple[Array, Array, Callable[[Array], Array]]:
    """Points before each (lane, stratum) and after it, flat, and up to running sums of particles.

    The running sum after a particle is the one before the next of its lane and stratum, to the
    last bit. So both have the same points before them, and none is lost or given twice.
    """
    laid = lay(strata, number)
    laid = Laid(written_out(laid.scale), written_out(laid.start), laid.border)
    first = written_out(points_before(laid.start))
    ends = jnp.concatenate([first.reshape(strata.totals.shape)[1:], laid.border[None]])
    after, totals = written_out((ends.reshape(-1), strata.totals.reshape(-1)))

    def up_to(running: Array) -> Array:
        found, most = points_before(laid.reached(strata, running)), strata.local(after)
        return jnp.where(running >= strata.local(totals), most, jnp.minimum(found, most))

    return first, after, up_to


def _with_former(
    function: Callable[[Array, Array], Array], first: Array, now: Array, place: Array | None
) -> Array:
    """Work out ``function(before, now)``; ``before`` is the ``now`` of the particle before."""

    def row_step(last: Array, row: tuple[Array, Array | None]) -> tuple[Array, Array]:
        now, here = row
        if here is None:
            return now, function(last, now)
        return last.at[here].set(now, unique_indices=True), function(last[here], now)

    return lax.scan(row_step, first, (now, place))[1]


def draw_counted(counts: Array, size: int) -> Drawn:
    """Give each particle as many offspring as ``counts`` (rows, lanes) says, ``size`` in all."""
    slots = lane_count(size)
    spare = slots * -(-size // slots)
    totals = counts.sum(0)

    def place(first: Array, row: Array) -> tuple[Array, Array]:
        return first + row, jnp.where(row > 0, _slot_address(first, size, slots), spare)

    _, address = lax.scan(place, jnp.cumsum(totals) - totals, counts)
    return _fill(address, size)


def _fill(address: Array, size: int) -> Drawn:
    """From the slot of each particle's first offspring, all offspring.

    The offspring of one particle stand near it, so that gathering the states is local.
    """
    slots = lane_count(size)
    height = -(-size // slots)
    spare = height * slots
    marks = jnp.full(spare + 1, -1, jnp.int32)
    marks = marks.at[address.reshape(-1)].set(
        jnp.arange(address.size, dtype=jnp.int32), mode="promise_in_bounds"
    )
    marks = marks[:-1].reshape(height, slots)

    def fill(mark: Array, row: Array) -> tuple[Array, Array]:
        mark = jnp.where(row < 0, mark, row)
        return mark, mark

    def last_mark(state: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], None]:
        mark, count = state
        return (jnp.where(row < 0, mark, row), count + (row >= 0)), None

    none = jnp.full(slots, -1, jnp.int32)
    (last, parents), _ = lax.scan(last_mark, (none, jnp.zeros(slots, jnp.int32)), marks)
    source = lax.cummax(jnp.where(last < 0, 0, jnp.arange(slots)))
    earlier = jnp.pad(last[source][:-1], (1, 0))
    ancestors = lax.scan(fill, earlier, marks)[1].reshape(-1)[:size]
    return Drawn(ancestors, parents.sum())


def _slot_address(slot: Array, size: int, slots: int) -> Array:
    """Where slot ``s`` of ``size`` is kept: lanes of consecutive slots, the first ones longer."""
    height = -(-size // slots)
    longer = size - (height - 1) * slots
    split, short = longer * height, max(height - 1, 1)
    tail = slot - split
    return jnp.where(
        slot < split, lane_address(slot, height, slots), longer + lane_address(tail, short, slots)
    )
