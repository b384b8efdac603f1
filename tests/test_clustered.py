"""Laws of resampling within clusters, over every allocation and every scheme within."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.resampling.clustered import ALLOCATIONS
from tests.laws import (
    EXTREME,
    HIGHEST,
    HONEST,
    LOWEST,
    QUICK,
    SCHEMES,
    cloud,
    loaded_dice,
    precision,
    z_threshold,
)

SIZE, CLUSTERS, KEYS = 40, 6, 1000
DEALS = {**ALLOCATIONS, "own": lambda v, counts, n: v ** (2 / 3) + counts / n}
LUCK = np.repeat([HONEST, LOWEST, HIGHEST, EXTREME], [KEYS, 1, 1, 14])
FUNCTIONS = [lambda x: x, lambda x: x**2, np.cos, lambda x: x > 0]
PLACES = np.random.default_rng(1).normal(size=SIZE)
FAINTEST = {"float32": 1e-30, "float64": 1e-300}


def hard_clusterings(dtype: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Labels and log-weights that clustered resampling has gone wrong with."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, CLUSTERS, SIZE)
    usual = rng.normal(size=SIZE)
    faint = np.log(FAINTEST[dtype])

    def dead(*clusters):
        return np.where(np.isin(labels, clusters), -np.inf, usual)

    return {
        "usual": (labels, usual),
        "in order": (np.sort(labels), usual),
        "one cluster": (np.full(SIZE, 3), usual),
        "empty clusters": (np.where(labels % 2, 1, 4), usual),
        "dead clusters": (labels, dead(0, 4)),
        "last cluster dead": (labels, dead(CLUSTERS - 1)),
        "one living": (labels, dead(0, 1, 2, 4, 5)),
        "dead particles": (labels, np.where(rng.random(SIZE) < 0.5, -np.inf, usual)),
        "faint clusters": (labels, usual + np.where(labels == 2, faint, faint / 2 * (labels == 0))),
        "30 orders": (labels, rng.permutation(np.linspace(-69, 0, SIZE))),
        "labels out of range": (np.where(labels == 0, -7, labels * 9), usual),
    }


@cache
def drawn(within: str, dtype: str = "float32", n: int = SIZE) -> dict:
    """All clusterings and allocations: one compilation for all laws.

    For each pair: labels and weights in double precision, and the particles over (keys, ...).
    """
    cases = hard_clusterings(dtype)
    pairs = [(case, deal) for case in cases for deal in DEALS]
    with precision(dtype):
        labels = jnp.asarray(np.stack([cases[case][0] for case, _ in pairs]))
        log_w = jnp.asarray(np.stack([cases[case][1] for case, _ in pairs]), dtype)

        def one(key, pair, luck):
            def allocation(v, counts, n):
                shares = [deal(v, counts, n).astype(v.dtype) for deal in DEALS.values()]
                return jnp.stack(shares)[pair % len(DEALS)]

            resample = covey.clustered(
                lambda *_: labels[pair], allocation=allocation, within=within, clusters=CLUSTERS
            )
            with loaded_dice(luck):
                return resample(key, cloud(log_w[pair]), n)

        total = len(pairs) * len(LUCK)
        after = jax.jit(jax.vmap(one), compiler_options=QUICK)(
            jax.random.split(jax.random.key(n), total),
            np.repeat(np.arange(len(pairs)), len(LUCK)),
            np.tile(LUCK, len(pairs)),
        )
        after = jax.tree.map(
            lambda leaf: np.asarray(leaf).reshape(len(pairs), len(LUCK), *leaf.shape[1:]), after
        )
    result = {}
    for place, pair in enumerate(pairs):
        mine = jax.tree.map(lambda leaf, place=place: leaf[place], after)
        logs = np.asarray(log_w[place], float)
        weights = np.exp(logs - np.logaddexp.reduce(logs))
        result[pair] = np.clip(cases[pair[0]][0], 0, CLUSTERS - 1), weights, mine
    return result


def by_cluster(labels, values):
    """Sums of values (..., particles) over clusters of labels of the same shape: (..., K)."""
    return np.stack([np.where(labels == j, values, 0).sum(-1) for j in range(CLUSTERS)], -1)


EVERY = pytest.mark.parametrize(
    ("within", "dtype", "n"),
    [
        *((name, "float32", SIZE) for name in SCHEMES),
        ("systematic", "float64", SIZE),
        pytest.param("multinomial", "float64", SIZE, marks=pytest.mark.slow),
        pytest.param("killing", "float64", SIZE, marks=pytest.mark.slow),
        *(pytest.param(name, "float32", 57, marks=pytest.mark.slow) for name in SCHEMES),
        *(pytest.param(name, "float32", 7, marks=pytest.mark.slow) for name in SCHEMES),
    ],
)


@EVERY
def test_every_cluster_keeps_its_mass(within, dtype, n):
    """Each offspring weighs v_j / n_j with n_j as found, whatever the dice: n_j is exact."""
    for pair, (labels, weights, after) in drawn(within, dtype, n).items():
        mass = by_cluster(labels, weights)
        assert ((after.ancestors >= 0) & (after.ancestors < SIZE)).all(), pair
        assert (weights[after.ancestors] > 0).all(), pair
        of = labels[after.ancestors]
        number = by_cluster(of, np.ones(of.shape))
        assert (number.sum(-1) == n).all()
        assert (number[:, mass == 0] == 0).all(), pair
        assert (number[:, mass > 0] >= 1).all(), pair
        expected = np.log(mass[of]) - np.log(np.take_along_axis(number, of, -1))
        room = 300 * np.finfo(dtype).eps
        np.testing.assert_allclose(after.log_w, expected, rtol=room, atol=room, err_msg=str(pair))
        new = np.exp(after.log_w.astype(float))
        np.testing.assert_allclose(new.sum(-1), 1, rtol=room)
        assert (number == number[0]).all(), pair


@EVERY
def test_offspring_are_dealt_out_as_told(within, dtype, n):
    """Each living cluster has one, and the rest comes within one of what its share asks."""
    for (case, deal), (labels, weights, after) in drawn(within, dtype, n).items():
        mass = by_cluster(labels, weights)
        counts = by_cluster(labels, np.ones(SIZE))
        shares = np.where(mass > 0, DEALS[deal](mass, counts, n), 0)
        of = labels[after.ancestors[0]]
        number = by_cluster(of, np.ones(n))
        beyond_one = np.maximum(n * shares / shares.sum() - 1, 0)
        spare = n - (mass > 0).sum()
        wanted = (mass > 0) + spare * beyond_one / max(beyond_one.sum(), 1e-9)
        assert (abs(number - wanted) < 1 + 1e-4).all(), (case, deal)
        if deal == "count" and n == SIZE and (mass > 0).sum() == (counts > 0).sum():
            np.testing.assert_array_equal(number, counts)


@EVERY
def test_proposition_1_clusters_do_not_bias(within, dtype, n):
    """E sum w f after resampling is the weighted mean before: |z| < 4 on four functions.

    The mean of each particle's weight is compared too, and with it every function there is, in
    units of its cluster's mass, so that faint clusters count. The Bonferroni threshold there
    gives a false alarm with chance 1e-4; |z| < 4 would in 1 of 70 draws of new seeds.
    """
    results = drawn(within, dtype, n)
    threshold = z_threshold(len(results) * SIZE)
    for pair, (labels, weights, after) in results.items():
        ancestors, log_w = after.ancestors[:KEYS], after.log_w[:KEYS].astype(float)
        of, mass = labels[ancestors], by_cluster(labels, weights)
        for function in FUNCTIONS:
            values = function(PLACES)
            centred = values - values @ weights
            sums = (np.exp(log_w) * centred[ancestors]).sum(-1)
            variance = np.maximum(sums.var(), of_independent_draws(labels, weights, of[0], values))
            error = np.sqrt(variance / KEYS)
            assert abs(sums.mean()) < 4 * error + 1e-5, (pair, function)
        share = np.zeros((KEYS, SIZE))
        relative = np.exp(log_w - np.log(mass[of]))
        np.add.at(share, (np.arange(KEYS)[:, None], ancestors), relative)
        expected = weights / np.where(mass > 0, mass, 1)[labels]
        number = np.maximum(by_cluster(of[0], np.ones(n)), 1)[labels]
        part = number * expected % 1
        least = part * (1 - part) / number**2
        error = np.sqrt(np.maximum(share.var(0), least) / KEYS)
        assert (abs(share.mean(0) - expected) < threshold * error + 1e-4).all(), pair


def of_independent_draws(labels, weights, of, values):
    """Variance of the sum of f with multinomial draws: what rare draws hide from a sample."""
    mass, number = by_cluster(labels, weights), by_cluster(of, np.ones(of.shape))
    share = np.where(mass > 0, mass, 1)
    mean = by_cluster(labels, weights * values) / share
    spread = by_cluster(labels, weights * (values - mean[labels]) ** 2) / share
    return (mass**2 * spread / np.maximum(number, 1)).sum()


@EVERY
def test_proposition_2_divergence_is_from_the_sampled(within, dtype, n):
    """D(v || c) is KL(regular given sampled), added up over particles, and not the reverse."""
    different = 0
    for pair, (labels, weights, after) in drawn(within, dtype, n).items():
        alive = weights > 0
        mass = by_cluster(labels, weights)
        number = by_cluster(labels[after.ancestors[0]], np.ones(n))
        regular = weights[alive]
        sampled = (number / n / np.where(mass > 0, mass, 1))[labels[alive]] * regular
        assert abs(sampled.sum() - 1) < 1e-12
        ratio = np.log(regular / sampled)
        np.testing.assert_allclose(
            after.cluster_kl,
            regular @ ratio,
            rtol=1e-4,
            atol=50 * np.finfo(dtype).eps,
            err_msg=str(pair),
        )
        different += abs(regular @ ratio + sampled @ ratio) > 0.01
    assert different > 10
