"""The classical resampling schemes, each as one function that says who has how many offspring.

References
----------
Douc, Cappe and Moulines (2005), *Comparison of resampling schemes for particle filtering*;
Gerber, Chopin and Whiteley (2019), *Negative association, ordering and convergence of resampling
methods* (SSP); Del Moral (2004), *Feynman-Kac Formulae* (killing).
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from covey.particles import Particles, checked_number
from covey.resampling.line import (
    UNIT,
    ancestors_of,
    count_points,
    in_lanes,
    lane_address,
    lane_count,
    lay,
)

Offspring = Callable[[Array, Array, Array | None, Array, int], Array]


@dataclass(frozen=True)
class Scheme:
    """A resampling scheme: a resampler, and what :func:`covey.clustered` uses within clusters.

    Calling it with ``(key, particles, n)`` draws ``n`` particles with expected offspring
    ``n * w_i`` and gives them equal weights.

    Parameters
    ----------
    name : str
    offspring : function ``(key, share, labels, number, size) -> counts``
        ``share`` (rows, lanes), the particles' weights up to a factor; ``labels`` (rows, lanes),
        their strata, or None; ``number`` (K,), how many to draw from each stratum, at most
        ``size`` in all. Returns counts (rows, lanes), ``number[j]`` in all over stratum ``j``.
    """

    name: str
    offspring: Offspring

    def __call__(self, key: Array, particles: Particles, n: int) -> Particles:
        n = checked_number(n)
        share = in_lanes(jnp.exp(particles.log_w - particles.log_w.max()))
        counts = self.offspring(key, share, None, jnp.array([n], jnp.int32), n)
        return particles.select(ancestors_of(counts, n))

    def __repr__(self) -> str:
        return f"covey.{self.name}"


def _systematic(key, share, labels, number, size):
    offset = jax.random.randint(key, (), 0, UNIT)
    return count_points(share, labels, number, lambda p: p[0] + (p[1] > offset))


def _stratified(key, share, labels, number, size):
    offsets = jax.random.randint(key, (size + 1,), 0, UNIT)
    return count_points(share, labels, number, lambda p: p[0] + (p[1] > offsets[p[0]]))


def _multinomial(key, share, labels, number, size):
    return count_points(share, labels, number, _uniform_points(key, number, size, share.dtype))


def _uniform_points(key, number, size, dtype):
    """Lay ``number[j]`` independent uniform points on stratum ``j``; how many lie before ``p``?

    Exponential spacings give the points in order. A table over the unit cells of the line says
    which points lie in a cell, and bisection among those few finds the rest.
    """
    lanes, strata = lane_count(size), number.shape[0]
    rows = -(-size // lanes)
    in_order = jnp.arange(lanes) * rows + jnp.arange(rows)[:, None]
    border = jnp.cumsum(number)
    exists = in_order < border[-1]
    labels = None if strata == 1 else (in_order[..., None] >= border[:-1]).sum(-1)
    key, beyond = jax.random.split(key)
    spacing = jnp.where(exists, jax.random.exponential(key, (rows, lanes), dtype), 0)
    laid = lay(spacing, labels, number, jax.random.exponential(beyond, (strata,), dtype))
    end_here = border[-1] if labels is None else border[labels]
    outside = laid.end[0] >= end_here
    cell = jnp.where(outside, end_here - 1, laid.end[0])
    fraction = jnp.where(outside, UNIT - 1, laid.end[1]).reshape(-1)

    cell_rows = -(-(size + 1) // lanes)
    spare = cell_rows * lanes
    address = jnp.where(exists, lane_address(cell, cell_rows, lanes), spare).reshape(-1)
    held = jnp.zeros(spare + 1, jnp.int32).at[address].add(1, mode="promise_in_bounds")
    held = held[:-1].reshape(cell_rows, lanes)
    totals = held.sum(0)
    _, up_to = lax.scan(lambda t, row: (t + row,) * 2, jnp.cumsum(totals) - totals, held)
    up_to, held = up_to.reshape(-1), held.reshape(-1)
    halvings = 32 - lax.clz(held.max())

    def points_before(position):
        at = lane_address(position[0], cell_rows, lanes)
        high = up_to[at]
        low = high - held[at]

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            below = fraction[lane_address(middle, rows, lanes)] < position[1]
            left = low < high
            return jnp.where(left & below, middle + 1, low), jnp.where(left & ~below, middle, high)

        return lax.fori_loop(0, halvings, halve, (low, high))[0]

    return points_before


def _expected(share, labels, number):
    """Offspring that each particle should have: (rows, lanes), ``number[j]`` over a stratum."""
    strata = number.shape[0]
    mass = _stratum_sums(share, labels, strata)
    scale = jnp.where(mass > 0, number / jnp.where(mass > 0, mass, 1), 0).astype(share.dtype)
    return share * (scale[0] if labels is None else scale[labels])


def _stratum_sums(values, labels, strata):
    """Sum of each stratum, lane by lane first: (K,)."""
    if labels is None:
        return values.sum(0).sum()[None]
    return jnp.stack([jnp.where(labels == j, values, 0).sum(0).sum() for j in range(strata)])


def _residual(key, share, labels, number, size):
    expected = _expected(share, labels, number)
    copies = jnp.floor(expected).astype(jnp.int32)
    rest = expected - copies
    left = number - _stratum_sums(copies, labels, number.shape[0])
    empty = _stratum_sums(rest, labels, number.shape[0]) <= 0
    rest = jnp.where(empty[0] if labels is None else empty[labels], share, rest)
    return copies + _multinomial(key, rest, labels, left, size)


def _killing(key, share, labels, number, size):
    """Keep particle ``i`` with probability ``w_i / max w``, replace the others by draws.

    Where ``number`` is less than the particles of a stratum, so many seats are dealt out first.
    """
    strata = number.shape[0]
    seat_key, live_key, key = jax.random.split(key, 3)
    alive = _stratum_sums((share > 0).astype(jnp.int32), labels, strata)
    here = (lambda table: table[0]) if labels is None else (lambda table: table[labels])
    equal = (share > 0).astype(share.dtype)
    seats = _systematic(seat_key, equal, labels, jnp.minimum(number, alive), size)
    best = jnp.stack([jnp.where(_is(labels, j), share, 0).max() for j in range(strata)])
    chance = jax.random.uniform(live_key, share.shape, share.dtype)
    stay = ((seats > 0) & (chance * here(best) < share)).astype(jnp.int32)
    left = number - _stratum_sums(stay, labels, strata)
    return stay + _multinomial(key, share, labels, left, size)


def _is(labels, stratum):
    return True if labels is None else labels == stratum


def _ssp(key, share, labels, number, size):
    """Settle fractions of offspring pair by pair, lane by lane and then lane with lane.

    One particle of each (lane, stratum) is open at a time. The pair's fractions p and q are
    replaced by p + q and 0, or by 1 and p + q - 1, so that expectations stay; whoever gets the
    0 or the 1 is settled.
    """
    strata, (rows, lanes) = number.shape[0], share.shape
    expected = _expected(share, labels, number)
    copies = jnp.floor(expected).astype(jnp.int32)
    fraction = expected - copies
    place = jnp.arange(lanes) * strata + (0 if labels is None else labels)
    address = jnp.arange(rows * lanes, dtype=jnp.int32).reshape(rows, lanes)
    spare = rows * lanes

    def row_step(state, row):
        open_fraction, open_address = state
        q, at, here, u, exists = row
        p, before = open_fraction[here], open_address[here]
        rest, keeps, settled, up = _settle(p, before, q, at, u, exists)
        open_fraction = open_fraction.at[here].set(rest, unique_indices=True)
        open_address = open_address.at[here].set(keeps, unique_indices=True)
        return (open_fraction, open_address), (settled, up)

    state = jnp.zeros(lanes * strata, share.dtype), jnp.full(lanes * strata, spare, jnp.int32)
    row_key, key = jax.random.split(key)
    u = jax.random.uniform(row_key, share.shape, share.dtype)
    place = jnp.broadcast_to(place, share.shape)
    (p, at), (settled, up) = lax.scan(row_step, state, (fraction, address, place, u, share > 0))
    counts = jnp.pad(copies.reshape(-1), (0, 1)).at[settled.reshape(-1)].add(up.reshape(-1))

    p, at = p.reshape(lanes, strata), at.reshape(lanes, strata)
    while p.shape[0] > 1:
        half = p.shape[0] // 2
        key, pair_key = jax.random.split(key)
        u = jax.random.uniform(pair_key, (half, strata), share.dtype)
        p, at, settled, up = _settle(
            p[:half], at[:half], p[half:], at[half:], u, at[half:] < spare
        )
        counts = counts.at[settled].add(up)
    # What is open at the end is 0 or 1 but for rounding: the whole numbers say which.
    filled = counts[:-1].reshape(rows, lanes)
    left = number - _stratum_sums(filled, labels, strata)
    return counts.at[at[0]].add(left)[:-1].reshape(rows, lanes)


def _settle(p, first, q, second, u, exists):
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
