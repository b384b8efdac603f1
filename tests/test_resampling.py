"""Laws of every resampler, of the classical schemes, and of the line they draw on."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.resampling import line
from tests.laws import (
    EXTREME,
    FALSE_ALARM,
    HIGHEST,
    HONEST,
    LOWEST,
    QUICK,
    RESAMPLERS,
    SCHEMES,
    cloud,
    hard_log_weights,
    loaded_dice,
    precision,
    z_threshold,
)

UNLUCKY = np.repeat([LOWEST, HIGHEST, EXTREME], [1, 1, 14])
FIRST_SHAPES = [(9, 9, "float32"), (1000, 700, "float64")]
MORE_SHAPES = [
    (1, 3, "float32"),
    (2, 2, "float32"),
    (3, 2, "float64"),
    (5, 8, "float32"),
    (8, 8, "float64"),
    (9, 5, "float32"),
    (1000, 1000, "float32"),
    (1000, 1300, "float32"),
    (100_000, 100_000, "float32"),
]
SHAPES = [
    *FIRST_SHAPES,
    *(
        pytest.param(*shape, marks=pytest.mark.slow, id="-".join(map(str, shape)))
        for shape in MORE_SHAPES
    ),
]


class Drawn(NamedTuple):
    """What a resampler did with one set of weights, over many keys."""

    particles: covey.Particles  # (keys, ...)
    weights: np.ndarray  # (N,) in double precision, before
    honest: slice  # the keys whose dice were not loaded

    def offspring(self):
        """Numbers of offspring: (honest keys, N)."""
        ancestors = np.asarray(self.particles.ancestors)[self.honest]
        rows = np.arange(len(ancestors))[:, None] * len(self.weights)
        size = len(ancestors) * len(self.weights)
        return np.bincount((rows + ancestors).ravel(), minlength=size).reshape(len(ancestors), -1)


@cache
def drawn(name: str, size: int, n: int, dtype: str) -> dict[str, Drawn]:
    """Resample ``size`` particles of all hard weights to ``n``: one compilation for all laws."""
    keys = 2000 if size < 100 else 60 if size < 10_000 else 4
    cases = hard_log_weights(size)
    luck = np.concatenate([np.full(keys, HONEST), UNLUCKY[: max(4, keys)]])
    with precision(dtype):
        log_w = jnp.asarray(np.stack(list(cases.values())), dtype)

        def one(key, case, luck):
            with loaded_dice(luck):
                before = cloud(
                    log_w[case], {"place": jnp.arange(size), "two": log_w[case, :, None]}
                )
                return RESAMPLERS[name](key, before, n)

        total = len(cases) * len(luck)
        after = jax.jit(jax.vmap(one), compiler_options=QUICK)(
            jax.random.split(jax.random.key(size + n), total),
            np.repeat(np.arange(len(cases)), len(luck)),
            np.tile(luck, len(cases)),
        )
    after = jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(len(cases), len(luck), *leaf.shape[1:]), after
    )
    result = {}
    for place, case in enumerate(cases):
        weights = np.exp(np.asarray(log_w[place], float))
        mine = jax.tree.map(lambda leaf, place=place: leaf[place], after)
        result[case] = Drawn(mine, weights / weights.sum(), slice(0, keys))
    return result


def rounding(n: int, dtype: str) -> float:
    """By how much the length of a particle on the line may be off: two ends are rounded."""
    return 2 / line.UNIT + 8 * n * np.finfo(dtype).eps


@pytest.mark.parametrize("name", RESAMPLERS)
@pytest.mark.parametrize(("size", "n", "dtype"), SHAPES)
def test_every_resampler_keeps_its_contract(name, size, n, dtype):
    """Whatever the dice: n living parents, weights that add up to one, states of the parents."""
    for case, (after, weights, _) in drawn(name, size, n, dtype).items():
        ancestors = after.ancestors
        assert ancestors.shape[1:] == (n,), case
        assert ancestors.dtype == np.int32
        assert ((ancestors >= 0) & (ancestors < size)).all(), case
        new = np.exp(after.log_w.astype(float))
        assert after.log_w.dtype == dtype
        np.testing.assert_allclose(new.sum(1), 1, rtol=4 * np.sqrt(n) * np.finfo(dtype).eps)
        np.testing.assert_allclose(after.ess, 1 / (new**2).sum(1), rtol=1e-5)
        resampled = after.resampled
        assert (weights[ancestors[resampled]] > 0).all(), case
        np.testing.assert_array_equal(after.x["place"], ancestors)
        different = [len(np.unique(row)) for row in ancestors]
        np.testing.assert_array_equal(after.unique, different, err_msg=case)
        np.testing.assert_array_equal(after.log_evidence, 0)
        np.testing.assert_array_equal(after.status, 0)


@pytest.mark.parametrize("name", RESAMPLERS)
@pytest.mark.parametrize(("size", "n", "dtype"), SHAPES)
def test_every_resampler_is_unbiased(name, size, n, dtype):
    """The mean weight of each particle's offspring is its own.

    Many keys tell the variance; the Bonferroni threshold for |z| then covers all particles and
    cases together. Few do not: there Bernstein's inequality bounds how far the sum may be off, with
    ``largest weight * w`` for the variance, which no scheme exceeds by much. Chance of a false
    alarm 1e-4 for each resampler and shape.
    """
    cases = drawn(name, size, n, dtype)
    comparisons = size * len(cases)
    for case, (after, weights, honest) in cases.items():
        ancestors = after.ancestors[honest]
        keys = len(ancestors)
        share = np.zeros((keys, size))
        new = np.exp(after.log_w[honest].astype(float))
        np.add.at(share, (np.arange(keys)[:, None], ancestors), new)
        if keys >= 1000:
            variance = np.maximum(share.var(0), least_variance(weights, n))
            error = np.sqrt(variance / keys) * z_threshold(comparisons)
        else:
            error = bernstein(keys * new.max() * weights, new.max(), comparisons) / keys
        off = abs(share.mean(0) - weights)
        assert (off <= error + rounding(n, dtype) / n).all(), case


def bernstein(variance, bound, comparisons):
    """What a sum of terms below ``bound`` exceeds in any comparison with chance 1e-4 at most."""
    log_chance = np.log(2 * comparisons / FALSE_ALARM)
    return bound * log_chance / 3 + np.sqrt(
        (bound * log_chance / 3) ** 2 + 2 * variance * log_chance
    )


def least_variance(weights, n):
    """An integer of mean e varies by at least ``(e - floor e)(ceil e - e)``, here over n^2."""
    part = n * weights % 1
    return part * (1 - part) / n**2


@pytest.mark.parametrize("name", ["systematic", "ssp"])
@pytest.mark.parametrize(("size", "n", "dtype"), SHAPES)
def test_systematic_and_ssp_round_the_expected_offspring(name, size, n, dtype):
    for case, result in drawn(name, size, n, dtype).items():
        expected, off = n * result.weights, rounding(n, dtype)
        offspring = result.offspring()
        assert (offspring >= np.floor(expected - off)).all(), case
        assert (offspring <= np.ceil(expected + off)).all(), case


@pytest.mark.parametrize(("size", "n", "dtype"), SHAPES)
def test_stratified_is_off_by_less_than_two(size, n, dtype):
    """An interval of length e holds floor(e) - 1 whole cells and touches ceil(e) + 1."""
    for case, result in drawn("stratified", size, n, dtype).items():
        expected, off = n * result.weights, rounding(n, dtype)
        offspring = result.offspring()
        assert (offspring >= np.floor(expected - off) - 1).all(), case
        assert (offspring <= np.ceil(expected + off) + 1).all(), case


@pytest.mark.parametrize(("size", "n", "dtype"), SHAPES)
def test_residual_never_gives_less_than_the_whole_part(size, n, dtype):
    for case, result in drawn("residual", size, n, dtype).items():
        at_least = np.floor(n * result.weights - rounding(n, dtype))
        assert (result.offspring() >= at_least).all(), case


@pytest.mark.parametrize(("size", "n", "dtype"), SHAPES)
def test_killing_keeps_the_best(size, n, dtype):
    """Each particle stays where it is with probability w / max w, the best for certain."""
    for case, result in drawn("killing", size, n, dtype).items():
        seats = min(1, n / (result.weights > 0).sum())
        stay = seats * result.weights / result.weights.max()
        offspring = result.offspring()
        kept = (offspring > 0).mean(0)
        error = z_threshold(11 * size) * np.sqrt(stay * (1 - stay) / len(offspring))
        assert (kept >= stay - error - rounding(n, dtype)).all(), case


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "multinomial"])
@pytest.mark.parametrize(("size", "n", "dtype"), FIRST_SHAPES[:1])
def test_equal_weights_leave_everybody_one_offspring(name, size, n, dtype):
    ancestors = drawn(name, size, n, dtype)["equal"].particles.ancestors
    np.testing.assert_array_equal(
        np.sort(ancestors, 1), np.broadcast_to(np.arange(n), ancestors.shape)
    )


def test_offspring_of_multinomial_are_multinomial():
    """Mean n w, variance n w (1 - w), covariance -n w v; false alarms 1e-4."""
    result = drawn("multinomial", 9, 9, "float32")["usual"]
    w, n, offspring = result.weights, 9, result.offspring()
    deviations = offspring - n * w
    products = deviations[:, :, None] * deviations[:, None, :]
    expected = n * (np.diag(w) - np.outer(w, w))
    z = (products.mean(0) - expected) / (products.std(0) / np.sqrt(len(products)))
    assert abs(z).max() < z_threshold(45)
    for count in range(4):
        chance = np.array([_binomial(n, count, p) for p in w])
        observed = (offspring == count).mean(0)
        z = (observed - chance) / np.sqrt(chance * (1 - chance) / len(offspring))
        assert abs(z).max() < z_threshold(4 * len(w)), count


def _binomial(n, k, p):
    from math import comb

    return comb(n, k) * p**k * (1 - p) ** (n - k)


def test_rest_of_residual_is_multinomial():
    """With remainders r that add up to m, variances are m q (1 - q), q = r / m; alarms 1e-4."""
    result = drawn("residual", 9, 9, "float32")["usual"]
    rest = 9 * result.weights % 1
    draws = round(rest.sum())
    assert draws > 1
    chance = rest / draws
    squares = (result.offspring() - 9 * result.weights) ** 2
    z = (squares.mean(0) - draws * chance * (1 - chance)) / (squares.std(0) / np.sqrt(len(squares)))
    assert abs(z).max() < z_threshold(len(rest))


@pytest.mark.parametrize("name", ["stratified", "residual", "ssp"])
@pytest.mark.parametrize(("size", "n", "dtype"), FIRST_SHAPES)
def test_better_schemes_vary_no_more_than_multinomial(name, size, n, dtype):
    """Var(sum of f over the offspring) <= n Var_w(f), for bounded f; false alarms 1e-4."""
    cases = drawn(name, size, n, dtype)
    functions = np.random.default_rng(0).uniform(-1, 1, (4, size))
    functions[0] = np.linspace(-1, 1, size)
    for case, result in cases.items():
        centred = functions - (functions @ result.weights)[:, None]
        bound = n * (centred**2 @ result.weights)
        squares = (result.offspring() @ centred.T) ** 2
        error = squares.std(0) / np.sqrt(len(squares)) * z_threshold(4 * len(cases))
        assert (squares.mean(0) <= bound + error + n * rounding(n, dtype)).all(), case


@pytest.mark.parametrize("name", SCHEMES)
def test_loaded_dice_are_thrown(name):
    """The laws above did meet the largest uniform below one: the dice do change the outcome."""
    after = drawn(name, 9, 9, "float32")["usual"].particles.ancestors
    low, high = after[2000], after[2001]
    assert (low != high).any()
