"""Laws of the estimator: scikit-learn's contract, weights, streams, hard data, what it finds."""

import pickle
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from covey.estimators import SSMCKMeans
from covey.estimators.ssmc import METHODS
from covey.estimators.stream import Stream
from tests.test_ssmc import BAD, HARD, mixture, rng, table_1

EXPECTED_TO_FAIL = {
    "paper": {
        name: "batches are drawn from the rows, so rows are not interchangeable with weights"
        for name in (
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
        )
    }
}


def checks():
    for method in METHODS:
        estimator = SSMCKMeans(method=method)
        failing = EXPECTED_TO_FAIL.get(method, {})
        for one, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if name not in failing:
                yield pytest.param(one, check, id=f"{method}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
@pytest.mark.filterwarnings("ignore")
def test_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


# Places where scikit-learn puts an estimator


def test_works_in_a_pipeline_and_a_grid_search():
    x = load_iris().data
    pipeline = make_pipeline(StandardScaler(), SSMCKMeans(random_state=0))
    grid = {"ssmckmeans__n_clusters": [2, 3], "ssmckmeans__method": ["collapse", "polish"]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(x)
    assert search.best_params_["ssmckmeans__n_clusters"] == 3
    assert search.predict(x).shape == (150,)


def test_clones_pickles_and_prints():
    x = table_1(0)
    fitted = SSMCKMeans(4, method="polish", random_state=1).fit(x)
    twin = clone(fitted)
    assert not hasattr(twin, "cluster_centers_")
    assert twin.get_params() == fitted.get_params()
    restored = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(restored.predict(x), fitted.labels_)
    assert len(restored.trace_) == len(fitted.trace_)
    assert repr(fitted) == "SSMCKMeans(method='polish', n_clusters=4, random_state=1)"


def test_sets_output_and_names_its_features():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table_1(0), columns=["east", "north"])
    kmeans = SSMCKMeans(4, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(kmeans.feature_names_in_) == ["east", "north"]
    names = ["ssmckmeans0", "ssmckmeans1", "ssmckmeans2", "ssmckmeans3"]
    assert list(kmeans.transform(frame).columns) == names
    assert list(kmeans.get_feature_names_out()) == names


def test_an_unfitted_estimator_says_so():
    kmeans = SSMCKMeans(2)
    for call in (kmeans.predict, kmeans.transform, kmeans.score):
        with pytest.raises(NotFittedError):
            call(np.ones((3, 1)))
    assert not hasattr(kmeans, "trace_")


def test_verbose_tells_the_inertia(capsys):
    x = table_1(0)
    kmeans = SSMCKMeans(4, random_state=0, verbose=1).fit(x)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == kmeans.n_iter_
    assert lines[0].startswith("collapse: iteration 1, inertia ")
    SSMCKMeans(4, random_state=0).fit(x)
    assert capsys.readouterr().out == ""


# What it finds


@pytest.mark.parametrize("method", METHODS)
def test_attributes_and_methods_agree(method):
    x, k = mixture(3)
    weight = rng().random(len(x))
    kmeans = SSMCKMeans(k, method=method, random_state=0).fit(x, sample_weight=weight)
    distances = np.linalg.norm(x[:, None] - kmeans.cluster_centers_, axis=2)
    np.testing.assert_allclose(kmeans.transform(x), distances, atol=1e-6)
    np.testing.assert_array_equal(kmeans.labels_, distances.argmin(1))
    np.testing.assert_array_equal(kmeans.predict(x), kmeans.labels_)
    assert kmeans.inertia_ == pytest.approx(weight @ distances.min(1) ** 2)
    assert kmeans.score(x, sample_weight=weight) == pytest.approx(-kmeans.inertia_)
    assert kmeans.labels_.dtype == np.int32
    assert 1 <= kmeans.n_iter_ <= kmeans.max_iter


@pytest.mark.parametrize("method", METHODS)
def test_same_random_state_same_result(method):
    x, k = mixture(3)
    first, again = (SSMCKMeans(k, method=method, random_state=5).fit(x) for _ in range(2))
    np.testing.assert_array_equal(first.cluster_centers_, again.cluster_centers_)
    np.testing.assert_array_equal(first.labels_, again.labels_)
    np.testing.assert_array_equal(first.labels_, clone(first).fit_predict(x))


@pytest.mark.parametrize("method", ["collapse", "polish"])
def test_whole_weights_are_repeated_points(method):
    x = rng().normal(size=(60, 2)) + 9 * rng(1).integers(0, 2, (60, 2))
    times = rng(2).integers(0, 4, 60)
    weighted = SSMCKMeans(4, method=method, random_state=0).fit(x, sample_weight=times)
    repeated = SSMCKMeans(4, method=method, random_state=0).fit(np.repeat(x, times, 0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, atol=1e-9)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_)


def test_the_scale_of_weights_scales_the_inertia_only():
    x, k = mixture(5)
    weight = rng().random(len(x))
    plain, heavy = (
        SSMCKMeans(k, random_state=0).fit(x, sample_weight=factor * weight) for factor in (1, 2e9)
    )
    np.testing.assert_allclose(heavy.cluster_centers_, plain.cluster_centers_)
    assert heavy.inertia_ == pytest.approx(2e9 * plain.inertia_)


@pytest.mark.parametrize("method", METHODS)
def test_sparse_data_give_what_dense_data_give(method):
    x = load_digits().data[:600]
    dense, sparse = (
        SSMCKMeans(10, method=method, random_state=0).fit(data) for data in (x, csr_matrix(x))
    )
    assert sparse.inertia_ == pytest.approx(dense.inertia_, rel=0.03)
    np.testing.assert_array_equal(sparse.predict(x), sparse.predict(csr_matrix(x)))
    np.testing.assert_allclose(sparse.transform(x), sparse.transform(csr_matrix(x)), atol=1e-6)
    assert sparse.score(csr_matrix(x)) == pytest.approx(-sparse.inertia_)


def test_single_precision_stays_single():
    x = mixture(2)[0].astype(np.float32)
    kmeans = SSMCKMeans(6, random_state=0).fit(x)
    assert kmeans.cluster_centers_.dtype == kmeans.transform(x).dtype == np.float32
    double = SSMCKMeans(6, random_state=0).fit(x.astype(float))
    assert kmeans.inertia_ == pytest.approx(double.inertia_, rel=1e-5)
    assert SSMCKMeans(6).partial_fit(x).cluster_centers_.dtype == np.float32


def test_data_are_left_as_they_are():
    x = mixture(2)[0]
    x.setflags(write=False)
    SSMCKMeans(6, method="polish").fit(x).predict(x)


@pytest.mark.parametrize("method", METHODS)
def test_the_trace_tells_how_particles_collapsed(method):
    x, k = mixture(6)
    trace = SSMCKMeans(k, method=method, random_state=0).fit(x).trace_
    counts = [len(generation.masses) for generation in trace]
    assert counts[0] >= 5 * k > counts[-1] or method == "polish"
    assert counts == sorted(counts, reverse=True)
    assert all(len(g.positions) == len(g.masses) for g in trace)
    if method == "paper":
        assert all(generation.masses.sum() == max(256, 20 * k) for generation in trace)
    else:
        assert counts[-1] == k
        for generation in trace:
            assert generation.masses.sum() == pytest.approx(len(x))
        np.testing.assert_allclose(trace[0].masses @ trace[0].positions / len(x), x.mean(0))


# Hard data


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", HARD)
def test_hard_data_are_clustered(name, method):
    x, k, warns = HARD[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, again = (SSMCKMeans(k, method=method, random_state=0).fit(x) for _ in range(2))
    assert one.cluster_centers_.shape == (k, x.shape[1])
    assert np.isfinite(one.cluster_centers_).all()
    np.testing.assert_array_equal(one.cluster_centers_, again.cluster_centers_)
    np.testing.assert_array_equal(one.predict(x), one.labels_)
    distinct = len(np.unique(x, axis=0))
    assert len(np.unique(one.labels_)) == min(k, distinct)
    if distinct <= k:
        assert one.inertia_ == 0
    kinds = {warning.category for warning in caught}
    assert kinds == ({ConvergenceWarning} if warns else set())


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    x, k, options, reason = BAD[name]
    weight = {"sample_weight": options.get("sample_weight")}
    options = {key: value for key, value in options.items() if key != "sample_weight"}
    for learn in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=reason):
            getattr(SSMCKMeans(k, **options), learn)(x, **weight)


@pytest.mark.parametrize("options", [{"max_iter": 0}, {"tol": -1.0}, {"max_iter": 2.5}])
def test_bad_limits_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SSMCKMeans(2, **options).fit(np.ones((5, 1)))


def test_new_data_far_larger_than_the_old_find_their_centre():
    kmeans = SSMCKMeans(2, random_state=0).fit([[-1.0], [1.0]])
    assert kmeans.predict([[-1e200], [1e200]]).tolist() == [0, 1]
    np.testing.assert_allclose(kmeans.transform([[1e200]]), [[1e200, 1e200]])


# Streams


def batches_of(x, size):
    order = rng(9).permutation(len(x))
    return [x[order[start : start + size]] for start in range(0, len(x), size)]


def test_a_stream_keeps_all_mass_and_the_mean_in_little_memory():
    x, weight = rng().normal(size=(20_000, 3)), rng(1).random(20_000)
    stream, dice = Stream(100), rng(2)
    for start in range(0, 20_000, 70):
        stream.add(x[start : start + 70], weight[start : start + 70], dice)
        assert sum(len(summary.masses) for summary in stream.summaries) <= 100 * 9
    positions, masses = stream.gathered()
    assert stream.rows == 20_000
    assert masses.sum() == pytest.approx(weight.sum())
    np.testing.assert_allclose(masses @ positions, weight @ x)


@pytest.mark.parametrize("method", ["collapse", "polish"])
@pytest.mark.parametrize("seed", [20, 21, 22])
def test_a_stream_is_learnt_nearly_as_well_as_all_at_once(method, seed):
    x, k = mixture(seed)
    x = np.concatenate([x, x + 0.05 * rng().normal(size=x.shape), x[::-1] + 0.01])
    best = SSMCKMeans(k, method="polish", random_state=0).fit(x).inertia_
    kmeans, rival = (
        SSMCKMeans(k, method=method, random_state=0),
        MiniBatchKMeans(k, random_state=0, n_init=3),
    )
    for batch in batches_of(x, 300):
        kmeans.partial_fit(batch)
        rival.partial_fit(batch)
    assert -kmeans.score(x) < 1.05 * best
    assert -kmeans.score(x) <= -rival.score(x)


def test_a_stream_that_drifts_forgets_nothing():
    means = np.arange(8.0)[:, None] * [100, 0]
    kmeans = SSMCKMeans(8, random_state=0)
    for mean in means:
        for _ in range(3):
            kmeans.partial_fit(mean + rng().normal(size=(200, 2)))
    gaps = np.linalg.norm(kmeans.cluster_centers_[:, None] - means, axis=2)
    assert (gaps.min(0) < 1).all()


def test_an_iterator_of_batches_is_a_stream():
    x, k = mixture(8)
    batches = batches_of(x, 200)
    one = SSMCKMeans(k, random_state=0).partial_fit(iter(batches))
    assert one.labels_.shape == (len(batches[-1]),)
    assert -one.score(x) < 1.1 * SSMCKMeans(k, random_state=0).fit(x).inertia_
    sparse = SSMCKMeans(k, random_state=0).partial_fit(csr_matrix(batch) for batch in batches)
    assert -sparse.score(x) == pytest.approx(-one.score(x), rel=0.05)
    with pytest.raises(ValueError, match="at least one"):
        SSMCKMeans(k).partial_fit(iter([]))
    with pytest.raises(ValueError, match="sample_weight must be None"):
        SSMCKMeans(k).partial_fit(iter(batches), sample_weight=[1.0])


def test_later_batches_may_be_small_the_first_may_not():
    kmeans = SSMCKMeans(3, random_state=0)
    with pytest.raises(ValueError, match="n_samples=2 should be >= n_clusters=3"):
        kmeans.partial_fit([[0.0], [1.0]])
    kmeans.partial_fit([[0.0], [1.0], [10.0]]).partial_fit([[11.0]]).partial_fit([[20.0]])
    np.testing.assert_allclose(kmeans.cluster_centers_.ravel(), [0.5, 10.5, 20.0])


def test_weights_of_batches_count_alike():
    x = table_1(4)
    kmeans = SSMCKMeans(2, random_state=0)
    kmeans.partial_fit(x[:200], sample_weight=np.full(200, 3.0))
    kmeans.partial_fit(x[200:], sample_weight=np.full(200, 1e-3))
    mass = kmeans.trace_[-1].masses.sum()
    assert mass == pytest.approx(200 * 3 + 200 * 1e-3)


# What it is for


def test_digits_come_within_a_thousandth_of_the_best_known():
    x = load_digits().data
    found = [
        SSMCKMeans(10, method="polish", random_state=seed).fit(x).inertia_ for seed in range(6)
    ]
    assert np.mean(found) < 1.0015 * 1165109.2
    assert min(found) < 1.0002 * 1165109.2


def test_many_touching_clusters_are_found_better_than_by_ten_starts():
    grid = np.stack(np.meshgrid(np.arange(8.0), np.arange(8.0)), -1).reshape(-1, 2)
    x = grid[rng().integers(0, 64, 3000)] + 0.25 * rng(1).normal(size=(3000, 2))
    ten = KMeans(64, n_init=10, random_state=0).fit(x).inertia_
    assert SSMCKMeans(64, random_state=0).fit(x).inertia_ < ten
    assert SSMCKMeans(64, method="polish", random_state=0).fit(x).inertia_ < 0.98 * ten
