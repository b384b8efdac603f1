"""The experiment measures what it says: against exact answers, SciPy and plain NumPy."""

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import covey
from covey import figures
from covey.reproduce import seeding, seeding_report, volatility
from covey.reproduce.grid import Grid, grid_filter, wasserstein
from covey.reproduce.volatility import METRICS, Result, Sample, Settings, count_modes
from covey.reproduce.volatility_report import as_json, draw, heading, legend, verdict, write

# The exact filter


@cache
def gaussian():
    """A linear-Gaussian model, observations of it, and its laws by Kalman and on a grid."""
    with jax.enable_x64(True):
        model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
        _, y = covey.simulate(jax.random.key(0), model, 25)
        grid = grid_filter(model, y, jax.scipy.stats.norm.logpdf, low=-9, high=9, points=601)
        return model.kalman(y), jax.device_get(grid)


def test_grid_filter_is_the_kalman_filter():
    kalman, grid = gaussian()
    assert grid.log_evidence == pytest.approx(float(kalman.log_evidence), abs=1e-9)
    np.testing.assert_allclose(grid.mean, np.ravel(kalman.mean), atol=1e-9)
    np.testing.assert_allclose(grid.variance, np.ravel(kalman.covariance), rtol=1e-9)


def test_density_on_the_grid_is_the_last_law():
    kalman, grid = gaussian()
    mean, variance = np.ravel(kalman.mean)[-1], np.ravel(kalman.covariance)[-1]
    exact = stats.norm.pdf(grid.x, mean, np.sqrt(variance))
    np.testing.assert_allclose(grid.density, exact, atol=1e-9)
    assert grid.density.sum() * np.diff(grid.x)[0] == pytest.approx(1)


def test_a_finer_grid_changes_nothing():
    """The volatility model; also that series are filtered apart from each other."""
    model = covey.models.StochasticVolatility()
    _, y = jax.vmap(lambda key: covey.simulate(key, model, 8))(jax.random.split(jax.random.key(3)))
    coarse = volatility.exact_filter(model, y, points=301)
    fine = volatility.exact_filter(model, y[1:], points=901)
    np.testing.assert_allclose(coarse.log_evidence[1:], fine.log_evidence, atol=1e-9)
    np.testing.assert_allclose(coarse.mean[1:], fine.mean, atol=1e-9)
    assert coarse.density.dtype == np.float64


def test_grid_filter_needs_the_density_of_the_motion():
    model = covey.StateSpaceModel(lambda *_: None, lambda *_: None, lambda *_: None)
    with pytest.raises(ValueError, match="needs a model with log_transition"):
        grid_filter(model, jnp.zeros(3), jnp.sin, low=0, high=1)


# Distances


@pytest.mark.parametrize("seed", range(6))
def test_wasserstein_is_that_of_scipy(seed):
    """Which takes points on both sides: here 20,000 for the density, at its even quantiles."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    x, weights = rng.normal(size=size), rng.dirichlet(np.ones(size))
    grid = np.sort(rng.uniform(-4, 4, 60)) if seed % 2 else np.linspace(-4, 4, 60)
    density = np.exp(-((grid - 1) ** 2)) + rng.uniform(0, 1, 60)
    density[10:15] = 0
    pieces = np.diff(grid) * (density[1:] + density[:-1]) / 2
    cdf = np.concatenate([[0], pieces.cumsum()]) / pieces.sum()
    # The distribution function is linear between points, and flat where the density is zero.
    points = np.interp((np.arange(20_000) + 0.5) / 20_000, cdf + 1e-12 * np.arange(60), grid)
    expected = stats.wasserstein_distance(x, points, weights)
    assert wasserstein(x, weights, grid, density) == pytest.approx(expected, abs=1e-3)


def test_wasserstein_of_a_point_is_its_mean_distance():
    """Also of one off the grid, of several in one place, and with a density not normalised."""
    grid, density = np.linspace(0, 2, 5), np.full(5, 7.0)
    for x, expected in ((0, 1), (1, 0.5), (2, 1), (-3, 4), (5, 4), (0.3, 0.745)):
        one = wasserstein(np.array([x]), np.ones(1), grid, density)
        several = wasserstein(np.full(3, x), np.array([0.2, 0.5, 0.3]), grid, density)
        assert one == pytest.approx(expected)
        assert several == pytest.approx(expected)


def test_wasserstein_of_even_quantiles_vanishes():
    grid, density = np.linspace(0, 1, 11), np.ones(11)
    x = np.random.default_rng(0).permutation((np.arange(1000) + 0.5) / 1000)
    assert wasserstein(x, np.full(1000, 1e-3), grid, density) == pytest.approx(1 / 4000)


@pytest.mark.parametrize(
    ("density", "modes"),
    [
        ([0, 1, 0], 1),
        ([0, 2, 1, 3, 0], 2),
        ([0, 1, 1, 0], 1),
        ([0, 1, 2, 2, 2, 1, 0], 1),
        ([0, 1000, 0, 2, 0], 2),
        ([0, 1000, 0, 0.9, 0], 1),
        ([0, 1, 2, 3], 0),
    ],
)
def test_modes_are_peaks_that_reach_a_thousandth(density, modes):
    assert count_modes(np.array(density)) == modes
    assert (count_modes(np.array([density, density])) == [modes, modes]).all()


def test_distinct_ancestors_are_those_of_numpy():
    rng = np.random.default_rng(0)
    ancestors = rng.integers(0, 30, (12, 30))
    counted = jax.jit(volatility.distinct_ancestors, static_argnums=1)
    for lag in (1, 5, 12):
        index = np.arange(30)
        for parents in ancestors[::-1][:lag]:
            index = parents[index]
        assert counted(jnp.asarray(ancestors), lag) == len(set(index.tolist()))
    assert counted(jnp.asarray(ancestors), 50) == counted(jnp.asarray(ancestors), 12)


# Settings


@pytest.mark.parametrize(
    ("replicates", "series", "runs"),
    [(4, 2, 2), (5, 2, 3), (40, 20, 2), (41, 20, 3), (200, 20, 10)],
)
def test_replicates_are_rounded_up_to_runs_on_every_series(replicates, series, runs):
    settings = Settings(replicates=replicates)
    assert (settings.series, settings.runs) == (series, runs)
    assert series * runs >= replicates


def test_no_more_steps_back_than_there_are():
    assert (Settings(steps=3).lag, Settings(steps=40).lag) == (3, volatility.LONGEST_LAG)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"replicates": 3}, "replicates must be from 4 to 100000, got 3; raise it to 4"),
        ({"replicates": 10**6}, "got 1000000; lower it to 100000"),
        ({"particles": 1}, "particles must be from 2 to 100000, got 1; raise it to 2"),
        ({"steps": 0}, "steps must be from 1 to 10000, got 0"),
        ({"clusters": 0}, "clusters must be from 1 to 1000, got 0"),
        ({"particles": 5}, "clusters must be from 1 to 5, got 10; lower it to 5"),
        ({"seed": 2**32}, "seed must be from 0 to 4294967295"),
        ({"particles": 100_000, "steps": 11}, r"got 100000 \* 11; lower one of them"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        Settings(**numbers)


# Estimates


def made_up(series: int = 20, **changed) -> Result:
    """A result whose numbers are drawn, not computed; ``changed``: metric -> factor for the CBF."""
    rng = np.random.default_rng(5)
    names = ["BF multinomial", "BF systematic", "CBF as printed", "CBF systematic"]
    usual = {metric: rng.uniform(1, 2, series) for metric in METRICS}
    values = {
        name: {
            metric: usual[metric] * (changed.get(metric, 1) if name.startswith("CBF") else 1)
            for metric in METRICS
        }
        for name in names
    }
    x = np.linspace(-5, 5, 201)
    exact = Grid(x, stats.norm.pdf(x), np.array(-3.0), np.zeros(3), np.ones(3))
    sample = Sample(rng.normal(size=50), np.full(50, 0.02), dict.fromkeys(METRICS, 1.0))
    settings = Settings(replicates=2 * series)
    samples = dict.fromkeys(names, sample)
    return Result(settings, values, samples, exact, 0.3, np.ones(series, int))


def test_estimates_are_means_with_the_standard_error_of_a_mean():
    """The bootstrap of 2000 resamples is off by a few percent (z = 4: 6%)."""
    result = made_up()
    for metric in METRICS:
        values = result.values["BF systematic"][metric]
        mean, error = result.estimate("BF systematic", metric)
        assert mean == pytest.approx(values.mean())
        assert error == pytest.approx(values.std(ddof=1) / np.sqrt(len(values)), rel=0.07)
        assert result.estimate("BF systematic", metric) == (mean, error)


def test_the_ratio_of_what_is_proportional_is_certain():
    """Series are drawn for both filters together."""
    result = made_up(parents=1.25)
    ratio, low, high = result.ratio("parents", "CBF as printed", "BF multinomial")
    np.testing.assert_allclose([ratio, low, high], 1.25)


def test_the_interval_of_a_ratio_holds_it():
    result = made_up()
    result.values["CBF as printed"]["parents"] = np.linspace(1, 3, 20)
    ratio, low, high = result.ratio("parents", "CBF as printed", "BF multinomial")
    expected = 2 / result.values["BF multinomial"]["parents"].mean()
    assert ratio == pytest.approx(expected)
    assert low < ratio < high


# The verdict


def test_the_verdict_follows_the_numbers():
    worse = " ".join(verdict(made_up(ancestors=0.5, wasserstein=2, evidence_variance=1.5)))
    assert "does not hold here" in worse
    assert "2.00 times (2.00 to 2.00: farther)" in worse
    assert "1.50 times (1.50 to 1.50: noisier)" in worse
    better = " ".join(verdict(made_up(ancestors=2, wasserstein=0.5, resamplings=0.9)))
    assert "postpone impoverishment holds here" in better
    assert "(0.50 to 0.50: closer)" in better
    assert "less often" in better
    same = " ".join(verdict(made_up()))
    assert "is not decided by these runs" in same
    assert "no clear difference" in same


def test_the_verdict_counts_single_modes_and_warns_of_few_series():
    several = replace(made_up(), modes=np.array([1] * 7 + [2] * 13))
    assert any("a single mode in 7 of 20 series" in line for line in verdict(several))
    assert not any("rough" in line for line in verdict(several))
    assert any("only 2 series are rough" in line for line in verdict(made_up(series=2)))


def test_heading_and_legend_say_what_was_run():
    settings = Settings(replicates=6, particles=77, steps=5, clusters=3, seed=9)
    said = heading(settings)
    for part in ("77 particles", "5 steps", "3 clusters", "seed 9", "3 series × 2 runs"):
        assert part in said
    described = " ".join(legend(settings.lag))
    assert "5 steps before T" in described
    for label in set(METRICS.values()) - {"resamplings"}:
        assert f"{label}: " in described


# Files


def test_a_figure_leaves_the_settings_of_matplotlib_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(made_up(), tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before


def test_a_figure_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    """Neither when drawing fails nor when the disk is full; an older file stays."""
    from matplotlib.figure import Figure

    path = tmp_path / "a.png"
    path.write_text("older")
    with pytest.raises(ZeroDivisionError), figures.figure(path, 1, 1):
        raise ZeroDivisionError

    def full(self, place, **_):
        place.write_text("half a picture")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(OSError, match="No space"), figures.figure(path, 1, 1):
        pass
    assert [found.name for found in tmp_path.iterdir()] == ["a.png"]
    assert path.read_text() == "older"


def test_nothing_in_the_picture_is_cut_off_or_drawn_over(tmp_path, monkeypatch):
    """Titles stay on the page and apart from each other, bars below what is written above them."""
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig

    def keep(self, *arguments, **options):
        drawn.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    draw(made_up(), tmp_path / "a.png")
    (picture,) = drawn
    picture.draw_without_rendering()
    page = picture.bbox
    titles = [axes._left_title.get_window_extent() for axes in picture.axes]
    for title in titles:
        assert page.x0 <= title.x0
        assert title.x1 <= page.x1
    for row in (titles[:2], titles[2:]):
        for left, right in pairwise(row):
            assert left.x1 < right.x0
    for axes in picture.axes[:2]:
        (bars,) = (patch for patch in axes.patches if patch.get_label() == "particles")
        top = axes.transData.transform((0, bars.get_data().values.max()))[1]
        assert top < axes.texts[0].get_window_extent().y0
        assert top < axes.get_legend().get_window_extent().y0


def test_files_are_written_whole(tmp_path):
    result = made_up(parents=1.5)
    paths = write(result, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    record = json.loads(paths[1].read_text(encoding="utf-8"))
    assert record == json.loads(as_json(result))
    value, error = result.estimate("CBF as printed", "parents")
    found = record["table"]["CBF as printed"]["parents"]
    assert found == {"value": value, "standard_error": error}


# The experiment


@pytest.fixture
def only_one_filter(monkeypatch):
    """Compiling four takes four times as long."""
    every = volatility.filters

    def one(model, settings):
        return {"CBF as printed": every(model, settings)["CBF as printed"]}

    monkeypatch.setattr(volatility, "filters", one)


@pytest.mark.slow
@pytest.mark.usefixtures("only_one_filter")
def test_what_is_measured_is_what_the_history_says():
    """Every metric of every series, from the filter's own runs, in plain NumPy."""
    settings = Settings(replicates=4, particles=40, steps=12, clusters=3, seed=5)
    told = []
    result = volatility.experiment(settings, lambda *progress: told.append(progress))
    assert told == [(1, 2), (2, 2)]
    model = covey.models.StochasticVolatility()
    to_simulate, to_filter = jax.random.split(jax.random.key(5))
    keys = [jax.random.fold_in(to_simulate, series) for series in range(2)]
    states, y = zip(*(covey.simulate(key, model, 12) for key in keys), strict=True)
    assert result.state == float(states[0][-1, 0])
    exact = volatility.exact_filter(model, jnp.stack(y), points=801)
    ((name, filter),) = volatility.filters(model, settings).items()
    run = jax.jit(lambda key, y: covey.run(key, filter, y, save="particles"))

    def measured(index: int, series: int) -> dict[str, float]:
        key = jax.random.fold_in(jax.random.fold_in(to_filter, index), series)
        return by_hand(
            run(key, y[series]), y[series], jax.tree.map(lambda leaf: leaf[series], exact)
        )

    runs = [[measured(index, series) for series in range(2)] for index in range(2)]
    for metric in METRICS:
        if metric == "evidence_variance":
            first, second = ([one["log_evidence"] for one in row] for row in runs)
            expected = np.subtract(first, second) ** 2 / 2
        else:
            expected = np.mean([[one[metric] for one in row] for row in runs], 0)
        found = result.values[name][metric]
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6, err_msg=metric)


def by_hand(history, y, exact) -> dict[str, float]:
    """The metrics of one run."""
    model = covey.models.StochasticVolatility()
    kept = jax.tree.map(np.asarray, history.kept)
    resampled = np.flatnonzero(history.resampled)
    weights = np.exp(kept["log_w"].astype(float))
    shares = []
    for t in resampled:
        before = weights[t] / np.exp(np.asarray(model.log_likelihood(kept["x"][t], y[t]), float))
        before /= before.sum()
        shares.append(1 / (before**2).sum() / len(before))
    index = np.arange(weights.shape[1])
    for parents in kept["ancestors"][::-1][:10]:
        index = parents[index]
    last = resampled[-1] if len(resampled) else None
    return {
        "wasserstein": wasserstein(kept["x"][-1, :, 0], weights[-1], exact.x, exact.density),
        "log_evidence": float(history.log_evidence),
        "evidence_ratio": float(np.exp(history.log_evidence - exact.log_evidence)),
        "parents": len(index) if last is None else len(np.unique(kept["ancestors"][last])),
        "ancestors": len(np.unique(index)),
        "ess_after": np.mean(shares) if shares else 1,
        "resamplings": len(resampled),
    }


# Seeding: the data and the starts


def test_the_data_are_those_of_the_paper():
    """Means within z = 5 standard errors, the variance within 5 of its own."""
    x = np.stack([seeding.data(np.random.default_rng(seed)) for seed in range(50)])
    clusters = x.reshape(50, 4, 100, 2)
    error = np.sqrt(0.1 / 5000)
    assert np.abs(clusters.mean((0, 2)) - seeding.MEANS).max() < 5 * error
    assert (clusters - seeding.MEANS[:, None]).var() == pytest.approx(0.1, rel=5 * 0.007)


def test_farthest_first_takes_the_farthest():
    x = np.random.default_rng(0).normal(size=(60, 3))
    chosen = seeding.farthest_first(x, 5, seed=1)
    for count in range(1, 5):
        gaps = np.linalg.norm(x[:, None] - chosen[None, :count], axis=2).min(1)
        np.testing.assert_array_equal(x[gaps.argmax()], chosen[count])


@cache
def all_methods():
    return seeding.methods()


def test_every_method_is_described_and_only_a_missing_package_is_left_out():
    missing = set(seeding.DESCRIBED) - set(all_methods())
    assert missing <= {seeding.BREATHING}
    assert [name for name in seeding.DESCRIBED if name not in missing] == list(all_methods())


@pytest.mark.parametrize("name", seeding.DESCRIBED)
def test_every_method_finds_a_fixed_point_the_same_for_the_same_seed(name):
    """Four centres, each the mean of its points; no global random state is touched."""
    if name not in all_methods():
        pytest.skip("not installed")
    x = seeding.data(np.random.default_rng(7))
    before = np.random.get_state()[1].copy()
    first, second = (all_methods()[name](x, 5) for _ in range(2))
    np.testing.assert_array_equal(first.cluster_centers_, second.cluster_centers_)
    np.testing.assert_array_equal(before, np.random.get_state()[1])
    labels = ((x[:, None] - first.cluster_centers_) ** 2).sum(-1).argmin(1)
    means = np.stack([x[labels == j].mean(0) for j in range(4)])
    np.testing.assert_allclose(means, first.cluster_centers_, atol=0.02)
    gaps = ((x - first.cluster_centers_[labels]) ** 2).sum()
    assert first.inertia_ == pytest.approx(gaps, rel=1e-3)


@cache
def some_seeding() -> seeding.Result:
    return seeding.experiment(seeding.Settings(datasets=12, seed=1))


def test_the_seeding_experiment_is_what_each_method_gives():
    result = some_seeding()
    for index in (0, 11):
        rng = np.random.default_rng([1, index])
        x, seed = seeding.data(rng), int(rng.integers(2**31))
        for name, fit in all_methods().items():
            # The order of sums depends on the number of threads.
            assert result.inertia[name][index] == pytest.approx(fit(x, seed).inertia_, rel=1e-9)
    assert all((inertia >= result.best).all() for inertia in result.inertia.values())


def test_the_first_data_sets_do_not_depend_on_how_many_follow():
    few = seeding.experiment(seeding.Settings(datasets=2, seed=1))
    for name, inertia in few.inertia.items():
        np.testing.assert_array_equal(inertia, some_seeding().inertia[name][:2])


def test_the_bad_start_is_one():
    bad = some_seeding().bad
    first = some_seeding().failed(seeding.RANDOM).argmax()
    assert bad.ratio == some_seeding().inertia[seeding.RANDOM][first] / some_seeding().best[first]
    assert bad.ratio > seeding.TOLERANCE
    assert {tuple(row) for row in bad.start} <= {tuple(row) for row in bad.points}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"datasets": 1}, "datasets must be from 2 to 1000000, got 1; raise it to 2"),
        ({"datasets": 10**7}, "lower it to 1000000"),
        ({"seed": -1}, "seed must be from 0 to 4294967295, got -1"),
    ],
    ids=str,
)
def test_seeding_settings_out_of_range_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        seeding.Settings(**numbers)


# Seeding: rates and verdict


def failing(datasets: int = 2000, **shares: float) -> seeding.Result:
    """A result in which methods fail on this share of the data sets, the first ones."""
    names = dict(zip(("ssmc", "plain", "random", "small"), seeding_report_names(), strict=True))
    inertia = {}
    for name in seeding.DESCRIBED:
        short = next((key for key, full in names.items() if full == name), "")
        count = round(shares.get(short, 0) * datasets)
        inertia[name] = np.where(np.arange(datasets) < count, 2.0, 1.0)
    best = np.ones(datasets)
    settings = seeding.Settings(datasets=datasets)
    return seeding.Result(settings, inertia, best, some_seeding().bad, some_seeding().collapse)


def seeding_report_names() -> tuple[str, ...]:
    return seeding.PAPER, seeding.PLAIN, seeding.RANDOM, seeding.SMALL_BATCHES


@pytest.mark.parametrize(("failures", "runs"), [(0, 2000), (1, 15), (7, 30), (15, 15)])
def test_intervals_are_those_of_wilson(failures, runs):
    z, p = stats.norm.ppf(0.975), failures / runs
    centre = (p + z**2 / (2 * runs)) / (1 + z**2 / runs)
    half = z / (1 + z**2 / runs) * np.sqrt(p * (1 - p) / runs + z**2 / (4 * runs**2))
    np.testing.assert_allclose(
        seeding.wilson(failures, runs), (centre - half, centre + half), atol=1e-12
    )


def test_pairs_are_counted_where_methods_differ():
    alone, other, p = failing(200, ssmc=0.05, plain=0.1).paired(seeding.PAPER, seeding.PLAIN)
    assert (alone, other) == (0, 10)
    assert p == pytest.approx(2 / 2**10)
    assert failing(200).paired(seeding.PAPER, seeding.PLAIN) == (0, 0, 1.0)


def test_the_printed_counts_decide_nothing():
    """Fisher's test by hand: the shares of tables at least as unlikely."""
    drawn = stats.hypergeom(30, 5, 15).pmf(range(6))
    assert seeding.printed_p(seeding.PAPER, seeding.RANDOM) == pytest.approx(
        drawn[drawn <= drawn[1] * (1 + 1e-9)].sum()
    )
    said = seeding_report.verdict(failing())[0]
    assert "too few to decide" in said
    assert "p = 0.60 and 0.33" in said


def test_the_verdict_on_seeding_follows_the_numbers():
    holds = " ".join(seeding_report.verdict(failing(ssmc=0.05, plain=0.1, random=0.3, small=0.2)))
    assert "SSMC 5.00% (4.13% to 6.04%)" in holds
    assert "fails less often than both holds here" in holds
    assert "fails 20.00%" in holds
    assert "and the claim does not hold here" in holds
    assert "greedy k-means++ 0.00% (0.00% to 0.19%): fewer, p < 0.0001" in holds
    assert "agrees with these rates" in holds
    assert "rough" not in holds
    same = " ".join(seeding_report.verdict(failing(100, ssmc=0.1, plain=0.1, random=0.3)))
    assert "than both is not decided by these data sets" in same
    assert "only 100 data sets are rough" in same
    worse = " ".join(seeding_report.verdict(failing(ssmc=0.9, plain=0.1, random=0.3)))
    assert "than both does not hold here" in worse
    assert "does not for SSMC with these rates" in worse


def test_seeding_numbers_are_all_in_the_file_and_finite():
    result = some_seeding()
    record = json.loads(seeding_report.as_json(result), parse_constant=pytest.fail)
    assert list(record["table"]) == list(result.inertia)
    for name, numbers in record["table"].items():
        assert numbers["failures"] == result.failed(name).sum()
        assert [numbers["rate"], *numbers["interval"]] == list(result.rate(name))
    assert record["printed"]["failures"] == {"random": 4, "plain k-means++": 3, "SSMC": 1}


def test_what_is_not_installed_has_a_row_that_says_so(monkeypatch):
    from io import StringIO

    from rich.console import Console

    result = failing()
    del result.inertia[seeding.BREATHING]
    paper = StringIO()
    Console(file=paper, width=80).print(seeding_report.table(result))
    (row,) = (line for line in paper.getvalue().splitlines() if seeding.BREATHING in line)
    assert "not installed" in row
    assert seeding.BREATHING not in json.loads(seeding_report.as_json(result))["table"]
    assert seeding.BREATHING not in " ".join(seeding_report.verdict(result))
    monkeypatch.setitem(__import__("sys").modules, "bkmeans", None)
    assert seeding.BREATHING not in seeding.methods()


@pytest.mark.parametrize("bad", [True, False])
def test_the_picture_of_seeding_stays_on_its_page(tmp_path, monkeypatch, bad):
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig

    def keep(self, *arguments, **options):
        drawn.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    result = some_seeding() if bad else replace(some_seeding(), bad=None)
    seeding_report.draw(result, tmp_path / "a.png")
    (picture,) = drawn
    picture.draw_without_rendering()
    page = picture.bbox
    for axes in picture.axes:
        title = axes._left_title.get_window_extent()
        assert page.x0 <= title.x0
        assert title.x1 <= page.x1
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    generations = some_seeding().collapse.generations
    for title, axes in zip(titles, picture.axes, strict=True):
        if "$t = " in title:
            time = int(title.split("= ")[1].split("$")[0])
            assert axes.get_xlabel() == f"{len(generations[time].positions)} different"
