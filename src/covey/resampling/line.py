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
from typing import Any, NamedTuple

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
    running: Array  # (rows, lanes), sum over the lane and stratum up to and with the particle
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

    def spread(self, table: Array) -> Array:
        """Give each particle its stratum's entry of a table (K,)."""
        return table[0] if self.labels is None else written_out(table)[self.labels]


def sum_up(share: Array, labels: Array | None, strata: int) -> Strata:
    """Add shares (rows, lanes) up along the lanes, for each of so many strata."""
    rows, lanes = share.shape
    if labels is None:
        totals, running = lax.scan(lambda total, row: (total + row,) * 2, share[0] * 0, share)
        return Strata(share, labels, running, totals[:, None], jnp.full((lanes, 1), rows))

    def add_row(tables: tuple[Array, Array], row: tuple[Array, Array]) -> Any:
        (total, size), (value, here) = tables, row
        after = total[here] + value
        total = total.at[here].set(after, unique_indices=True)
        return (total, size.at[here].add(1, unique_indices=True)), after

    start = jnp.zeros(lanes * strata, share.dtype), jnp.zeros(lanes * strata, jnp.int32)
    tables, running = lax.scan(add_row, start, (share, _place(labels, strata)))
    return Strata(share, labels, running, *(table.reshape(lanes, strata) for table in tables))


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
    return jnp.arange(labels.shape[1]) * strata + labels


class Drawn(NamedTuple):
    """Who was drawn: (size,) indices of particles, and how many different ones there are."""

    ancestors: Array
    unique: Array


@dataclass(frozen=True)
class Laid:
    """Particles on the line: their ends, where each (lane, stratum) starts, and who closes one."""

    end: Position  # (rows, lanes) each
    start: Position  # (lanes * K,) each
    closes: Array  # (rows, lanes): the running sum has reached the total of its lane and stratum
    border: Array  # (K,): where the strata end


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
    _, start = lax.scan(next_lane, first, (totals, lanes))
    start = start[0].reshape(-1), start[1].reshape(-1)
    place = strata.place
    here = (lambda table: table) if place is None else (lambda table: table[place])
    end = advance((here(start[0]), here(start[1])), strata.running * strata.spread(scale))
    return Laid(end, start, strata.running >= here(totals.reshape(-1)), border)


def advance(start: Position, length: Array) -> Position:
    """Go on from a position by a non-negative length."""
    steps = jnp.floor(length)
    parts = jnp.round((length - steps) * UNIT).astype(jnp.int32) + start[1]
    return start[0] + steps.astype(jnp.int32) + (parts >> FRACTION_BITS), parts & (UNIT - 1)


def draw_points(strata: Strata, number: Array, points_before: PointsBefore, size: int) -> Drawn:
    """Give each point of the line to the particle it falls on.

    Parameters
    ----------
    strata, number : as in :func:`lay`
    points_before : nondecreasing function of a position, ``p`` at every border ``p`` of strata
    size : int, the number of points: the sum of ``number``
    """
    first, so_far = _points_up_to(strata, number, points_before)
    if strata.labels is not None:
        first, so_far = _lane_by_lane(first, so_far, strata, number)
    slots = lane_count(size)
    spare = slots * -(-size // slots)

    def place(counted: Array, row: tuple[Array, Array | None]) -> tuple[Array, Array]:
        now, here = row
        before = counted if here is None else counted[here]
        # Particles without offspring write to a spare slot: cheaper than a branch for each.
        address = jnp.where(now > before, _slot_address(before, size, slots), spare)
        return now if here is None else counted.at[here].set(now, unique_indices=True), address

    _, address = lax.scan(place, first, (so_far, strata.place))
    return _fill(address, size)


def _lane_by_lane(
    first: Array, so_far: Array, strata: Strata, number: Array
) -> tuple[Array, Array]:
    """Number the points anew, lane by lane instead of stratum by stratum: offspring stay near."""
    border = jnp.cumsum(number.astype(jnp.int32))
    after = jnp.concatenate([first.reshape(strata.totals.shape)[1:], border[None]])
    held = after.reshape(-1) - first
    new_first = jnp.cumsum(held) - held
    return new_first, so_far + written_out(new_first - first)[strata.place]


def count_points(strata: Strata, number: Array, points_before: PointsBefore) -> Array:
    """Count the points on each particle: (rows, lanes), ``number[j]`` in all over stratum ``j``.

    Parameters are those of :func:`draw_points`; ``number`` may add up to anything.
    """
    first, so_far = _points_up_to(strata, number, points_before)

    def difference(counted: Array, row: tuple[Array, Array | None]) -> tuple[Array, Array]:
        now, here = row
        before = counted if here is None else counted[here]
        return now if here is None else counted.at[here].set(now, unique_indices=True), now - before

    return lax.scan(difference, first, (so_far, strata.place))[1]


def _points_up_to(
    strata: Strata, number: Array, points_before: PointsBefore
) -> tuple[Array, Array]:
    """Points before each (lane, stratum), flat, and up to the end of each particle."""
    laid, place = lay(strata, number), strata.place
    first = written_out(points_before(laid.start))
    table = first.reshape(strata.totals.shape)
    limit = written_out(jnp.concatenate([table[1:], laid.border[None]]).reshape(-1))
    limit = limit if place is None else limit[place]
    return first, jnp.where(laid.closes, limit, jnp.minimum(points_before(laid.end), limit))


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
