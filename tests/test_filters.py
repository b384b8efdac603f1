"""Laws of every filter: what it estimates, what a key decides, and how it fails."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey.particles import ALL_ZERO, FINE, INFINITE, NOT_A_NUMBER, STATE_NOT_FINITE
from tests.laws import FILTERS, QUICK, brute_force, precision, z_threshold

NAN, SLOW = np.nan, pytest.mark.slow
DIFFERENT = (
    "systematic",
    "when due",
    "never",
    "guided, resampled at every step",
    "auxiliary",
    "cluster filter",
    "starting large",
)
"""Filters that cover all lines of code; with the others the laws take long."""
ALL_FILTERS = [pytest.param(name, marks=[] if name in DIFFERENT else SLOW) for name in FILTERS]

GIVEN = {
    "transition_matrix": np.array([[0.8, 0.2], [-0.1, 0.7]]),
    "transition_covariance": np.array([[0.5, 0.1], [0.1, 0.3]]),
    "observation_matrix": np.array([[1.0, 0.3], [0.0, 1.0]]),
    "observation_covariance": np.array([[2.0, 0.5], [0.5, 2.25]]),
    "initial_mean": np.array([0.5, -0.5]),
    "initial_covariance": np.array([[1.0, 0.3], [0.3, 0.6]]),
    "offset": np.array([0.2, -0.1]),
}
# With sharper observations the weights of an auxiliary filter that guesses by a trial move have
# tails so heavy (kurtosis 8000) that thousands of runs do not make a mean normal, and z means less.
OBS = np.array([[1.2, -1.0], [NAN, 0.7], [NAN, NAN], [900.0, -900.0], [-0.6, 1.1], [0.9, NAN]])
MISSING = np.array([False, False, False, True, False, False])
STEPS, RUNS, N = len(OBS), 4000, 24
CROWDED = (("cluster filter", 2), ("guided", 1))


def exact_laws(y=OBS, missing=MISSING):
    """``log p(y_1:t)``, and means and covariances of ``p(x_t | y_1:t)``."""
    order = ("transition_matrix", "offset", "transition_covariance", "observation_matrix")
    order += ("observation_covariance", "initial_mean", "initial_covariance")
    seen = np.where(missing[:, None], NAN, y)
    return brute_force(seen, *(GIVEN[name] for name in order))


def quickly(function):
    """Compile for small shapes."""
    return jax.jit(function, compiler_options=QUICK)


@cache
def histories(name, dtype="float32", n=N):
    """Many short runs at once: a single compilation of each filter serves all laws."""
    with precision(dtype):
        filter = FILTERS[name](covey.models.LinearGaussian(**GIVEN), n)

        def one(key):
            return covey.run(key, filter, OBS, missing=MISSING, save=total_weight)

        run = quickly(jax.vmap(one))
        return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(7), RUNS)))


def total_weight(particles):
    return particles.weights.sum()


def unbiased(steps, exact):
    """z of ``Z_t``, ``Z_t`` times mean and ``Z_t`` times second moment, each unbiased at all t."""
    log_evidence, mean, covariance = exact
    mean_of, variance = (np.asarray(leaf, float) for leaf in (steps.mean, steps.variance))
    ratio = np.exp(np.asarray(steps.log_evidence, float) - log_evidence)[..., None]
    sample = np.concatenate([ratio, ratio * mean_of, ratio * (variance + mean_of**2)], -1)
    squares = np.diagonal(covariance, axis1=1, axis2=2) + mean**2
    expected = np.concatenate([np.ones((len(mean), 1)), mean, squares], 1)
    return (sample.mean(0) - expected) / (sample.std(0) / np.sqrt(len(sample)) + 1e-6)


@pytest.mark.parametrize("name", ALL_FILTERS)
def test_evidence_and_moments_are_unbiased(name):
    """Whatever the resampling, at whole, partial and masked gaps; chance of a false alarm 1e-4."""
    z = unbiased(histories(name).steps, exact_laws())
    assert abs(z).max() < z_threshold(z.size)


@pytest.mark.parametrize("name", ["when due", pytest.param("auxiliary", marks=SLOW)])
def test_evidence_and_moments_are_unbiased_in_double_precision(name):
    """Chance of a false alarm 1e-4."""
    z = unbiased(histories(name, "float64").steps, exact_laws())
    assert abs(z).max() < z_threshold(z.size)


@pytest.mark.parametrize(
    ("name", "n"),
    [("systematic", 1), *(pytest.param(*case, marks=SLOW) for case in CROWDED)],
)
def test_few_particles_are_unbiased_too(name, n):
    """A single particle, and fewer particles than clusters; chance of a false alarm 1e-4."""
    steps = histories(name, n=n).steps
    z = unbiased(steps, exact_laws())[:3]  # later the tail is too heavy to tell
    assert abs(z).max() < z_threshold(z.size)
    if n == 1:
        np.testing.assert_array_equal(steps.variance, 0)
        np.testing.assert_array_equal(steps.ess, 1)


@pytest.mark.parametrize("name", ALL_FILTERS)
def test_every_step_is_sound(name):
    """No failures, no evidence at gaps, weights that add up to one, increments that add up."""
    history = histories(name)
    np.testing.assert_array_equal(history.status, FINE)
    gaps = np.isnan(OBS).all(1) | MISSING
    np.testing.assert_array_equal(history.log_increments[:, gaps], 0)
    assert (history.log_increments[:, ~gaps] != 0).all()
    total = history.log_increments.astype(float).sum(1)
    np.testing.assert_allclose(total, history.log_evidence, rtol=1e-5)
    np.testing.assert_array_equal(history.steps.log_evidence[:, -1], history.log_evidence)
    np.testing.assert_allclose(history.kept, 1, rtol=1e-5)
    assert ((history.ess >= 0.9999) & (history.ess <= 2 * N + 12 + 1e-3)).all()
    np.testing.assert_array_equal(history.steps.step, np.tile(np.arange(1, STEPS + 1), (RUNS, 1)))


PATTERNS = {
    "systematic": lambda ess: np.ones_like(ess, bool),
    "never": lambda ess: np.zeros_like(ess, bool),
    "when due": lambda ess: ess < N / 2,
    "cluster filter": lambda ess: ess < N / 2,
    "guided, resampled at every step": lambda ess: np.ones_like(ess, bool),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_resampling_happens_when_it_is_due(name):
    """By the effective sample size of the step before, and never at the start with equal weights.

    This also says that the laws above met every pattern.
    """
    history = histories(name)
    before = np.concatenate([np.full((RUNS, 1), N), history.ess[:, :-1]], 1)
    due = PATTERNS[name](before)
    np.testing.assert_array_equal(history.resampled, due)
    np.testing.assert_array_equal(history.unique[~due], N)
    clustered = due if name == "cluster filter" else np.zeros_like(due)
    np.testing.assert_array_equal(np.isnan(history.cluster_kl), ~clustered)
    if name in ("when due", "cluster filter"):
        assert 0.05 < due[:, 1:].mean() < 0.95


def test_more_particles_at_the_start_are_held_and_then_dropped():
    """``n_initial`` particles for ``hold`` steps, then n of them, resampled whether due or not."""
    first = covey.when_ess_below(0, lambda key, particles, n: particles.select(jnp.arange(n)))
    still = covey.StateSpaceModel(
        lambda key, n: jnp.zeros(n), lambda key, x, obs: x, lambda x, obs: x + obs
    )
    for hold, steps in ((0, 2), (2, 4), (9, 2)):
        filter = covey.bootstrap(still, 5, resample=first, n_initial=11, hold=hold)
        history = covey.run(jax.random.key(0), filter, np.zeros(steps), save="particles")
        held = min(hold, steps)
        numbers = [history.particles(t).n for t in range(steps + 1)]
        assert numbers == [11] * (held + 1) + [5] * (steps - held)
        assert numbers[1:] == [filter.particles_at(t) for t in range(1, steps + 1)]
        expected = [t == hold for t in range(steps)]
        np.testing.assert_array_equal(history.resampled, expected)
        assert history.final.n == numbers[-1]


def test_starting_large_switches_in_the_laws_above():
    resampled = histories("starting large").resampled
    assert resampled[:, 2].all()
    assert not resampled[:, 0].any()
    assert (histories("starting large").unique[:, 2] <= N).all()


def path_log_likelihoods(history, model):
    """``log p(y_t | x_t^i)`` of all particles at all steps (T, n)."""
    steps = range(1, STEPS + 1)
    x = np.stack([history.particles(t).x for t in steps])
    seen = np.where(MISSING[:, None], NAN, OBS)
    return np.stack([model.log_likelihood(*pair) for pair in zip(x, seen, strict=True)])


@pytest.mark.parametrize("name", ["when due", pytest.param("never", marks=SLOW)])
def test_weights_are_those_of_the_formula(name):
    """``W_t = W_{t-1} p(y_t | x_t)``, with equal ``W_{t-1}`` after resampling, and their sums."""
    with precision("float64"):
        model = covey.models.LinearGaussian(**GIVEN)
        filter, key = FILTERS[name](model, N), jax.random.key(3)
        run = quickly(lambda key: covey.run(key, filter, OBS, missing=MISSING, save="particles"))
        history = run(key)
        log_likelihoods = path_log_likelihoods(history, model)
    weights = np.full(N, 1 / N)
    for t in range(STEPS):
        particles = history.particles(t + 1)
        if history.resampled[t]:
            weights = np.full(N, 1 / N)
        product = weights * np.exp(log_likelihoods[t])
        np.testing.assert_allclose(history.log_increments[t], np.log(product.sum()), atol=1e-12)
        weights = product / product.sum()
        np.testing.assert_allclose(particles.weights, weights, rtol=1e-9)
        np.testing.assert_allclose(history.ess[t], 1 / (weights**2).sum(), rtol=1e-9)
        mean = weights @ np.asarray(particles.x)
        np.testing.assert_allclose(history.mean[t], mean, rtol=1e-9)
        variance = weights @ (np.asarray(particles.x) - mean) ** 2
        np.testing.assert_allclose(history.variance[t], variance, rtol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "when due",
        *(pytest.param(n, marks=SLOW) for n in ("cluster filter", "guided", "auxiliary")),
    ],
)
def test_many_particles_match_kalman(name):
    """Evidence, means and variances of single runs, six standard errors off at most."""
    filter = FILTERS[name](covey.models.LinearGaussian(**GIVEN), 20_000)
    history = quickly(lambda key: covey.run(key, filter, OBS, missing=MISSING))(jax.random.key(1))
    log_evidence, mean, covariance = exact_laws()
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    ess = np.minimum(history.ess, np.asarray(history.unique))[:, None]
    assert (ess > 1000).all()
    assert (abs(history.mean - mean) < 6 * np.sqrt(2 * variance / ess)).all()
    assert (abs(history.variance - variance) < 6 * np.sqrt(4 / ess) * variance).all()
    assert abs(history.steps.log_evidence - log_evidence).max() < 6 * np.sqrt(3 * STEPS / 20_000)


def uneven_drift(key, x, obs):
    noise = jax.random.normal(key, x.shape)
    return x + obs["velocity"] * obs["dt"] + jnp.sqrt(0.4 * obs["dt"]) * noise


DRIFT = covey.StateSpaceModel(
    initial=lambda key, n: jax.random.normal(key, (n,)),
    transition=uneven_drift,
    log_likelihood=lambda x, obs: jax.scipy.stats.norm.logpdf(obs["height"], x, 0.9),
    measurement=lambda obs: obs["height"],
)
RECORDS = {
    "velocity": np.array([0.5, -1.0, 0.0, 2.0]),
    "dt": np.array([1.0, 0.25, 3.0, 0.5]),
    "height": np.array([0.9, -0.4, NAN, 2.2]),
}


@pytest.mark.parametrize("name", ["when due", pytest.param("auxiliary", marks=SLOW)])
def test_controls_and_time_steps_drive_the_motion(name):
    """Records with irregular steps and a gap, states (n,), against the exact law; alarms 1e-4."""
    dt, ones = RECORDS["dt"], np.ones((1, 1))
    Q, u = 0.4 * dt[:, None, None], (RECORDS["velocity"] * dt)[:, None]
    y = RECORDS["height"][:, None]
    exact = brute_force(y, ones, u, Q, ones, 0.81 * ones, np.zeros(1), ones)
    filter = FILTERS[name](DRIFT, N)
    run = quickly(jax.vmap(lambda key: covey.run(key, filter, RECORDS)))
    steps = run(jax.random.split(jax.random.key(0), RUNS)).steps
    assert steps.mean.shape == (RUNS, 4)
    steps = replace(steps, mean=steps.mean[..., None], variance=steps.variance[..., None])
    z = unbiased(steps, exact)
    assert abs(z).max() < z_threshold(z.size)
    np.testing.assert_array_equal(steps.log_increment[:, 2], 0)


def in_parts(**options):
    """The drift again, with a heading in radians and a count beside it."""

    def initial(key, n):
        return {
            "place": DRIFT.initial(key, n),
            "turn": jnp.zeros((n, 1)),
            "count": jnp.zeros(n, int),
        }

    def transition(key, x, obs):
        moved = DRIFT.transition(key, x["place"], obs)
        return {"place": moved, "turn": (x["turn"] + 3) % 6, "count": x["count"] + 2}

    def log_likelihood(x, obs):
        return DRIFT.log_likelihood(x["place"], obs)

    return covey.StateSpaceModel(
        initial, transition, log_likelihood, measurement=DRIFT.measurement, **options
    )


def test_states_in_parts_are_filtered_like_arrays():
    """Same key, same numbers, and every part keeps its type."""
    key = jax.random.key(5)
    plain = covey.run(key, FILTERS["when due"](DRIFT, N), RECORDS)
    parts = covey.run(key, FILTERS["when due"](in_parts(), N), RECORDS)
    np.testing.assert_allclose(parts.log_increments, plain.log_increments, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts.mean["place"], plain.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(parts.mean["count"], [2, 4, 6, 8], rtol=1e-5)
    np.testing.assert_allclose(parts.mean["turn"][:, 0], [3, 0, 3, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(parts.final.x["count"], 8)
    assert parts.final.x["count"].dtype == jnp.zeros(0, int).dtype
    assert parts.final.x["turn"].shape == (N, 1)


def test_clusterers_see_the_features():
    """And nothing else: clusters by the sign of a feature keep the mass of each sign."""
    shapes = []

    def by_sign(key, features, log_w):
        shapes.append((features.shape, log_w.shape))
        return (features[:, 1] > 0).astype(int)

    def features(x):
        return jnp.stack([jnp.ones_like(x["place"]), x["place"]], 1)

    resample = covey.clustered(by_sign, clusters=2, allocation="equal")
    filter = covey.bootstrap(in_parts(features=features), N, resample=resample)
    history = covey.run(jax.random.key(2), filter, RECORDS, save="particles")
    assert set(shapes) == {((N, 2), (N,))}
    for step in range(1, 5):
        before, after = history.particles(step - 1), history.particles(step)
        parents = np.asarray(before.x["place"])[after.ancestors] > 0
        assert parents.sum() == N / 2  # equal shares, whatever the masses


@pytest.mark.parametrize(
    "name",
    ["when due", *(pytest.param(n, marks=SLOW) for n in DIFFERENT if n != "when due")],
)
def test_same_key_same_history_with_and_without_vmap_and_jit(name):
    """Alone, again, under jit and as one of many; to rounding where the compiler fuses anew."""
    filter = FILTERS[name](covey.models.LinearGaussian(**GIVEN), N)
    keys = jax.random.split(jax.random.key(7), RUNS)
    alone = covey.run(keys[11], filter, OBS, missing=MISSING, save=total_weight)
    again = covey.run(keys[11], filter, OBS, missing=MISSING, save=total_weight)
    jax.tree.map(np.testing.assert_array_equal, alone, again)
    run = quickly(lambda key: covey.run(key, filter, OBS, missing=MISSING, save=total_weight))
    many = histories(name)
    one_of_many = jax.tree.map(lambda leaf: leaf[11], many)
    for other in (run(keys[11]), one_of_many):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), alone, other
        )
    assert len(np.unique(many.log_evidence)) > 0.9 * RUNS
    assert len(np.unique(many.final.x[..., 0])) > 0.9 * RUNS * N


def test_models_may_be_traced():
    """vmap over parameters gives what each model gives alone, not that of another."""
    y = np.array([0.3, -1.2, 0.8])

    def log_evidence(key, phi):
        model = covey.models.StochasticVolatility(phi=phi)
        return covey.run(key, covey.bootstrap(model, 20), y).log_evidence

    key, values = jax.random.key(0), jnp.array([0.2, 0.9])
    many = quickly(jax.vmap(log_evidence, (None, 0)))(key, values)
    assert many[0] != many[1]
    for phi, expected in zip((0.2, 0.9), many, strict=True):
        np.testing.assert_allclose(log_evidence(key, phi), expected, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_have_the_precision_of_the_state(dtype):
    history = histories("when due", dtype)
    steps, final = history.steps, history.final
    floats = [final.x, final.log_w, final.ess, final.log_evidence, final.cluster_kl]
    floats += [steps.mean, steps.variance, steps.ess, steps.log_evidence, steps.log_increment]
    assert {leaf.dtype.name for leaf in floats} == {dtype}
    whole = [steps.step, steps.unique, steps.status, final.ancestors]
    assert {leaf.dtype.name for leaf in whole} == {"int32"}
    assert steps.resampled.dtype == bool


def test_double_precision_is_kept_to_the_end():
    """The weights of the last step differ from single precision: nothing passes through it."""
    with precision("float64"):
        state = covey.bootstrap(covey.models.StochasticVolatility(), 50)
        history = covey.run(jax.random.key(0), state, np.array([0.1, 0.2]))
        log_w = np.asarray(history.final.log_w)
    assert (log_w.astype(np.float32) != log_w).mean() > 0.9


def test_import_changes_no_setting():
    code = """if True:
        import os
        for name in list(os.environ):
            if name.startswith(("JAX_", "XLA_")):
                del os.environ[name]
        import jax
        environment = dict(os.environ)
        before = dict(jax.config.values)
        import covey
        assert dict(jax.config.values) == before
        assert dict(os.environ) == environment
        assert not jax.config.jax_enable_x64
        model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
        covey.bootstrap(model, 10)
        assert dict(jax.config.values) == before
        print(jax.numpy.zeros(1).dtype)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "float32\n"
    assert done.stderr == ""


FAULTS = {
    "all zero": (ALL_ZERO, "all 8 particles have zero likelihood", "use more particles"),
    "some NaN": (NOT_A_NUMBER, "some of the 8 particles are NaN", "Return -inf where"),
    "all NaN": (NOT_A_NUMBER, "some of the 8 particles are NaN", "Return -inf where"),
    "one +inf": (INFINITE, "some of the 8 particles are infinite", "likelihood must be bounded"),
    "all +inf": (INFINITE, "because log_likelihood .* returned [+]inf", "add noise to an exact"),
    "states NaN": (
        STATE_NOT_FINITE,
        "states of some of the 8 particles are NaN",
        "Look in initial",
    ),
    "all states NaN": (STATE_NOT_FINITE, "infinite after the transition", "NaN controls"),
    "a state inf": (STATE_NOT_FINITE, "infinite after the transition", "for overflow"),
    "state NaN, others zero": (STATE_NOT_FINITE, "after the transition", "overflow, division"),
    "state NaN, another +inf": (STATE_NOT_FINITE, "after the transition", "overflow, division"),
}
"""Kinds of fault: the status, and what the error says of cause and remedy."""
CODES = {name: code for code, name in enumerate(FAULTS, 1)}


def is_any(obs, *names):
    return jnp.isin(obs["fault"], jnp.array([CODES[name] for name in names]))


def faulty_transition(key, x, obs):
    first = jnp.arange(len(x)) == 0
    x = 0.9 * x + jax.random.normal(key, x.shape)
    x = jnp.where(is_any(obs, "all states NaN"), NAN, x)
    with_one = "states NaN", "state NaN, others zero", "state NaN, another +inf"
    x = jnp.where(is_any(obs, *with_one) & first, NAN, x)
    return jnp.where(is_any(obs, "a state inf") & (jnp.arange(len(x)) == len(x) - 1), jnp.inf, x)


def faulty_likelihood(x, obs):
    last = jnp.arange(len(x)) == len(x) - 1
    value = -0.5 * (x - obs["y"]) ** 2
    zero = is_any(obs, "all zero", "state NaN, others zero")
    infinite = is_any(obs, "all +inf") | (is_any(obs, "one +inf", "state NaN, another +inf") & last)
    nan = is_any(obs, "all NaN") | (is_any(obs, "some NaN") & last)
    return jnp.select([zero, infinite, nan], [-jnp.inf, jnp.inf, NAN], value)


def normal_density(x_prev, x, obs):
    return -0.5 * (x - 0.9 * x_prev) ** 2


FAULTY = covey.StateSpaceModel(
    lambda key, n: jax.random.normal(key, (n,)),
    faulty_transition,
    faulty_likelihood,
    log_transition=normal_density,
    measurement=lambda obs: obs["y"],
)
PRIOR = covey.Proposal(faulty_transition, normal_density)
never = covey.when_ess_below(0, covey.systematic)
FAULTY_FILTERS = {
    "bootstrap": covey.bootstrap(FAULTY, 8),
    "never": covey.bootstrap(FAULTY, 8, resample=never),
    "guided": covey.guided(FAULTY, PRIOR, 8),
    "auxiliary": covey.auxiliary(FAULTY, 8),
    "cluster filter": covey.cluster_filter(FAULTY, 8, k=3, threshold=1),
}


def faulty_records(fault, step):
    """Five records of which one has the fault."""
    codes = np.zeros(5, int)
    codes[step - 1] = CODES[fault]
    return {"y": np.array([0.1, -0.4, 0.8, 0.3, 0.0]), "fault": codes}


@cache
def flagging(name):
    """All faults at the first step, in the middle and at the last, in one compilation."""
    records = [faulty_records(fault, step) for fault in FAULTS for step in (1, 3, 5)]
    records = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
    filter = FAULTY_FILTERS[name]

    def one(obs):
        return covey.run(jax.random.key(4), filter, obs, save="particles", on_failure="flag")

    return jax.tree.map(np.asarray, quickly(jax.vmap(one))(records))


@pytest.mark.parametrize("name", FAULTY_FILTERS)
def test_flagged_failures_are_survived(name):
    """Only the failing step is marked, everything stays finite, and the weights add up to one."""
    history = flagging(name)
    expected = np.zeros((len(FAULTS), 3, 5), int)
    for i, (status, *_) in enumerate(FAULTS.values()):
        for j, step in enumerate((1, 3, 5)):
            expected[i, j, step - 1] = status
    np.testing.assert_array_equal(history.status.reshape(expected.shape), expected)
    steps = history.steps
    for leaf in (steps.mean, steps.variance, steps.ess, steps.log_evidence, history.final.x):
        assert np.isfinite(leaf).all()
    (block,) = history.saved
    np.testing.assert_allclose(np.exp(block["log_w"]).sum(-1), 1, rtol=1e-5)
    assert (steps.ess > 0.999).all()


def test_flagged_observations_do_not_count():
    """Zero everywhere and +inf leave weights and evidence, NaN costs those that have it theirs."""
    history = flagging("never")
    (block,) = history.saved
    weights = np.exp(block["log_w"]).reshape(len(FAULTS), 3, 5, 8)
    increments = history.log_increments.reshape(len(FAULTS), 3, 5)
    for fault, code in CODES.items():
        before, after = weights[code - 1, 1, 1:3]
        if fault in ("some NaN", "states NaN", "a state inf"):
            lost = 0 if fault == "states NaN" else 7
            assert after[lost] == 0
            assert (np.delete(after, lost) > 0).all()
            assert increments[code - 1, 1, 2] != 0
        else:
            np.testing.assert_allclose(after, before, rtol=1e-5)
            assert increments[code - 1, 1, 2] == 0
    clean = history.log_increments.reshape(increments.shape)[:, 2, :4]
    np.testing.assert_allclose(clean, np.broadcast_to(clean[0], clean.shape), rtol=1e-5)


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_name_step_cause_and_remedy(fault):
    status, cause, remedy = FAULTS[fault]
    filter = FAULTY_FILTERS["bootstrap"]
    for step in (1, 3, 5):
        with pytest.raises(covey.FilterError) as caught:
            covey.run(jax.random.key(4), filter, faulty_records(fault, step))
        error, text = caught.value, str(caught.value)
        assert (error.status, error.step, error.n) == (status, step, 8)
        assert re.match(f"step {step}: .*{cause}.*[.] .*{remedy}.*on_failure='flag'", text), text
        np.testing.assert_array_equal(np.flatnonzero(error.history.status), [step - 1])


@pytest.mark.parametrize("fault", FAULTS)
def test_sessions_keep_their_last_good_state(fault):
    """And go on from there, with the next observation or with this one taken as missing."""
    filter = FAULTY_FILTERS["bootstrap"]
    session = covey.online(jax.random.key(4), filter)
    for step in (1, 2, 3):
        good, bad = ({"y": 0.3, "fault": code} for code in (0, CODES[fault]))
        state = session.state
        with pytest.raises(covey.FilterError, match=f"^step {step}: ") as caught:
            session.update(bad)
        assert caught.value.status == FAULTS[fault][0]
        assert session.state is state
        if "state" not in fault:
            assert session.update(bad, missing=True).log_increment == 0
            session.state = state
        session.update(good)
    straight = covey.online(jax.random.key(4), filter)
    for _ in range(3):
        straight.update(good)
    jax.tree.map(np.testing.assert_array_equal, session.state, straight.state)


@pytest.mark.parametrize("transform", ["jit", "jit of vmap", "vmap", "vmap twice", "jit of map"])
def test_failures_are_raised_from_compiled_code(transform):
    """With the whole message; under vmap that of the first run that fails, none if none does."""
    filter, key = FAULTY_FILTERS["bootstrap"], jax.random.key(4)

    def one(obs):
        return covey.run(key, filter, obs).log_evidence

    run, size = {
        "jit": (jax.jit(one), ()),
        "jit of vmap": (jax.jit(jax.vmap(one)), (3,)),
        "vmap": (jax.vmap(one), (3,)),
        "vmap twice": (jax.jit(jax.vmap(jax.vmap(one))), (1, 3)),
        "jit of map": (jax.jit(lambda obs: jax.lax.map(one, obs)), (3,)),
    }[transform]
    obs = jax.tree.map(
        lambda leaf: np.broadcast_to(leaf, (*size, *leaf.shape)).copy(),
        faulty_records("all zero", 1) | {"fault": np.zeros(5, int)},
    )
    assert jnp.isfinite(run(obs)).all()
    obs["fault"][(*(0 * n for n in size[:-1]), *(n - 1 for n in size[-1:]), 3)] = CODES["one +inf"]
    expected = covey.FilterError if transform == "vmap" else jax.errors.JaxRuntimeError
    with pytest.raises(expected) as caught:
        jax.block_until_ready(run(obs))
    assert str(caught.value).rstrip().endswith(str(covey.FilterError(INFINITE, 4, 8)))


def wrong(change, text):
    return pytest.param(change, text, id=text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        wrong(
            {"log_likelihood": lambda x, obs: x[:, None]},
            r"log_likelihood must return shape (8,), got (8, 1); return log_likelihood(...)[:, 0]",
        ),
        wrong(
            {"log_likelihood": lambda x, obs: x.sum()}, "must return shape (8,), got (); sum over"
        ),
        wrong({"log_likelihood": lambda x, obs: None}, "shape (8,), got None; return the log-dens"),
        wrong(
            {"log_likelihood": lambda x, obs: x > 0}, "must return real numbers, got bool; where"
        ),
        wrong({"log_likelihood": lambda x, obs: x * 1j}, "return real numbers, got complex64"),
        wrong(
            {"transition": lambda key, x, obs: x[:, None]},
            "expected float32[8], got float32[8, 1]; convert them there",
        ),
        wrong({"transition": lambda key, x, obs: x[:-1]}, "expected float32[8], got float32[7]"),
        wrong({"transition": lambda key, x, obs: x > 0}, "expected float32[8], got bool[8]"),
        wrong({"transition": lambda key, x, obs: {"x": x}}, "got {'x': 'float32[8]'}"),
        wrong({"transition": lambda key, x, obs: None}, "expected float32[8], got None"),
        wrong({"initial": lambda key, n: jnp.zeros(n + 1)}, "must return 8 states, got 9"),
        wrong({"initial": lambda key, n: jnp.zeros(())}, "must lead with the number of particles"),
        wrong({"initial": lambda key, n: None}, "must lead with the number of particles, got shap"),
        wrong(
            {"initial": lambda key, n: {"a": jnp.zeros(n), "b": jnp.zeros((2, n))}},
            "got shapes [(8,), (2, 8)]",
        ),
    ],
)
def test_wrong_models_are_refused(change, text):
    parts = ("initial", "transition", "log_likelihood", "log_transition")
    model = covey.StateSpaceModel(**({part: getattr(FAULTY, part) for part in parts} | change))
    prior = covey.Proposal(model.transition, normal_density)
    records = faulty_records("all zero", 1)
    one = jax.tree.map(lambda leaf: leaf[0], records)
    for make in (covey.bootstrap, lambda model, n: covey.guided(model, prior, n)):
        filter = make(model, 8)
        with pytest.raises(ValueError, match=re.escape(text)):
            covey.run(jax.random.key(0), filter, records)
        with pytest.raises(ValueError, match=re.escape(text)):
            covey.online(jax.random.key(0), filter).update(one)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: guided_by(log_q=lambda *_: None), "proposal.log_density must return shape (8,)"),
        (
            lambda: guided_by(log_q=lambda x_prev, x, obs: x[:, None]),
            "return proposal.log_density(...)[:, 0]",
        ),
        (
            lambda: guided_by(sample=lambda key, x, obs: x[:, None]),
            "proposal.sample must return states like those it was given: expected float32[8]",
        ),
        (
            lambda: covey.auxiliary(FAULTY, 8, lookahead=lambda x, obs: x[:, None]),
            "lookahead must return shape (8,), got (8, 1)",
        ),
        (
            lambda: covey.guided(replace_density(lambda *_: jnp.zeros(3)), PRIOR, 8),
            "log_transition must return shape (8,), got (3,)",
        ),
        (
            lambda: covey.guided(replace_density(None), PRIOR, 8),
            "guided needs a model with log_transition(x_prev, x, obs)",
        ),
    ],
)
def test_wrong_proposals_and_lookaheads_are_refused(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        covey.run(jax.random.key(0), make(), faulty_records("all zero", 1))


def guided_by(sample=faulty_transition, log_q=normal_density):
    return covey.guided(FAULTY, covey.Proposal(sample, log_q), 8)


def replace_density(log_transition):
    return replace(FAULTY, log_transition=log_transition)


@pytest.mark.parametrize(("value", "status"), [(NAN, NOT_A_NUMBER), (np.inf, INFINITE)])
def test_guesses_that_are_no_numbers_are_reported(value, status):
    """The evidence bears them, but they are a mistake of the lookahead."""
    records = faulty_records("all zero", 1) | {"fault": np.zeros(5, int)}

    def lookahead(x, obs):
        return jnp.where((jnp.arange(8) == 2) & (obs["y"] > 0.5), value, 0.0)

    filter = covey.auxiliary(FAULTY, 8, lookahead=lookahead)
    with pytest.raises(covey.FilterError, match=r"^step 3: .*lookahead.*returned") as caught:
        covey.run(jax.random.key(0), filter, records)
    assert caught.value.status == status
    assert jnp.isfinite(caught.value.history.log_evidence)


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ({"n": 0}, ValueError, "the number of particles must be at least 1, got 0"),
        ({"n": -3}, ValueError, "must be at least 1, got -3"),
        ({"n": 10.0}, TypeError, "the number of particles must be an integer, got 10.0"),
        ({"n": "10"}, TypeError, "must be an integer, got '10'"),
        ({"n": None}, TypeError, "must be an integer, got None"),
        ({"n": 10, "n_initial": 9}, ValueError, "n_initial must be at least n = 10, got 9"),
        ({"n": 10, "n_initial": 20.5}, TypeError, "must be an integer, got 20.5"),
        ({"n": 10, "n_initial": 20, "hold": -1}, ValueError, "hold must be .*0 or more, got -1"),
        ({"n": 10, "n_initial": 20, "hold": 2.5}, TypeError, "hold must be .*got 2.5"),
        ({"n": 10, "n_initial": 20, "hold": "2"}, TypeError, "hold must be .*got '2'"),
        ({"n": 10, "n_initial": 20, "hold": None}, TypeError, "hold must be .*got None"),
    ],
)
def test_wrong_numbers_are_refused(numbers, error, text):
    makers = (
        covey.bootstrap,
        covey.auxiliary,
        covey.cluster_filter,
        lambda model, n, **options: covey.guided(model, PRIOR, n, **options),
    )
    for make in makers:
        with pytest.raises(error, match=text):
            make(FAULTY, **numbers)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, NAN])
def test_thresholds_are_fractions(threshold):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got"):
        covey.cluster_filter(FAULTY, 10, threshold=threshold)


@pytest.mark.slow
def test_single_precision_is_enough_for_a_million_particles():
    """Evidence in both precisions, each within six standard errors of the exact one."""
    y = np.asarray([0.5, -0.3, 1.1, 0.2, -1.0, 0.4, 0.9, -0.2])
    for dtype in ("float32", "float64"):
        with precision(dtype):
            model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
            history = covey.run(jax.random.key(0), covey.bootstrap(model, 1_000_000), y)
            exact = model.kalman(y)
            assert history.resampled.sum() > 2
            error = 6 * np.sqrt((1_000_000 / np.asarray(history.ess)).sum() / 1e6)
            assert abs(history.log_evidence - exact.log_evidence) < error
            sd = np.sqrt(exact.covariance[:, 0, 0] / history.ess)
            assert (abs(history.mean - exact.mean)[:, 0] < 6 * math.sqrt(2) * sd).all()
            assert abs(jnp.exp(history.final.log_w).astype(float).sum() - 1) < 1e-4
