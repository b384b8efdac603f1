"""Laws of the clusterers inside filters, and of k-means among them."""

from functools import cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import covey
from covey.clustering import nearest
from tests.laws import CLUSTERERS, FALSE_ALARM, QUICK, precision, z_threshold

N, K = 60, 4
PLACES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
OWNERS = np.random.default_rng(0).permutation(np.repeat(np.arange(K), N // K))
BLOBS = PLACES[OWNERS] + np.random.default_rng(1).uniform(-1, 1, (N, 2))
LONELY = 17

each_clusterer = pytest.mark.parametrize("name", CLUSTERERS)
each_precision = pytest.mark.parametrize("dtype", ["float32", "float64"])


def replaced(rows, value) -> np.ndarray:
    """The blobs with these rows spoilt."""
    features = BLOBS.copy()
    features[rows] = value
    return features


def hard_features() -> dict[str, np.ndarray]:
    """Features (60, 2) of four blobs that clusterers have gone wrong with."""
    return {
        "usual": BLOBS,
        "all equal": np.full((N, 2), 3.0),
        "all zero": np.zeros((N, 2)),
        "three different": PLACES[np.arange(N) % 3],
        "a constant dimension": BLOBS * [1, 0] + [0, 5],
        "far from the origin": BLOBS + 1e6,
        "tiny": BLOBS * 1e-20,
        "huge": BLOBS * 1e18,
        "close to the largest number": BLOBS * 2e37,
        "one not a number": replaced(LONELY, np.nan),
        "one component infinite": replaced((LONELY, 1), -np.inf),
        "half not numbers": replaced(np.arange(0, N, 2), np.nan),
        "all but one not numbers": replaced(np.arange(N) != LONELY, np.nan),
        "none a number": np.full((N, 2), np.nan),
        "one far away": replaced(LONELY, 1e12),
    }


SEPARATE = (
    "usual",
    "far from the origin",
    "tiny",
    "huge",
    "close to the largest number",
    "one not a number",
    "one component infinite",
    "half not numbers",
)
"""Cases whose four blobs are the clusters that there are."""


@cache
def labelled(name: str, dtype: str, keys: int = 100) -> dict[str, np.ndarray]:
    """Labels (keys, n) of all cases: one compilation for all laws."""
    with precision(dtype):
        cases = hard_features()
        features = jnp.asarray(np.stack(list(cases.values())), dtype)
        over_keys = jax.vmap(CLUSTERERS[name], (0, None, None))
        labels = jax.jit(jax.vmap(over_keys, (None, 0, None)), compiler_options=QUICK)(
            jax.random.split(jax.random.key(0), keys), features, jnp.zeros(N, dtype)
        )
    return dict(zip(cases, np.asarray(labels), strict=True))


def compiled(cluster):
    """Fast to compile, which is what small shapes need."""
    return jax.jit(cluster, compiler_options=QUICK)


# Every clusterer


@each_clusterer
@each_precision
def test_every_clusterer_gives_everybody_a_label_in_range(name, dtype):
    for case, labels in labelled(name, dtype).items():
        assert labels.shape == (100, N), case
        assert np.issubdtype(labels.dtype, np.integer)
        assert ((labels >= 0) & (labels < CLUSTERERS[name].clusters)).all(), case


@each_clusterer
@pytest.mark.parametrize("n", [1, 3, 5])
def test_few_particles_all_get_labels(name, n):
    """Fewer particles than clusters, as many, and more."""
    features = jnp.arange(n, dtype=float)[:, None]
    labels = compiled(CLUSTERERS[name])(jax.random.key(0), features, jnp.zeros(n))
    assert labels.shape == (n,)
    assert ((labels >= 0) & (labels < K)).all()
    if n <= K:
        assert len(np.unique(labels)) == n


@each_clusterer
def test_same_key_same_labels_inside_transformations(name):
    key = jax.random.split(jax.random.key(0), 100)[3]
    alone = CLUSTERERS[name](key, jnp.asarray(BLOBS), jnp.zeros(N))
    np.testing.assert_array_equal(alone, labelled(name, "float32")["usual"][3])


@each_clusterer
@pytest.mark.parametrize("kind", ["int32", "bfloat16"])
def test_features_of_every_type_are_clustered(name, kind):
    features = jnp.asarray(np.arange(12)[:, None] >= 6, kind)
    labels = compiled(CLUSTERERS[name])(jax.random.key(0), features, jnp.zeros(12))
    assert len(np.unique(labels[:6])) == len(np.unique(labels[6:])) == 1
    assert (labels[0] != labels[6]) or name == "random k-means"


@each_clusterer
def test_equal_features_get_equal_labels(name):
    labels = labelled(name, "float32")
    for case in ("all equal", "all zero"):
        assert (labels[case] == labels[case][:, :1]).all(), case
    for place in range(3):
        mine = labels["three different"][:, place::3]
        assert (mine == mine[:, :1]).all()


# k-means


@pytest.mark.parametrize("name", ["k-means++", "k-means++ on all"])
@each_precision
def test_kmeans_separates_separate_blobs(name, dtype):
    """With the chance that D^2 seeds fall into four blobs: over 0.9, so 70 of 100 is z = -6.7."""
    for case in SEPARATE:
        labels, usable = labelled(name, dtype)[case], np.isfinite(hard_features()[case]).all(1)
        found = [are_the_blobs(row[usable], OWNERS[usable]) for row in labels]
        assert np.sum(found) > 70, case


def are_the_blobs(labels: np.ndarray, owners: np.ndarray) -> bool:
    """Whether the two partitions are the same."""
    pairs = set(zip(labels.tolist(), owners.tolist(), strict=True))
    return len(pairs) == len(set(labels.tolist())) == len(set(owners.tolist()))


@pytest.mark.parametrize("name", ["k-means++", "k-means++ on all"])
@each_precision
def test_kmeans_tells_everything_different_apart(name, dtype):
    """With as many clusters as different features there is one each, whatever the seeds."""
    labels = labelled(name, dtype)["three different"]
    assert all(len(np.unique(row)) == 3 for row in labels)


@each_precision
def test_one_far_away_is_alone_and_leaves_the_others_their_places(dtype):
    """The other three centres fall where they may, but not all the rest becomes one cluster."""
    labels = labelled("k-means++ on all", dtype)["one far away"]
    others = np.arange(N) != LONELY
    assert (labels[:, others] != labels[:, [LONELY]]).all()
    assert all(len(np.unique(row[others])) == 3 for row in labels)


@pytest.mark.parametrize("seeding", ["k-means++", "random"])
@pytest.mark.parametrize("case", hard_features())
def test_centres_are_finite_and_among_the_finite_features(seeding, case):
    """Features that are not numbers do not poison the centres, nor leave one at the origin."""
    features = hard_features()[case]
    usable = features[np.isfinite(features).all(1)]
    centres = np.asarray(centres_of(seeding)(jax.random.key(1), jnp.asarray(features, "float32")))
    assert np.isfinite(centres).all()
    if len(usable):
        slack = 1e-6 * abs(usable).max()
        assert (centres >= usable.min(0) - slack).all()
        assert (centres <= usable.max(0) + slack).all()


@cache
def centres_of(seeding: str):
    return compiled(covey.kmeans(K, seeding=seeding).centres)


def test_centres_are_the_means_of_their_particles():
    """After enough Lloyd steps; a million away from the origin too."""
    cluster = covey.kmeans(3, iterations=50, subsample=None)
    for offset in (0, 2.0**20):
        features = jnp.asarray(BLOBS + offset, "float32")
        centres = compiled(cluster.centres)(jax.random.key(2), features)
        labels = compiled(cluster)(jax.random.key(2), features, jnp.zeros(N))
        for place in range(3):
            mean = np.asarray(features, float)[labels == place].mean(0)
            np.testing.assert_allclose(centres[place], mean, rtol=2e-7, atol=1e-5)


def test_the_mean_of_many_far_from_the_origin_is_exact_to_their_spread():
    """200,000 features at 2^20 with spread one: a plain sum in single precision is off by more."""
    features = 2.0**20 + np.random.default_rng(3).integers(-8, 9, (200_000, 1)) / 8
    centres = compiled(covey.kmeans(1, subsample=None).centres)
    centre = centres(jax.random.key(0), jnp.asarray(features))
    assert abs(float(centre[0, 0]) - features.mean()) <= 0.0625  # half a unit in the last place


def test_more_lloyd_steps_never_cost():
    """The sum of squared distances falls."""
    features = jnp.asarray(BLOBS, "float32")
    costs = []
    for iterations in (0, 1, 4):
        cluster = covey.kmeans(6, iterations=iterations, subsample=None)
        centres = np.asarray(compiled(cluster.centres)(jax.random.key(4), features))
        costs.append(((BLOBS[:, None] - centres) ** 2).sum(2).min(1).sum())
    assert costs[0] > costs[1] > costs[2]


def test_one_cluster_takes_everybody():
    labels = compiled(covey.kmeans(1))(jax.random.key(0), jnp.asarray(BLOBS), jnp.zeros(N))
    assert (labels == 0).all()


def test_as_many_clusters_as_particles_is_one_each():
    features = jnp.asarray(BLOBS[:9])
    labels = compiled(covey.kmeans(9))(jax.random.key(0), features, jnp.zeros(9))
    assert sorted(labels.tolist()) == list(range(9))


# Seeds


POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [5.0, 1.0], [4.0, 4.0]])


@cache
def seeds(seeding: str, size: int, keys: int = 40_000) -> np.ndarray:
    """Indices (keys, 3) of the first three seeds among the first points."""
    cluster = covey.kmeans(3, iterations=0, subsample=None, seeding=seeding)
    points = jnp.asarray(POINTS[:size], "float32")

    def one(key):
        return nearest(cluster.centres(key, points), points)

    return np.asarray(compiled(jax.vmap(one))(jax.random.split(jax.random.key(6), keys)))


def chance_of_seeds(points: np.ndarray, order: tuple[int, ...]) -> float:
    """That D^2 sampling draws these points in this order (Arthur and Vassilvitskii, 2007)."""
    chance = 1 / len(points)
    for place in range(1, len(order)):
        drawn = points[list(order[:place])]
        squares = ((points[:, None] - drawn) ** 2).sum(2).min(1)
        chance *= squares[order[place]] / squares.sum()
    return chance


@pytest.mark.parametrize("first", [2, 3])
def test_kmeanspp_seeds_have_the_law_of_squared_distances(first):
    """The first two, and all three, of the seeds in their order: chi-square; false alarms 1e-4."""
    drawn = seeds("k-means++", len(POINTS))[:, :first]
    orders = list(permutations(range(len(POINTS)), first))
    expected = len(drawn) * np.array([chance_of_seeds(POINTS, order) for order in orders])
    assert expected.sum() == pytest.approx(len(drawn))
    assert expected.min() > 5
    counts = np.array([(drawn == order).all(1).sum() for order in orders])
    assert stats.chisquare(counts, expected, sum_check=False).pvalue > FALSE_ALARM / 2


def test_random_seeds_are_any_points_alike():
    """Every order of three alike: chi-square; false alarms 1e-4."""
    drawn = seeds("random", len(POINTS))
    orders = list(permutations(range(len(POINTS)), 3))
    counts = [(drawn == order).all(1).sum() for order in orders]
    assert np.sum(counts) == len(drawn)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_with_more_clusters_than_points_every_point_is_a_seed():
    for seeding in ("k-means++", "random"):
        drawn = seeds(seeding, 2, 100)
        assert all(set(row) == {0, 1} for row in drawn.tolist())


@pytest.mark.parametrize("n", [7, 101])
def test_a_subsample_is_evenly_spaced_and_picks_everybody_alike(n):
    """Seen through one cluster per subsampled particle, whose centre it is; false alarms 1e-4."""
    size = 7
    cluster = covey.kmeans(size, iterations=0, subsample=size)
    places = jnp.arange(n, dtype=float)[:, None]
    keys = jax.random.split(jax.random.key(9), 3000)
    centres = compiled(jax.vmap(cluster.centres, (0, None)))(keys, places)
    picked = np.sort(np.asarray(centres)[..., 0].astype(int), 1)
    gaps = np.diff(picked, axis=1, append=picked[:, :1] + n)
    assert (gaps >= n // size).all()
    assert (gaps <= -(-n // size)).all()
    times = np.bincount(picked.ravel(), minlength=n)
    chance = size / n
    error = np.sqrt(len(keys) * chance * (1 - chance)) + 1e-9
    # A Poisson tail is heavier than the normal one: z + z^2 / 6 of standard errors when few.
    z = z_threshold(n)
    assert (abs(times - len(keys) * chance) <= error * z + z**2 / 6).all()


# Nearest


@pytest.mark.parametrize(("q", "k"), [(1, 1), (1, 7), (2, 10), (30, 8), (40, 10), (300, 3)])
@pytest.mark.parametrize("offset", [0, 1000])
def test_nearest_is_the_nearest(q, k, offset):
    """Against brute force in double precision, by columns and by one product."""
    rng = np.random.default_rng(q)
    features = (rng.normal(size=(500, q)) + offset).astype("float32")
    centres = (rng.normal(size=(k, q)) + offset).astype("float32")
    squares = ((features[:, None].astype(float) - centres) ** 2).sum(2)
    labels = nearest(jnp.asarray(features), jnp.asarray(centres))
    assert labels.dtype == np.int32
    chosen = np.take_along_axis(squares, np.asarray(labels)[:, None], 1)[:, 0]
    np.testing.assert_allclose(chosen, squares.min(1), rtol=1e-4)
    assert (labels == squares.argmin(1)).mean() > 0.99


@pytest.mark.parametrize("q", [1, 3, 100])
def test_ties_go_to_the_lowest_index(q):
    """Between centres that are the same, and, by columns, in the middle between two."""
    centres = jnp.asarray([1.0, -1.0, 1.0, -1.0, 8.0])[:, None] * jnp.ones(q)
    features = jnp.asarray([-1.0, 1.0, 9.0, 0.0])[:, None] * jnp.ones(q)
    labels = nearest(features, centres)
    np.testing.assert_array_equal(labels[:3], [1, 0, 4])
    if q < 100:
        assert labels[3] == 0


@pytest.mark.parametrize("q", [1, 100])
def test_a_feature_that_is_not_finite_gets_a_label_and_leaves_the_others_theirs(q):
    features = np.repeat([[9.0], [np.nan], [-1.0], [np.inf], [9.0], [-np.inf]], q, axis=1)
    labels = nearest(jnp.asarray(features), jnp.asarray([[-1.0], [1.0], [8.0]]) * jnp.ones(q))
    assert ((labels >= 0) & (labels < 3)).all()
    np.testing.assert_array_equal(labels[jnp.array([0, 2, 4])], [2, 0, 2])


# Arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 0}, ValueError, "k must be at least 1, got 0"),
        ({"k": -3}, ValueError, "k must be at least 1, got -3"),
        ({"k": 2.5}, TypeError, "k must be a whole number, got 2.5"),
        ({"k": "3"}, TypeError, "k must be a whole number, got '3'"),
        ({"k": None}, TypeError, "k must be a whole number, got None"),
        ({"iterations": -1}, ValueError, "iterations must be at least 0, got -1"),
        ({"iterations": 1.5}, TypeError, "iterations must be a whole number, got 1.5"),
        ({"k": 10, "subsample": 9}, ValueError, "subsample must be at least 10, got 9"),
        ({"subsample": 500.0}, TypeError, "subsample must be a whole number, got 500.0"),
        ({"seeding": "best"}, ValueError, "seeding must be 'k-means\\+\\+' or 'random'"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        covey.kmeans(**arguments)
