"""The classical resampling schemes, each as one function that says who has how many offspring.

References
----------
Douc, Cappe and Moulines (2005), *Comparison of resampling schemes for particle filtering*;
Gerber, Chopin and Whiteley (2019), *Negative association, ordering and convergence of resampling
methods* (SSP); Del Moral (2004), *Feynman-Kac Formulae* (killing).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from covey import noise
from covey.fusion import apart, written_out
from covey.particles import Particles, checked_number
from covey.resampling.line import (
    FRACTION_BITS,
    UNIT,
    Drawn,
    PointsBefore,
    Position,
    Strata,
    by_lane,
    count_points,
    draw_counted,
    draw_points,
    in_lanes,
    lane_address,
    lane_count,
    lay,
    sum_up,
)

Draw = Callable[[Array, Strata, Array, int], Drawn]


@dataclass(frozen=True)
class Scheme:
    """A resampling scheme: a resampler, and what :func:`covey.clustered` uses within clusters.

    Calling it with ``(key, particles, n)`` draws ``n`` particles with expected offspring
    ``n * w_i`` and gives them equal weights.

    Parameters
    ----------
    name : str
    draw : function ``(key, strata, number, size) -> drawn``
        ``strata`` holds the particles' weights up to a factor; ``number`` (K,) says how many to
        draw from each stratum, ``size`` in all. Returns their indices (size,) and how many
        different ones there are.
    """

    name: str
    draw: Draw

    def __call__(self, key: Array, particles: Particles, n: int) -> Particles:
        """Draw n offspring, all of the same weight."""
        n = checked_number(n)
        share = jnp.exp(in_lanes(particles.log_w - particles.log_w.max(), -jnp.inf))
        drawn = self.draw(key, sum_up(share, None, 1), jnp.array([n], jnp.int32), n)
        return particles.select(drawn.ancestors, unique=drawn.unique)

    def __repr__(self) -> str:
        return f"covey.{self.name}"


def _systematic(key: Array, strata: Strata, number: Array, size: int) -> Drawn:
    return draw_points(strata, number, _even_points(key), size)


def _even_points(key: Array) -> PointsBefore:
    """One point at the same place of every unit of the line."""
    offset = jax.random.randint(key, (), 0, UNIT)
    return lambda position: position[0] + (position[1] > offset)


def _stratified(key: Array, strata: Strata, number: Array, size: int) -> Drawn:
    offsets = apart(lambda: jax.random.bits(key, (size + 1,), jnp.uint32) >> 32 - FRACTION_BITS)
    offsets = offsets.astype(jnp.int32)
    return draw_points(strata, number, lambda p: p[0] + (p[1] > offsets[p[0]]), size)


def _multinomial(key: Array, strata: Strata, number: Array, size: int) -> Drawn:
    points_before = _uniform_points(key, number, size)
    return draw_points(strata, number, points_before, size, costly=True)


def _uniform_points(key: Array, number: Array, size: int) -> PointsBefore:
    """Lay ``number[j]`` uniform points on stratum ``j``; return how many lie before a position.

    Exponential spacings give the points in order; positions have no more digits than single
    precision. A table over the unit cells of the line says which points lie in a cell, and
    bisection among those few finds the rest.
    """
    lanes, kinds = lane_count(size), number.shape[0]
    rows = -(-size // lanes)
    in_order = jnp.arange(lanes) * rows + jnp.arange(rows)[:, None]
    border = jnp.cumsum(number)
    exists = in_order < border[-1]
    labels = None if kinds == 1 else (in_order[..., None] >= border[:-1]).sum(-1)
    key, beyond = jax.random.split(key)
    spacing = jnp.where(exists, noise.exponential(key, (rows, lanes), jnp.float32), 0)
    spacings = sum_up(spacing, labels, kinds)
    laid = lay(spacings, number, noise.exponential(beyond, (kinds,), jnp.float32))
    end_here = spacings.spread(border)
    whole, part = laid.reached(spacings, spacings.running)
    outside = whole >= end_here
    cell = jnp.where(outside, end_here - 1, whole)
    cell, fraction = written_out((cell, jnp.where(outside, UNIT - 1, part)))
    fraction = fraction.reshape(-1)

    cell_rows = -(-(size + 1) // lanes)
    spare = cell_rows * lanes
    address = jnp.where(exists, lane_address(cell, cell_rows, lanes), spare).reshape(-1)
    held = jnp.zeros(spare + 1, jnp.int32).at[address].add(1, mode="promise_in_bounds")
    held = held[:-1].reshape(cell_rows, lanes)
    totals = held.sum(0)
    _, up_to = lax.scan(lambda t, row: (t + row,) * 2, jnp.cumsum(totals) - totals, held)
    up_to, held = up_to.reshape(-1), held.reshape(-1)
    most = held.max()

    def points_before(position: Position) -> Array:
        whole, part = written_out(position)
        at = lane_address(whole, cell_rows, lanes)
        high = up_to[at]

        def leap(found: Array, length: Array | int) -> Array:
            """Go on by so many points if all of them lie in the cell and before the position."""
            ahead = found + length
            before = fraction[lane_address(jnp.minimum(ahead, size) - 1, rows, lanes)] < part
            return jnp.where((ahead <= high) & before, ahead, found)

        def long_leap(state: tuple[Array, Array]) -> tuple[Array, Array]:
            found, length = state
            return leap(found, length), length // 2

        # Cells hold one point on average and almost never more than 15: four leaps find them all.
        longest = 1 << (31 - lax.clz(most))
        found, _ = lax.while_loop(lambda s: s[1] > 8, long_leap, (high - held[at], longest))
        for length in (8, 4, 2, 1):
            found = leap(found, length)
        return found

    return points_before


def _expected(strata: Strata, number: Array) -> Array:
    """Offspring that each particle should have: (rows, lanes), ``number[j]`` over a stratum."""
    mass = strata.mass()
    scale = jnp.where(mass > 0, number / jnp.where(mass > 0, mass, 1), 0)
    return strata.share * strata.spread(scale.astype(mass.dtype))


def _residual(key: Array, strata: Strata, number: Array, size: int) -> Drawn:
    expected = _expected(strata, number)
    copies = jnp.floor(expected).astype(jnp.int32)
    left = expected - copies
    empty = strata.spread(strata.sums(left) <= 0)
    rest = sum_up(jnp.where(empty, strata.share, left), strata.labels, strata.count)
    return draw_counted(copies + _draws(key, rest, number - strata.sums(copies), size), size)


def _draws(key: Array, strata: Strata, number: Array, size: int) -> Array:
    """Offspring by independent draws, ``number`` of them, at most ``size`` in all."""
    points_before = _uniform_points(key, number, size)
    return count_points(strata, number, points_before, costly=True)


def _killing(key: Array, strata: Strata, number: Array, size: int) -> Drawn:
    """Keep particle ``i`` with probability ``w_i / max w``, replace the others by draws.

    Where ``number`` is less than the particles of a stratum, so many seats are dealt out first.
    """
    to_seat, to_live, to_replace = jax.random.split(key, 3)
    alive = strata.share > 0
    seats = jnp.minimum(number, strata.sums(alive.astype(jnp.int32)))
    equal = sum_up(alive.astype(strata.share.dtype), strata.labels, strata.count)
    seated = count_points(equal, seats, _even_points(to_seat)) > 0
    labels = jnp.zeros(seated.shape, jnp.int32) if strata.labels is None else strata.labels
    best = by_lane(jnp.maximum, 0, strata.share, labels, strata.count).max(0)
    chance = jax.random.uniform(to_live, seated.shape, strata.share.dtype)
    stay = (seated & (chance * strata.spread(best) < strata.share)).astype(jnp.int32)
    return draw_counted(stay + _draws(to_replace, strata, number - strata.sums(stay), size), size)


def _ssp(key: Array, strata: Strata, number: Array, size: int) -> Drawn:
    """Settle fractions of offspring pair by pair, lane by lane and then lane with lane.

    One particle of each (lane, stratum) is open at a time. The pair's fractions p and q are
    replaced by p + q and 0, or by 1 and p + q - 1, so that expectations stay; whoever gets the
    0 or the 1 is settled.
    """
    share, kinds = strata.share, strata.count
    rows, lanes = share.shape
    expected = _expected(strata, number)
    copies = jnp.floor(expected).astype(jnp.int32)
    fraction = expected - copies
    place = jnp.broadcast_to(jnp.arange(lanes), share.shape)
    place = place if strata.place is None else strata.place
    address = jnp.arange(rows * lanes, dtype=jnp.int32).reshape(rows, lanes)
    spare = rows * lanes

    def row_step(state: tuple[Array, Array], row: tuple[Array, ...]) -> Any:
        open_fraction, open_address = state
        q, at, here, u, exists = row
        p, before = open_fraction[here], open_address[here]
        rest, keeps, settled, up = _settle(p, before, q, at, u, exists)
        open_fraction = open_fraction.at[here].set(rest, unique_indices=True)
        open_address = open_address.at[here].set(keeps, unique_indices=True)
        return (open_fraction, open_address), (settled, up)

    state = jnp.zeros(lanes * kinds, share.dtype), jnp.full(lanes * kinds, spare, jnp.int32)
    row_key, key = jax.random.split(key)
    u = jax.random.uniform(row_key, share.shape, share.dtype)
    (p, at), (settled, up) = lax.scan(row_step, state, (fraction, address, place, u, share > 0))
    counts = jnp.pad(copies.reshape(-1), (0, 1)).at[settled.reshape(-1)].add(up.reshape(-1))

    p, at = p.reshape(lanes, kinds), at.reshape(lanes, kinds)
    while p.shape[0] > 1:
        half = p.shape[0] // 2
        key, pair_key = jax.random.split(key)
        u = jax.random.uniform(pair_key, (half, kinds), share.dtype)
        p, at, settled, up = _settle(p[:half], at[:half], p[half:], at[half:], u, at[half:] < spare)
        counts = counts.at[settled].add(up)
    # What is open at the end is 0 or 1 but for rounding: the whole numbers say which.
    filled = counts[:-1].reshape(rows, lanes)
    left = (number - strata.sums(filled)).astype(jnp.int32)
    return draw_counted(counts.at[at[0]].add(left)[:-1].reshape(rows, lanes), size)


def _settle(
    p: Array, first: Array, q: Array, second: Array, u: Array, exists: Array
) -> tuple[Array, Array, Array, Array]:
    """One pair: the fraction and address that stay open, the address that is settled, 0 or 1."""
    total = p + q
    over = total >= 1
    # P(first stays open): p / total below 1; (1 - p) / (2 - total) from 1 on.
    weight = jnp.where(over, 1 - p, p)
    room = jnp.where(over, 2 - total, total)
    first_stays = u * room < weight
    first_stays = jnp.where(total > 0, first_stays, False)
    rest = jnp.where(over, total - 1, total)
    opens = jnp.where(exists, jnp.where(first_stays, first, second), first)
    settled = jnp.where(first_stays, second, first)
    up = over & exists
    spare_safe = jnp.where(exists, settled, first)
    return jnp.where(exists, rest, p), opens, spare_safe, up.astype(jnp.int32)


multinomial = Scheme("multinomial", _multinomial)
stratified = Scheme("stratified", _stratified)
systematic = Scheme("systematic", _systematic)
residual = Scheme("residual", _residual)
ssp = Scheme("ssp", _ssp)
killing = Scheme("killing", _killing)
