"""Laws of models: what they draw, what they weigh, and the exact filter they come with."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import covey
from tests.laws import QUICK, brute_force, precision, z_threshold

NAN = np.nan
SIZES = [(1, 1), (2, 1), (3, 2), (2, 2)]
STEPS = 5


def parameters(d: int, p: int, singular: bool = False) -> dict[str, np.ndarray]:
    """A stable linear-Gaussian model in double precision, with every optional part."""
    rng = np.random.default_rng(10 * d + p)

    def covariance(size, rank):
        root = rng.normal(size=(size, rank))
        return root @ root.T + 0.2 * np.eye(size) * (rank == size)

    return {
        "transition_matrix": 0.6 * np.eye(d) + 0.2 * rng.normal(size=(d, d)),
        "transition_covariance": covariance(d, max(d - 1, 1) if singular else d),
        "observation_matrix": rng.normal(size=(p, d)),
        "observation_covariance": covariance(p, p),
        "initial_mean": rng.normal(size=d),
        "initial_covariance": covariance(d, d),
        "offset": rng.normal(size=d),
    }


def matrices(given):
    """In the order of the brute-force computation."""
    order = ("transition_matrix", "offset", "transition_covariance", "observation_matrix")
    order += ("observation_covariance", "initial_mean", "initial_covariance")
    return [given[name] for name in order]


def series(p: int) -> dict[str, np.ndarray]:
    """Observations (T, p): all there, wholly missing, partly missing, never there."""
    y = np.random.default_rng(p).normal(size=(STEPS, p))
    wholly, partly = y.copy(), y.copy()
    wholly[[0, 2, 3]] = NAN
    partly[[1, 2], 0] = NAN
    partly[3, -1] = NAN
    return {"complete": y, "wholly": wholly, "partly": partly, "never": np.full_like(y, NAN)}


@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "p"), SIZES)
def test_kalman_matches_the_joint_normal_law(d, p, dtype, singular):
    given = parameters(d, p, singular and d > 1)
    if singular and d == 1:
        given["transition_covariance"] = np.zeros((1, 1))
    cases = series(p)
    with precision(dtype):
        model = covey.models.LinearGaussian(**given)
        exact = jax.vmap(model.kalman)(jnp.asarray(np.stack([*cases.values()])))
        tolerance = {"rtol": 2e-4, "atol": 2e-4} if dtype == "float32" else {"rtol": 1e-9}
        exact = jax.tree.map(np.asarray, exact)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(exact)} == {dtype}
    for i, y in enumerate(cases.values()):
        log_evidence, mean, covariance = brute_force(y, *matrices(given))
        np.testing.assert_allclose(exact.log_evidence[i], log_evidence[-1], **tolerance)
        np.testing.assert_allclose(np.cumsum(exact.log_increments[i]), log_evidence, **tolerance)
        np.testing.assert_allclose(exact.mean[i], mean, **tolerance)
        np.testing.assert_allclose(exact.covariance[i], covariance, **tolerance)


def test_kalman_takes_every_form_of_observations():
    """A vector where p is 1, masked arrays, and no steps at all."""
    model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    y = np.array([0.5, NAN, -1.0])
    exact = model.kalman(y)
    np.testing.assert_array_equal(model.kalman(y[:, None]).mean, exact.mean)
    masked = np.ma.array([0.5, 7.0, -1.0], mask=[0, 1, 0])
    np.testing.assert_array_equal(model.kalman(masked).mean, exact.mean)
    assert exact.log_increments[1] == 0
    nothing = model.kalman(np.zeros(0))
    assert nothing.mean.shape == (0, 1)
    assert nothing.log_evidence == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"transition_matrix": np.ones((2, 3))}, r"transition_matrix must have shape \(2, 2\)"),
        ({"transition_covariance": np.eye(3)}, r"transition_covariance .* got \(3, 3\)"),
        ({"observation_matrix": np.ones((1, 3))}, r"observation_matrix must have shape \(1, 2\)"),
        ({"observation_covariance": np.eye(3)}, r"observation_covariance .* got \(3, 3\)"),
        ({"initial_mean": np.ones((2, 1))}, r"initial_mean must have shape \(2,\), got \(2, 1\)"),
        ({"initial_covariance": 1.0}, r"initial_covariance must have shape \(2, 2\), got \(1, 1\)"),
        ({"offset": 1.0}, r"offset must have shape \(2,\), got \(1,\)"),
        ({"transition_matrix": np.ones((1, 2, 2))}, "must be a matrix or a scalar"),
    ],
)
def test_linear_gaussian_refuses_parts_that_do_not_fit(change, text):
    with pytest.raises(ValueError, match=text):
        covey.models.LinearGaussian(**(parameters(2, 1) | change))


def test_linear_gaussian_refuses_observations_of_another_size():
    model = covey.models.LinearGaussian(**parameters(2, 2))
    with pytest.raises(ValueError, match=r"must have shape \(2,\), got \(3,\); .*one row for each"):
        model.kalman(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"must have shape \(2,\), got \(\)"):
        covey.run(jax.random.key(0), covey.bootstrap(model, 10), np.zeros(4))


@pytest.mark.parametrize(("d", "p"), SIZES)
def test_linear_gaussian_densities_match_scipy(d, p):
    given = parameters(d, p)
    rng = np.random.default_rng(0)
    before, x = rng.normal(size=(2, 7, d))
    normal = scipy.stats.multivariate_normal
    with precision("float64"):
        model = covey.models.LinearGaussian(**given)
        ahead = before @ given["transition_matrix"].T + given["offset"]
        expected = normal(np.zeros(d), given["transition_covariance"]).logpdf(x - ahead)
        got = model.log_transition(before, x, None)
        np.testing.assert_allclose(got, np.atleast_1d(expected), rtol=1e-9)
        for y in np.concatenate([*series(p).values()]):
            seen = ~np.isnan(y)
            expected = np.zeros(7)
            if seen.any():
                residual = y[seen] - x @ given["observation_matrix"][seen].T
                R = given["observation_covariance"][np.ix_(seen, seen)]
                expected = normal(np.zeros(seen.sum()), R).logpdf(residual)
            np.testing.assert_allclose(model.log_likelihood(x, y), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("d", "p"), SIZES)
def test_optimal_proposal_weighs_all_moves_alike(d, p):
    """``p(y | x) p(x | x_prev) / q(x | x_prev, y) = p(y | x_prev)``, whatever x."""
    rng = np.random.default_rng(1)
    before, x = rng.normal(size=(2, 7, d))
    with precision("float64"):
        model = covey.models.LinearGaussian(**parameters(d, p))
        proposal = model.optimal_proposal()
        for y in np.concatenate([*series(p).values()]):
            weight = model.log_likelihood(x, y) + model.log_transition(before, x, y)
            weight -= proposal.log_density(before, x, y)
            ahead = model.predictive_log_likelihood(before, y)
            np.testing.assert_allclose(weight, ahead, rtol=1e-9, atol=1e-9)


def drawn_moments_agree(x, mean, covariance):
    """Means and second moments of the rows of x, by z; chance of a false alarm 1e-4."""
    x = np.asarray(x, float)
    deviation = x - mean
    products = deviation[:, :, None] * deviation[:, None, :]
    d = x.shape[1]
    limit = z_threshold(d + d * d)
    for sample, expected in ((deviation, 0), (products, covariance)):
        z = (sample.mean(0) - expected) / (sample.std(0) / np.sqrt(len(x)) + 1e-7)
        assert abs(z).max() < limit


@pytest.mark.parametrize("singular", [False, True])
@pytest.mark.parametrize(("d", "p"), [(1, 1), (3, 2)])
def test_linear_gaussian_draws_from_its_laws(d, p, singular):
    given = parameters(d, p, singular and d > 1)
    model = covey.models.LinearGaussian(**given)
    keys = jax.random.split(jax.random.key(d), 4)
    x0 = model.initial(keys[0], 20_000)
    drawn_moments_agree(x0, given["initial_mean"], given["initial_covariance"])
    before = np.ones((20_000, d), np.float32)
    ahead = given["transition_matrix"].sum(1) + given["offset"]
    moved = model.transition(keys[1], before, None)
    drawn_moments_agree(moved, ahead, given["transition_covariance"])
    seen = model.observe(keys[2], before, None)
    R = given["observation_covariance"]
    drawn_moments_agree(seen, given["observation_matrix"].sum(1), R)
    if not singular:
        y = np.full(p, 0.7)
        sample = model.optimal_proposal().sample(keys[3], before, y)
        Q, H = given["transition_covariance"], given["observation_matrix"]
        gain = Q @ H.T @ np.linalg.inv(H @ Q @ H.T + R)
        drawn_moments_agree(sample, ahead + gain @ (y - H @ ahead), Q - gain @ H @ Q)


def test_volatility_densities_match_scipy():
    rng = np.random.default_rng(2)
    before, x = rng.normal(size=(2, 50, 1))
    with precision("float64"):
        model = covey.models.StochasticVolatility(0.7, 0.4, 1.3)
        for y in (0.0, -0.3, 2.5):
            expected = scipy.stats.norm(0, 1.3 * np.exp(x[:, 0] / 2)).logpdf(y)
            np.testing.assert_allclose(model.log_likelihood(x, y), expected, rtol=1e-12)
        expected = scipy.stats.norm(0.7 * before, np.sqrt(0.4)).logpdf(x)[:, 0]
        np.testing.assert_allclose(model.log_transition(before, x, 0.0), expected, rtol=1e-12)


def test_volatility_is_stationary():
    """States have one law at all times, successive ones correlate by phi; false alarms 1e-4."""
    model = covey.models.StochasticVolatility()
    keys = jax.random.split(jax.random.key(0), 20_000)
    simulate = jax.vmap(lambda key: covey.simulate(key, model, 4))
    x, y = jax.jit(simulate, compiler_options=QUICK)(keys)
    x, y = np.asarray(x[..., 0], float), np.asarray(y, float)
    assert float(model.stationary_variance()) == pytest.approx(0.9 / (1 - 0.8**2))
    standard = x / np.sqrt(0.9 / (1 - 0.8**2))
    shocks = (standard[:, 1:] - 0.8 * standard[:, :-1]) / 0.6
    noise = y / (0.7 * np.exp(x / 2))
    for z in (standard, shocks, noise):
        for moment, expected, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
            error = (z**moment).mean(0) - expected
            assert abs(error).max() < z_threshold(33) * np.sqrt(variance / len(z)), moment


def test_volatility_parameters_have_ranges():
    for name, bad, text in (
        ("phi", 1.0, r"phi must lie in \(-1, 1\), got 1.0"),
        ("phi", -1.5, "phi must lie"),
        ("sigma2", 0.0, "sigma2 must be positive, got 0.0"),
        ("beta", np.float32(-0.7), "beta must be positive"),
    ):
        with pytest.raises(ValueError, match=text):
            covey.models.StochasticVolatility(**{name: bad})


def drift(key, x, obs):
    return x + obs["velocity"] + 0.1 * jax.random.normal(key, x.shape)


GUIDED_WALK = covey.StateSpaceModel(
    initial=lambda key, n: jnp.zeros((n, 1)),
    transition=drift,
    log_likelihood=lambda x, obs: -0.5 * (obs["height"] - x[:, 0]) ** 2,
    observe=lambda key, x, obs: {
        "velocity": jnp.full(len(x), obs["velocity"]),
        "height": x[:, 0] + jax.random.normal(key, (len(x),)),
    },
)


def test_simulate_fills_in_the_records():
    controls = {"velocity": np.arange(20.0)}
    x, records = covey.simulate(jax.random.key(0), GUIDED_WALK, 20, controls)
    np.testing.assert_array_equal(records["velocity"], controls["velocity"])
    assert x.shape == (20, 1)
    assert records["height"].shape == (20,)
    np.testing.assert_allclose(x[:, 0], np.cumsum(np.arange(20.0)), atol=3)
    again = covey.simulate(jax.random.key(0), GUIDED_WALK, 20, controls)
    jax.tree.map(np.testing.assert_array_equal, (x, records), again)
    other, _ = covey.simulate(jax.random.key(1), GUIDED_WALK, 20, controls)
    assert (other != x).any()


def test_simulate_needs_observe():
    blind = covey.StateSpaceModel(
        GUIDED_WALK.initial, GUIDED_WALK.transition, GUIDED_WALK.log_likelihood
    )
    with pytest.raises(ValueError, match=r"needs a model with observe\(key, x, obs\)"):
        covey.simulate(jax.random.key(0), blind, 3)


@pytest.mark.parametrize("name", ["initial", "transition", "log_likelihood", "features", "observe"])
def test_parts_of_a_model_must_be_functions(name):
    parts = {"initial": len, "transition": len, "log_likelihood": len, name: 3}
    with pytest.raises(TypeError, match=f"{name} must be a function, got 3"):
        covey.StateSpaceModel(**parts)


@pytest.mark.parametrize(
    ("measurement", "obs", "absent"),
    [
        (None, NAN, True),
        (None, 0.0, False),
        (None, [NAN, NAN], True),
        (None, [NAN, 1.0], False),
        (None, 3, False),
        (None, {"height": NAN, "count": 1}, False),
        (None, {"height": NAN, "dt": 1.0}, False),
        (lambda obs: obs["height"], {"height": NAN, "dt": 1.0}, True),
        (lambda obs: obs["height"], {"height": 1.0, "dt": NAN}, False),
        (lambda obs: (obs["a"], obs["b"]), {"a": NAN, "b": [NAN, NAN], "dt": 1.0}, True),
        (lambda obs: (obs["a"], obs["b"]), {"a": NAN, "b": [NAN, 0.0], "dt": 1.0}, False),
    ],
)
def test_a_step_is_absent_where_all_that_is_measured_is_nan(measurement, obs, absent):
    model = covey.StateSpaceModel(len, len, len, measurement=measurement)
    record = jax.tree.map(jnp.asarray, obs, is_leaf=lambda part: isinstance(part, list))
    assert bool(model.absent(record)) is absent


def host_model(given, **changes):
    """The linear-Gaussian model in NumPy, its state in two parts."""
    roots = {name: np.linalg.cholesky(given[name]) for name in given if "covariance" in name}
    normal = scipy.stats.multivariate_normal(np.zeros(2), given["observation_covariance"])

    def initial(rng, n):
        x = given["initial_mean"] + rng.normal(size=(n, 2)) @ roots["initial_covariance"].T
        return {"first": x[:, 0], "rest": x[:, 1:]}

    def transition(rng, x, obs):
        x = np.column_stack([x["first"], x["rest"]])
        noise = rng.normal(size=x.shape) @ roots["transition_covariance"].T
        x = x @ given["transition_matrix"].T + given["offset"] + noise
        return {"first": x[:, 0], "rest": x[:, 1:]}

    def log_likelihood(x, obs):
        x = np.column_stack([x["first"], x["rest"]])
        if np.isnan(obs).all():
            return np.full(len(x), NAN)  # an absent step must not look at it
        return normal.logpdf(obs - x @ given["observation_matrix"].T)

    parts = {"initial": initial, "transition": transition, "log_likelihood": log_likelihood}
    return covey.from_numpy(**(parts | changes))


@cache
def host_histories(dtype):
    y = series(2)["wholly"]
    with precision(dtype):
        filter = covey.bootstrap(host_model(parameters(2, 2)), 400)
        run = jax.jit(jax.vmap(lambda key: covey.run(key, filter, y)))
        return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(0), 200)))


def test_numpy_models_match_kalman():
    """``Z_t`` and ``Z_t`` times the mean are unbiased at each step; false alarms 1e-4."""
    exact = brute_force(series(2)["wholly"], *matrices(parameters(2, 2)))
    steps = host_histories("float64").steps
    ratio = np.exp(steps.log_evidence - exact[0])
    means = np.concatenate([steps.mean["first"][..., None], steps.mean["rest"]], -1)
    sample = np.concatenate([ratio[..., None], ratio[..., None] * means], -1)
    expected = np.concatenate([np.ones((STEPS, 1)), exact[1]], -1)
    z = (sample.mean(0) - expected) / (sample.std(0) / np.sqrt(len(sample)) + 1e-12)
    assert abs(z).max() < z_threshold(z.size)


def test_numpy_models_work_under_vmap_and_jit():
    many = host_histories("float64")
    y = series(2)["wholly"]
    with precision("float64"):
        filter = covey.bootstrap(host_model(parameters(2, 2)), 400)
        for i, key in enumerate(jax.random.split(jax.random.key(0), 200)[:2]):
            alone = covey.run(key, filter, y)
            mine = jax.tree.map(lambda leaf, i=i: leaf[i], many)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), alone, mine)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_models_are_rounded_to_the_float_mode(dtype):
    given = parameters(2, 2)
    with precision(dtype):
        filter = covey.bootstrap(host_model(given), 50)
        history = covey.run(jax.random.key(0), filter, series(2)["complete"])
    floats = [history.final.x["first"], history.final.x["rest"], history.ess, history.log_evidence]
    assert {leaf.dtype.name for leaf in floats} == {dtype}


def test_numpy_functions_may_change_their_arguments():
    def transition(rng, x, obs):
        x += 1
        return x

    walk = covey.from_numpy(
        lambda rng, n: np.zeros((n, 1)), transition, lambda x, obs: -((x[:, 0] - obs) ** 2)
    )
    history = covey.run(jax.random.key(0), covey.bootstrap(walk, 5), np.arange(1.0, 4.0))
    np.testing.assert_allclose(history.mean[:, 0], [1, 2, 3], rtol=1e-6)
    np.testing.assert_array_equal(history.log_increments, 0)


def failing(*args):
    raise KeyError("no such tile")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"transition": failing}, "transition of the model failed: KeyError('no such tile')"),
        ({"log_likelihood": failing}, "log_likelihood of the model failed: KeyError("),
        (
            {"log_likelihood": lambda x, obs: x["rest"]},
            "log_likelihood must return shape (9,), got (9, 1); return a number for each particle",
        ),
        ({"log_likelihood": lambda x, obs: None}, "must return shape (9,), got None"),
        ({"log_likelihood": lambda x, obs: x["first"] > 0}, "log_likelihood must return real"),
        (
            {"transition": lambda rng, x, obs: x | {"first": x["rest"]}},
            "transition must return shape {'first': (9,), 'rest': (9, 1)}, got "
            "{'first': (9, 1), 'rest': (9, 1)}; return states like the old",
        ),
        ({"transition": lambda rng, x, obs: x["rest"]}, "transition must return shape {"),
    ],
)
def test_failing_numpy_functions_are_named(change, text):
    filter = covey.bootstrap(host_model(parameters(2, 2), **change), 9)
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        jax.block_until_ready(covey.run(jax.random.key(0), filter, np.zeros((2, 2))))
    assert text in str(error.value)


def test_numpy_models_never_cut_off_decimals():
    """States that began as integers stay integers, or an error says so."""
    walk = covey.from_numpy(
        lambda rng, n: np.zeros(n, int),
        lambda rng, x, obs: x + rng.normal(size=x.shape),
        lambda x, obs: -((x - obs) ** 2.0),
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"transition must return int32 .*float64"):
        covey.run(jax.random.key(0), covey.bootstrap(walk, 5), np.arange(3.0))


def test_numpy_models_in_a_guided_filter():
    """``log_transition`` may be the host's too: the prior as proposal is the bootstrap filter."""
    given = parameters(2, 2)
    normal = scipy.stats.multivariate_normal(np.zeros(2), given["transition_covariance"])

    def log_transition(x_prev, x, obs):
        x_prev, x = (np.column_stack([part["first"], part["rest"]]) for part in (x_prev, x))
        return normal.logpdf(x - x_prev @ given["transition_matrix"].T - given["offset"])

    model = host_model(given, log_transition=log_transition)
    prior = covey.Proposal(model.transition, model.log_transition)
    y, key = series(2)["wholly"], jax.random.key(0)
    guided = covey.run(key, covey.guided(model, prior, 100), y)
    plain = covey.run(key, covey.bootstrap(model, 100), y)
    np.testing.assert_allclose(guided.log_increments, plain.log_increments, rtol=1e-4, atol=1e-5)
