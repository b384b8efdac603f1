"""Laws of the normal and exponential draws, and of the quick keys they come from."""

from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from covey import noise
from covey.keys import quick, words
from tests.laws import FALSE_ALARM, precision, z_threshold

DRAWS = {"normal": noise.normal, "exponential": noise.exponential}
LAWS = {"normal": stats.norm, "exponential": stats.expon}
PRECISIONS = ["float32", "float64"]
SHAPES = [(), (0,), (1,), (2,), (7,), (3, 0, 2), (1, 1), (3, 5), (2, 3, 5)]
SIZE = 2**21

each_draw = pytest.mark.parametrize("name", DRAWS)
each_precision = pytest.mark.parametrize("dtype", PRECISIONS)


@cache
def many(name: str, dtype: str) -> np.ndarray:
    """Two million draws in double precision; the first half and the second are made in pairs."""
    with precision(dtype):
        drawn = DRAWS[name](jax.random.key(7), (SIZE,), dtype)
        assert drawn.dtype == dtype
        return np.asarray(drawn, float)


def pairs(name: str, dtype: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Draws that could depend on each other."""
    drawn = many(name, dtype)
    return {
        "made from one hash": (drawn[: SIZE // 2], drawn[SIZE // 2 :]),
        "neighbours": (drawn[::2], drawn[1::2]),
        "next but one": (drawn[::4], drawn[2::4]),
    }


@each_draw
@each_precision
def test_draws_have_their_distribution_function(name, dtype):
    """Kolmogorov and Smirnov's test; false alarms 1e-4."""
    assert stats.kstest(many(name, dtype), LAWS[name].cdf).pvalue > FALSE_ALARM


@each_draw
@each_precision
def test_draws_have_their_first_four_moments(name, dtype):
    """|z| of the four means of powers; false alarms 1e-4."""
    drawn = many(name, dtype)
    for power in range(1, 5):
        expected, square = (LAWS[name].moment(order) for order in (power, 2 * power))
        error = np.sqrt((square - expected**2) / SIZE)
        z = ((drawn**power).mean() - expected) / error
        assert abs(z) < z_threshold(4), power


@each_draw
@each_precision
def test_tails_have_their_weight(name, dtype):
    """Counts beyond 3, 4 and 4.5 deviations, on each side, are binomial; false alarms 1e-4."""
    drawn, law = many(name, dtype), LAWS[name]
    for level in (3, 4, 4.5):
        chance = stats.norm.sf(level)
        for beyond in (drawn > law.isf(chance), drawn < law.ppf(chance)):
            found = stats.binomtest(int(beyond.sum()), SIZE, chance)
            assert found.pvalue > FALSE_ALARM / 6, level


@each_draw
@each_precision
def test_draws_are_independent_in_pairs(name, dtype):
    """Their quantiles fill 16 x 16 cells evenly: chi-square; false alarms 1e-4."""
    for what, (one, other) in pairs(name, dtype).items():
        row, column = (
            np.minimum(15, 16 * LAWS[name].cdf(each)).astype(int) for each in (one, other)
        )
        counts = np.bincount(16 * row + column, minlength=256)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM / 3, what


@each_draw
@each_precision
def test_draws_are_uncorrelated_in_pairs(name, dtype):
    """|z| of covariances of draws, squares, sizes and signs; false alarms 1e-4."""
    middle = LAWS[name].median()
    functions = (
        lambda x: x,
        lambda x: x**2,
        lambda x: abs(x - middle),
        lambda x: np.sign(x - middle),
    )
    for what, both in pairs(name, dtype).items():
        for f in functions:
            for g in functions:
                one, other = f(both[0]), g(both[1])
                products = (one - one.mean()) * (other - other.mean())
                z = products.mean() / products.std() * np.sqrt(len(products))
                assert abs(z) < z_threshold(3 * 16), what


@each_precision
def test_angle_is_uniform_and_says_nothing_about_the_radius(dtype):
    """Chi-square over 32 angles x 16 radii, and mean radius by quarter; false alarms 1e-4."""
    x, y = pairs("normal", dtype)["made from one hash"]
    turn = np.arctan2(y, x) / (2 * np.pi) % 1
    inside = np.exp(-(x**2 + y**2) / 2)  # uniform
    angles, radii = (32 * turn).astype(int) % 32, np.minimum(15, 16 * inside).astype(int)
    counts = np.bincount(16 * angles + radii, minlength=512)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM / 2
    quarters = (4 * turn + 0.5).astype(int) % 4
    for quarter in range(4):
        mine = inside[quarters == quarter]
        z = (mine.mean() - 0.5) * np.sqrt(12 * len(mine))
        assert abs(z) < z_threshold(4, FALSE_ALARM / 2), quarter


@each_draw
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_single_precision(name, dtype):
    key, shape = jax.random.key(3), (1001,)
    half, single = DRAWS[name](key, shape, dtype), DRAWS[name](key, shape, "float32")
    assert half.dtype == dtype
    np.testing.assert_array_equal(half, single.astype(dtype))


# Extreme words


def extreme_words(width: int) -> np.ndarray:
    """All zeros, all ones, every power of two, and their neighbours."""
    powers = [2**place for place in range(width)]
    numbers = {0, 2**width - 1, *powers, *(power - 1 for power in powers)}
    numbers |= {2**width - 1 - power for power in powers}
    return np.array(sorted(numbers), f"uint{width}")


def uniforms(bits: np.ndarray, kind: str) -> np.ndarray:
    """``(bits + 1/2) / 2^width``, rounded once at each operation."""
    step = np.dtype(kind).type(2.0 ** (-8 * bits.dtype.itemsize))
    return bits.astype(kind) * step + step / 2


def drawn_from(draw, radius: np.ndarray, angle: np.ndarray, dtype: str) -> np.ndarray:
    """What a draw makes of these words: both halves."""
    with precision(dtype):
        both = jnp.asarray(radius), jnp.asarray(angle)
        with mock.patch.object(noise, "words", return_value=both):
            return np.asarray(draw.__wrapped__(jax.random.key(0), (2, len(radius)), dtype))


def every_pair_of_extremes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    extremes = extreme_words(8 * np.dtype(dtype).itemsize)
    return tuple(grid.ravel() for grid in np.meshgrid(extremes, extremes))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 6.8), ("float64", 9.5)])
def test_extreme_words_make_normal_numbers_within_the_stated_bound(dtype, bound):
    drawn = drawn_from(noise.normal, *every_pair_of_extremes(dtype), dtype)
    assert drawn.dtype == dtype
    assert np.isfinite(drawn).all()
    assert bound - 0.1 < abs(drawn).max() < bound


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 22.9), ("float64", 45.1)])
def test_extreme_words_make_exponential_numbers_within_the_stated_bound(dtype, bound):
    drawn = drawn_from(noise.exponential, *every_pair_of_extremes(dtype), dtype)
    assert np.isfinite(drawn).all()
    assert (drawn >= 0).all()
    assert bound - 0.1 < drawn.max() < bound


@each_precision
def test_both_numbers_of_a_pair_are_on_the_circle_of_its_radius(dtype):
    radius, angle = every_pair_of_extremes(dtype)
    drawn = drawn_from(noise.normal, radius, angle, dtype).astype(float)
    length = np.sqrt(-2 * np.log(uniforms(radius, dtype).astype(float)))
    np.testing.assert_allclose(np.hypot(*drawn), length, rtol=8 * np.finfo(dtype).eps, atol=0)


@each_precision
def test_evenly_spaced_angles_make_points_evenly_spaced_on_the_circle(dtype):
    width = 8 * np.dtype(dtype).itemsize
    angle = 2 * np.arange(1024, dtype=f"uint{width}") + 1 << (width - 11)
    x, y = drawn_from(noise.normal, np.full_like(angle, 2 ** (width - 2)), angle, dtype)
    turns = np.sort(np.arctan2(y.astype(float), x.astype(float)))
    np.testing.assert_allclose(np.diff(turns), 2 * np.pi / 1024, atol=8 * np.finfo(dtype).eps)


@each_precision
def test_logarithm_is_off_by_a_few_units_in_the_last_place(dtype):
    width = 8 * np.dtype(dtype).itemsize
    chosen = np.random.default_rng(0).integers(0, 2**width, 100_000, f"uint{width}", endpoint=False)
    small = chosen >> np.arange(len(chosen), dtype=chosen.dtype) % width
    bits = np.concatenate([extreme_words(width), chosen, small, ~small])
    drawn = drawn_from(noise.exponential, bits, bits, dtype)
    np.testing.assert_array_equal(drawn[0], drawn[1])
    exact = -np.log(uniforms(bits, dtype).astype(np.longdouble))
    assert (abs(drawn[0] - exact) <= 3 * np.spacing(exact.astype(dtype))).all()


# Shapes, transformations and kinds of keys


@each_draw
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_the_flat_one_reshaped(name, shape):
    drawn = DRAWS[name](jax.random.key(1), shape)
    flat = DRAWS[name](jax.random.key(1), (int(np.prod(shape)),))
    assert drawn.shape == shape
    assert drawn.dtype == np.float32
    np.testing.assert_array_equal(drawn.ravel(), flat)
    assert len(np.unique(flat)) == flat.size


@each_draw
@each_precision
def test_same_key_same_numbers_inside_transformations(name, dtype):
    with precision(dtype):
        draw, keys = DRAWS[name], jax.random.split(jax.random.key(5), 6)
        alone = np.stack([draw(key, (3, 5), dtype) for key in keys])
        within = jax.jit(lambda key: draw(key, (3, 5), dtype) * 1)
        np.testing.assert_array_equal(alone, np.stack([within(key) for key in keys]))
        mapped = jax.jit(jax.vmap(lambda key: draw(key, (3, 5), dtype)))(keys)
        np.testing.assert_array_equal(alone, mapped)
        _, scanned = jax.lax.scan(lambda _, key: (None, draw(key, (3, 5), dtype)), None, keys)
        np.testing.assert_array_equal(alone, scanned)
    assert len(np.unique(alone)) == alone.size


@each_draw
def test_bare_and_quick_keys_draw_the_same_numbers(name):
    draw = DRAWS[name]
    expected = draw(jax.random.key(11), (9,))
    for key in (jax.random.PRNGKey(11), quick(jax.random.key(11)), quick(jax.random.PRNGKey(11))):
        np.testing.assert_array_equal(draw(key, (9,)), expected)


@each_draw
@each_precision
@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_other_kinds_of_keys_draw_from_the_same_law(name, dtype, kind):
    """Kolmogorov and Smirnov's test; false alarms 1e-4."""
    with precision(dtype):
        key = jax.random.key(2, impl=kind)
        drawn = np.asarray(DRAWS[name](key, (50_001,), dtype), float)
    assert stats.kstest(drawn, LAWS[name].cdf).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(drawn[:25_000], drawn[25_001:])[0, 1]) < z_threshold(1) / np.sqrt(25_000)


@each_draw
@pytest.mark.parametrize("dtype", [int, bool, complex, "uint8"])
def test_types_that_are_not_floating_are_refused(name, dtype):
    with pytest.raises(TypeError, match=r"dtype must be a floating type, got \w+; use jnp"):
        DRAWS[name](jax.random.key(0), (3,), dtype)


def test_more_numbers_than_a_key_has_are_refused():
    with pytest.raises(ValueError, match="one key, got 8589934592"):
        jax.eval_shape(lambda: noise.normal(jax.random.key(0), (2**34,)))


# Quick keys are JAX's keys


def wide_bits(key):
    with jax.enable_x64(True):
        return jax.random.bits(key, (3, 5), "uint64")


USES = {
    **{
        f"bits, {width}": lambda key, width=width: jax.random.bits(key, (3, 5), f"uint{width}")
        for width in (8, 16, 32)
    },
    "bits, 64": wide_bits,
    "split": lambda key: jax.random.key_data(jax.random.split(key)),
    "split to a shape": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**32 - 1)),
    "fold_in of a traced number": lambda key: jax.random.key_data(
        jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(3))
    ),
    "split, fold_in, draw": lambda key: jax.random.bits(
        jax.random.fold_in(jax.random.split(key, 3)[2], 5), (7,)
    ),
    "normal": lambda key: jax.random.normal(key, (3, 5)),
    "uniform": lambda key: jax.random.uniform(key, (7,), minval=-1, maxval=3),
    "randint": lambda key: jax.random.randint(key, (7,), -5, 1000),
    "permutation": lambda key: jax.random.permutation(key, 9),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(4.0), shape=(5,)),
    "nothing": lambda key: jax.random.bits(key, (0, 3)),
    "one": lambda key: jax.random.bits(key),
}


@pytest.mark.parametrize("use", USES)
@each_precision
def test_quick_keys_give_the_numbers_of_jax(use, dtype):
    with precision(dtype):
        typed, bare = jax.random.key(12345), jax.random.PRNGKey(12345)
        expected = USES[use](typed)
        for key in (quick(typed), quick(bare), quick(quick(typed))):
            found = USES[use](key)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


def test_arrays_of_keys_can_be_quick():
    keys = jax.random.split(jax.random.key(1), (2, 3))
    assert quick(keys).shape == (2, 3)
    draw = jax.vmap(jax.vmap(jax.random.bits))
    np.testing.assert_array_equal(draw(quick(keys)), draw(keys))
    quick_within = jax.vmap(jax.vmap(lambda key: jax.random.bits(quick(key))))
    np.testing.assert_array_equal(quick_within(keys), draw(keys))


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_other_kinds_of_keys_stay_as_they_are(kind):
    key = jax.random.key(1, impl=kind)
    assert quick(key) is key


def test_quick_keys_follow_the_older_layout_of_bits():
    """JAX has a switch for it, ``jax_threefry_partitionable``."""
    with jax.threefry_partitionable(False):
        key = jax.random.key(3)
        expected = jax.random.bits(key, (5,))
        np.testing.assert_array_equal(jax.random.bits(quick(key), (5,)), expected)
        assert noise.normal(key, (5,)).shape == (5,)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("width", [32, 64])
def test_words_differ(kind, width):
    with jax.enable_x64(True):
        one, other = words(jax.random.key(1, impl=kind), (5, 3), width)
    assert one.shape == other.shape == (5, 3)
    assert one.dtype == other.dtype == f"uint{width}"
    assert len(np.unique(np.concatenate([one, other]))) == 30


def test_words_are_the_two_halves_of_the_hash():
    """JAX hands out their sum without carries, or the two side by side."""
    with jax.enable_x64(True):
        key = jax.random.key(8)
        one, other = words(key, (9,), 32)
        np.testing.assert_array_equal(one ^ other, jax.random.bits(key, (9,), "uint32"))
        wide, _ = words(key, (9,), 64)
        np.testing.assert_array_equal(wide, jax.random.bits(key, (9,), "uint64"))
