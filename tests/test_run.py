"""Laws of running: all at once or one at a time, what is kept, and what is refused."""

import contextlib
import gc
import io
import re
import weakref
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from tests.laws import FILTERS, QUICK

NAN, SLOW = np.nan, pytest.mark.slow
QUICKEST = ("when due", "guided", "starting large")
"""Filters that cover all lines of code; with the others the laws take long."""
ALL_FILTERS = [pytest.param(name, marks=[] if name in QUICKEST else SLOW) for name in FILTERS]
OBS = np.array([0.3, NAN, -1.6, 0.9, 5.0])
STEPS, N = len(OBS), 12
KEY = jax.random.key(3)


@cache
def filter_named(name):
    return FILTERS[name](covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3), N)


@cache
def kept_all(name):
    return covey.run(KEY, filter_named(name), OBS, save="particles")


@cache
def estimates(name):
    """Of a session: what it returned, and its particles after each step."""
    session = covey.online(KEY, filter_named(name))
    assert session.step == 0
    assert session.estimate is None
    returned, particles = [], [session.particles]
    for value in OBS:
        returned.append(session.update(value))
        assert session.estimate is returned[-1]
        particles.append(session.particles)
    assert session.step == STEPS
    return jax.tree.map(lambda *leaves: np.stack(leaves), *returned), particles


def same(one, other):
    """Alike to the last bit, in the same structure."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        left, right = np.asarray(left), np.asarray(right)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", ALL_FILTERS)
def test_sessions_give_the_numbers_of_run(name):
    """Bit for bit, for every step, in summaries and particles."""
    returned, particles = estimates(name)
    history = kept_all(name)
    same(returned, history.steps)
    same(particles[-1], history.final)
    for step in range(STEPS + 1):
        same(particles[step], history.particles(step))


@pytest.mark.parametrize("name", ALL_FILTERS)
def test_progress_changes_no_number(name, capsys):
    history = covey.run(KEY, filter_named(name), OBS, progress=True)
    same(history.steps, kept_all(name).steps)
    same(history.final, kept_all(name).final)
    assert "filtering" in capsys.readouterr().out


def mean_of_squares(particles):
    return {"squares": particles.weights @ particles.x**2, "n": jnp.int32(particles.n)}


@pytest.mark.parametrize("name", ["when due", pytest.param("starting large", marks=SLOW)])
def test_what_is_kept_changes_no_number(name):
    """A function is called with the particles of each step."""
    history = covey.run(KEY, filter_named(name), OBS, save=mean_of_squares)
    same(history.steps, kept_all(name).steps)
    same(history.final, kept_all(name).final)
    for step in range(1, STEPS + 1):
        particles = kept_all(name).particles(step)
        expected = np.asarray(particles.weights) @ np.asarray(particles.x) ** 2
        np.testing.assert_allclose(history.kept["squares"][step - 1], expected, rtol=1e-5)
        assert history.kept["n"][step - 1] == particles.n


@SLOW
def test_progress_may_come_with_anything():
    """Pieces for a bar, a change of n, and kept particles."""
    long = np.tile(OBS, 41)[:203]
    filter = filter_named("starting large")
    with contextlib.redirect_stdout(io.StringIO()):
        shown = covey.run(KEY, filter, long, progress=True, save="particles")
    plain = covey.run(KEY, filter, long, save="particles")
    same(shown.steps, plain.steps)
    same(shown.ancestry(), plain.ancestry())


def walked_back(history):
    """Paths of the final particles, one particle and one step at a time."""
    steps, n = len(history.ess), history.final.n
    paths = np.zeros((steps + 1, n, *history.final.x.shape[1:]))
    for particle in range(n):
        index = particle
        for step in range(steps, -1, -1):
            particles = history.particles(step)
            paths[step, particle] = particles.x[index]
            index = int(particles.ancestors[index])
    return paths


@pytest.mark.parametrize("name", ALL_FILTERS)
def test_ancestry_follows_the_ancestors(name):
    history = kept_all(name)
    paths = history.ancestry()
    np.testing.assert_array_equal(paths, walked_back(history))
    np.testing.assert_array_equal(paths[-1], history.final.x)
    assert paths.shape == (STEPS + 1, N, 1)
    assert history.resampled.any() or name == "never"
    for step in range(1, STEPS + 1):
        particles, before = history.particles(step), history.particles(step - 1)
        assert particles.ancestors.max() < before.n
        assert particles.unique == len(np.unique(particles.ancestors))
        if not particles.resampled:
            np.testing.assert_array_equal(particles.ancestors, np.arange(before.n))


@pytest.mark.parametrize("name", ALL_FILTERS)
def test_history_is_consistent(name):
    history = kept_all(name)
    per_step = (
        history.log_increments,
        history.ess,
        history.resampled,
        history.unique,
        history.cluster_kl,
        history.status,
    )
    assert {leaf.shape for leaf in per_step} == {(STEPS,)}
    assert history.mean.shape == history.variance.shape == (STEPS, 1)
    np.testing.assert_allclose(history.log_increments.sum(), history.log_evidence, rtol=1e-5)
    assert history.log_increments[1] == 0
    for step in range(1, STEPS + 1):
        particles = history.particles(step)
        mean, variance = particles.moments()
        np.testing.assert_allclose(mean, history.mean[step - 1], rtol=1e-5)
        np.testing.assert_allclose(variance, history.variance[step - 1], rtol=1e-4)
        np.testing.assert_allclose(1 / (particles.weights**2).sum(), particles.ess, rtol=1e-5)
    same(history.particles(STEPS), history.final)
    assert history.particles(0).log_evidence == 0
    for step in (-1, STEPS + 1):
        with pytest.raises(IndexError, match=f"there are steps 0 to {STEPS}, got {step}"):
            history.particles(step)


def test_histories_print_what_matters():
    text = str(kept_all("when due")).splitlines()
    assert text[0] == f"{STEPS} steps, {N} particles"
    assert text[1] == f"log evidence   {kept_all('when due').log_evidence:.4f}"
    assert text[3] == f"resampled      {kept_all('when due').resampled.sum()} times"
    bad = covey.run(KEY, filter_named("when due"), np.where(np.isnan(OBS), 1e30, OBS),
                    save="particles", on_failure="flag")  # fmt: skip
    assert str(bad).endswith("failed         1 steps: see history.status")
    assert str(covey.run(KEY, filter_named("when due"), [])).startswith(f"0 steps, {N} particles")


class Quick(NamedTuple):
    """A model without chance that compiles at once, and what it counted."""

    model: covey.StateSpaceModel
    traces: list


def counting():
    traces = []

    def log_likelihood(x, obs):
        traces.append(obs)
        return 0 * x

    still = covey.StateSpaceModel(
        lambda key, n: jnp.arange(n, dtype=float), lambda key, x, obs: x, log_likelihood
    )
    return Quick(still, traces)


def never(key, particles, n):
    return particles


def test_summaries_do_not_grow_with_the_particles():
    """Apart from the final particles the history has T numbers for each component of a state."""
    n, steps = 1000, 7
    filter = covey.bootstrap(counting().model, n, resample=never)
    history = covey.run(KEY, filter, np.zeros(steps))
    assert history.initial is None
    for leaf in jax.tree.leaves((history.steps, history.saved)):
        assert leaf.shape == (steps,)
    for leaf in jax.tree.leaves(history.final):
        assert leaf.shape in ((n,), ())
    for ask in (history.ancestry, lambda: history.particles(1)):
        with pytest.raises(ValueError, match=r"needs all particles .* run with save='particles'"):
            ask()


def test_compiled_loops_are_reused():
    """Also by sessions, and for Python numbers, arrays of NumPy and of JAX alike."""
    model, traces = counting()
    filter = covey.bootstrap(model, 4, resample=never)
    covey.run(KEY, filter, np.zeros(3))
    once = len(traces)
    assert once > 0
    covey.run(jax.random.key(9), filter, jnp.ones(3))
    covey.run(KEY, filter, [1.0, 2.0, 3.0], missing=[True, False, True])
    assert len(traces) == once
    covey.run(KEY, filter, np.zeros(4))
    assert len(traces) > once
    session = covey.online(KEY, filter)
    session.update(0.5)
    seen = len(traces)
    for value in (np.float64(1.0), jnp.float32(2.0), 3.0, np.zeros(()), NAN):
        session.update(value)
    session.update(1.0, missing=True)
    covey.online(jax.random.key(5), filter).update(0.1)
    assert len(traces) == seen


def test_compiled_loops_go_with_their_filter():
    model, _ = counting()
    filter = covey.bootstrap(model, 4, resample=never)
    history = covey.run(KEY, filter, np.zeros(3))
    session = covey.online(KEY, filter)
    session.update(0.0)
    gone = [weakref.ref(part) for part in (filter, filter.advance)]
    del filter, session
    gc.collect()
    assert [part() for part in gone] == [None, None]
    assert history.log_evidence == 0


def test_by_hand_is_the_same_as_run():
    filter = filter_named("when due")
    step = jax.jit(filter.step, compiler_options=QUICK)
    particles = filter.init(jax.random.fold_in(KEY, 0))
    for t, value in enumerate(OBS, 1):
        particles = step(jax.random.fold_in(KEY, t), particles, value)
    expected = kept_all("when due").final
    np.testing.assert_array_equal(particles.ancestors, expected.ancestors)
    np.testing.assert_allclose(particles.log_evidence, expected.log_evidence, rtol=1e-4)
    np.testing.assert_allclose(particles.x, expected.x, rtol=1e-3, atol=1e-4)


def test_kept_particles_under_jit_and_vmap():
    filter, keys = filter_named("when due"), jax.random.split(KEY, 2)
    run = jax.vmap(lambda key: covey.run(key, filter, OBS, save="particles"))
    many = jax.jit(run, compiler_options=QUICK)(keys)
    assert str(many) == "History of (2,) runs"
    for ask in (many.ancestry, lambda: many.particles(1), many.to_xarray):
        with pytest.raises(ValueError, match="works on one run; pick one first"):
            ask()
    one = jax.tree.map(lambda leaf: leaf[1], many)
    np.testing.assert_array_equal(one.ancestry(), walked_back(one))
    alone = covey.run(keys[1], filter, OBS, save="particles")
    np.testing.assert_allclose(one.ancestry(), alone.ancestry(), rtol=1e-3, atol=1e-4)


def number(particles):
    return particles.n * jnp.ones(2)


def states(particles):
    return particles.x


def test_kept_leads_with_time():
    filter = covey.bootstrap(counting().model, 3, resample=lambda k, p, n: p.select(jnp.arange(n)),
                             n_initial=5, hold=2)  # fmt: skip
    history = covey.run(KEY, filter, np.zeros(4), save=number)
    np.testing.assert_array_equal(history.kept, [[5, 5], [5, 5], [3, 3], [3, 3]])
    many = jax.vmap(lambda key: covey.run(key, filter, np.zeros(4), save=number))
    np.testing.assert_array_equal(many(jax.random.split(KEY, 3)).kept, [history.kept] * 3)
    with pytest.raises(ValueError, match=r"changes its shape .*n_initial.* from history.saved"):
        _ = covey.run(KEY, filter, np.zeros(4), save=states).kept
    with pytest.raises(ValueError, match="the run had no steps"):
        _ = covey.run(KEY, filter, [], save=states).kept


def in_parts():
    """States with a plane, a regime and a truth; no chance, so that it compiles at once."""

    def initial(key, n):
        place = jnp.arange(2.0 * n).reshape(n, 2)
        return {"place": place, "mode": (jnp.arange(n), jnp.ones((n, 2, 3)))}

    return covey.StateSpaceModel(
        initial,
        lambda key, x, obs: {**x, "place": x["place"] + 1},
        lambda x, obs: -0.1 * x["place"][:, 0] * obs,
    )


def first_ones(key, particles, n):
    return particles if n == particles.n else particles.select(jnp.arange(n)[::-1])


@cache
def history_in_parts():
    filter = covey.bootstrap(in_parts(), 3, resample=first_ones, n_initial=5, hold=2)
    return covey.run(KEY, filter, [0.5, 0.1, 0.3, 0.2], save="particles")


def test_tables_have_names_and_gaps(tmp_path):
    """One variable a leaf, components named alike in means and particles, and a way to disk."""
    xarray = pytest.importorskip("xarray")
    history = history_in_parts()
    table = history.to_xarray()
    assert dict(table.sizes) == {
        "step": 4, "particle": 5, "place_1": 2, "mode.1_1": 2, "mode.1_2": 3,
    }  # fmt: skip
    assert table["mean.place"].dims == ("step", "place_1")
    assert table["variance.mode.1"].dims == ("step", "mode.1_1", "mode.1_2")
    assert table["x.place"].dims == ("step", "particle", "place_1")
    assert table["x.mode.0"].dims == ("step", "particle")
    assert table["ess"].dims == ("step",)
    np.testing.assert_array_equal(table["step"], [1, 2, 3, 4])
    np.testing.assert_array_equal(table["mean.place"], history.mean["place"])
    for step in range(1, 5):
        particles, row = history.particles(step), table.sel(step=step)
        n = particles.n
        np.testing.assert_array_equal(row["x.place"][:n], particles.x["place"])
        np.testing.assert_array_equal(row["ancestor"][:n], particles.ancestors)
        np.testing.assert_allclose(row["weight"].sum(), 1, rtol=1e-6)
        assert np.isnan(row["x.place"][n:]).all()
        assert (row["weight"][n:] == 0).all()
        assert (row["ancestor"][n:] == -1).all()
        assert (row["x.mode.0"][n:] == -1).all()
    assert table["x.mode.0"].dtype == table["ancestor"].dtype == np.int32
    table.to_netcdf(tmp_path / "history.nc")
    with xarray.open_dataset(tmp_path / "history.nc") as read:
        assert read.attrs["log_evidence"] == float(history.log_evidence)
        xarray.testing.assert_equal(read.load(), table)


def test_tables_of_plain_states_and_of_nothing():
    table = kept_all("when due").to_xarray()
    assert table["mean"].dims == ("step", "component")
    assert table["x"].dims == ("step", "particle", "component")
    assert table.attrs["particles"] == N
    filter = covey.bootstrap(counting().model, 4, resample=never)
    assert covey.run(KEY, filter, np.zeros(2)).to_xarray()["mean"].dims == ("step",)
    empty = covey.run(KEY, filter, [], save="particles")
    assert empty.to_xarray().sizes["step"] == 0


def test_ancestry_of_parts():
    paths = history_in_parts().ancestry()
    assert jax.tree.map(np.shape, paths) == {"place": (5, 3, 2), "mode": ((5, 3), (5, 3, 2, 3))}
    np.testing.assert_array_equal(paths["mode"][0], [[2, 1, 0]] * 5)
    np.testing.assert_array_equal(paths["place"][:, 0, 0], [4, 5, 6, 7, 8])


def test_no_steps_and_one_step():
    """Also under jit, and with every way to keep."""
    filter = covey.bootstrap(in_parts(), 3, resample=first_ones, n_initial=5, hold=0)
    for obs in ([], np.zeros(0), np.zeros((0, 2))):
        history = covey.run(KEY, filter, obs, save="particles", progress=len(obs) == 1)
        assert history.log_evidence == 0
        assert history.final.n == 5
        assert history.mean["place"].shape == (0, 2)
        assert history.mean["mode"][1].shape == (0, 2, 3)
        assert history.status.shape == history.log_increments.shape == (0,)
        same(history.particles(0), history.final)
        np.testing.assert_array_equal(history.ancestry()["place"][0], history.final.x["place"])
    empty = jax.jit(jax.vmap(lambda key: covey.run(key, filter, np.zeros(0))))
    assert empty(jax.random.split(KEY, 2)).ess.shape == (2, 0)
    history = covey.run(KEY, filter, [0.3], save="particles")
    assert history.final.n == 3
    assert history.ancestry()["place"].shape == (2, 3, 2)


def seen_by(measured):
    """Likelihoods are what the model sees of a record, weighed by a function."""
    return covey.StateSpaceModel(
        lambda key, n: jnp.zeros(n), lambda key, x, obs: x, lambda x, obs: x + measured(obs)
    )


MASKED = np.ma.array([1.0, 7.0, 3.0], mask=[0, 1, 0])


@pytest.mark.parametrize(
    ("obs", "measured", "expected"),
    [
        ([1.0, NAN, 3.0], lambda y: y, [1, 0, 3]),
        ([1, 2, 3], lambda y: y, [1, 2, 3]),
        ([True, False, True], lambda y: y, [1, 0, 1]),
        ([[1, 2], [3, 4]], lambda y: y @ jnp.array([1, 10]), [21, 43]),
        ([np.ones(2), jnp.ones(2)], lambda y: y.sum(), [2, 2]),
        (MASKED, lambda y: y, [1, 0, 3]),
        (MASKED.astype(int), lambda y: y, [1, 0, 3]),
        ([*np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [1, 1]])], jnp.sum, [3, 0]),
        ((np.array([1.0, 2.0]), np.array([3, 4])), lambda y: y[0] + 10 * y[1], [31, 42]),
        ({"a": MASKED, "b": np.full(3, NAN)}, lambda y: jnp.nansum(y["a"]), [1, 0, 3]),
        ([{"a": 1.0, "b": 2}, {"a": 3.0, "b": 4}], lambda y: y["a"] + 10 * y["b"], [21, 43]),
        ([(1.0, 2.0), (3.0, 4.0)], lambda y: y[0] + 10 * y[1], [21, 43]),
        (range(3), lambda y: y, [0, 1, 2]),
    ],
)
def test_observations_come_in_many_forms(obs, measured, expected):
    filter = covey.bootstrap(seen_by(measured), 2, resample=never)
    history = covey.run(KEY, filter, obs)
    np.testing.assert_allclose(history.log_increments, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("obs", "measured", "expected"),
    [
        (2, lambda y: y, 2),
        (np.ma.masked_all(()), lambda y: y, 0),
        ([1.0, 2.0], lambda y: y.sum(), 3),
        ((1.0, 2), lambda y: y[0] + y[1], 3),
        ({"a": 1.0, "b": np.array([2.0, 3.0])}, lambda y: y["a"] + y["b"].sum(), 6),
    ],
)
def test_sessions_take_many_forms(obs, measured, expected):
    session = covey.online(KEY, covey.bootstrap(seen_by(measured), 2, resample=never))
    assert session.update(obs).log_increment == pytest.approx(expected, abs=1e-6)
    assert session.update(obs, missing=True).log_increment == 0


def test_records_may_be_lists_of_traced_numbers():
    filter = covey.bootstrap(seen_by(lambda y: y), 2, resample=never)
    run = jax.jit(lambda a, b: covey.run(KEY, filter, [a, b]).log_increments)
    np.testing.assert_allclose(run(1.0, 2.0), [1, 2], rtol=1e-6)


GOOD = {"key": KEY, "filter": filter_named("when due"), "obs": OBS}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"key": 3}, TypeError, "key must be a JAX random key such as jax.random.key(0), got 3"),
        ({"key": None}, TypeError, "key must be a JAX random key"),
        ({"key": np.zeros(2)}, TypeError, "key must be a JAX random key"),
        (
            {"key": jax.random.split(KEY, 3)},
            ValueError,
            "a single random key, got an array of shape (3,); for several runs at once use jax",
        ),
        (
            {"key": jax.random.split(jax.random.PRNGKey(0), 3)},
            ValueError,
            "got an array of shape (3, 2); for several runs",
        ),
        (
            {"key": GOOD["filter"], "filter": KEY},
            TypeError,
            "filter must be a filter such as covey.bootstrap(model, 1000), got",
        ),
        (
            {"filter": GOOD["filter"].model},
            TypeError,
            "it comes after the key",
        ),
        (
            {"save": "all"},
            ValueError,
            "save must be 'summary', 'particles' or a function, got 'all'",
        ),
        ({"save": None}, ValueError, "save must be 'summary', 'particles' or a function, got None"),
        (
            {"on_failure": "ignore"},
            ValueError,
            "on_failure must be 'raise' or 'flag', got 'ignore'",
        ),
        (
            {"obs": {"a": np.zeros(3), "b": np.zeros(4)}},
            ValueError,
            "lead with the number of steps, got shapes [(3,), (4,)]; for a single step use",
        ),
        ({"obs": 3.0}, ValueError, "got shapes [()]; for a single step use covey.online"),
        ({"obs": ()}, ValueError, "every leaf of the observations must lead with"),
        ({"obs": None}, ValueError, "every leaf of the observations must lead with"),
        ({"obs": "abc"}, TypeError, "an observation must be numbers or a pytree of numbers"),
        ({"obs": ["a", "b"]}, TypeError, "an observation must be numbers"),
        ({"obs": [0.1, None, 0.2]}, TypeError, "a missing one is NaN"),
        ({"obs": [[1.0, 2.0], [3.0]]}, ValueError, "must all have the same shape"),
        ({"obs": [{"a": 1.0}, {"b": 1.0}]}, ValueError, "must all have the same"),
        ({"obs": [{"a": 1.0}, {"a": np.zeros(2)}]}, ValueError, "must all have the same"),
        (
            {"missing": np.zeros(4, bool)},
            ValueError,
            "missing must be 5 bools, one for each step, got bool[4]",
        ),
        ({"missing": np.zeros(5, int)}, ValueError, "one for each step, got int32[5]"),
        ({"missing": np.zeros((5, 1), bool)}, ValueError, "got bool[5, 1]"),
        ({"missing": True}, ValueError, "got bool[]"),
    ],
)
def test_run_refuses_wrong_arguments(change, error, text):
    with pytest.raises(error, match=re.escape(text)):
        covey.run(**(GOOD | change))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": 3}, "key must be a JAX random key"),
        ({"key": GOOD["filter"], "filter": KEY}, "filter must be a filter"),
        ({"on_failure": "stop"}, "on_failure must be 'raise' or 'flag', got 'stop'"),
    ],
)
def test_online_refuses_wrong_arguments(change, text):
    arguments = {"key": KEY, "filter": GOOD["filter"]} | change
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        covey.online(**arguments)


@pytest.mark.parametrize("obs", [None, (), {}, "0.3", object()])
def test_update_refuses_what_is_no_observation(obs):
    session = covey.online(KEY, filter_named("when due"))
    state = session.state
    with pytest.raises(TypeError, match="an observation must be numbers or a pytree of numbers"):
        session.update(obs)
    assert session.state is state


def test_progress_is_refused_under_jit_and_vmap():
    filter = filter_named("when due")
    with pytest.raises(ValueError, match="progress=True cannot show a bar under jit or vmap"):
        jax.jit(lambda key: covey.run(key, filter, OBS, progress=True))(KEY)
    with pytest.raises(ValueError, match="progress=True cannot show a bar under jit or vmap"):
        jax.vmap(lambda y: covey.run(KEY, filter, y, progress=True))(np.zeros((2, 3)))

    def of_model(phi):
        model = covey.models.StochasticVolatility(phi)
        return covey.run(KEY, covey.bootstrap(model, 4), OBS, progress=True).log_evidence

    with pytest.raises(ValueError, match="progress=True cannot show a bar under jit or vmap"):
        jax.jit(of_model)(0.5)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_interrupts_leave_the_session_whole(interrupt, monkeypatch):
    """While tracing, and at the last moment, when the results are there but not yet taken in."""
    still, stop = counting().model, []

    def log_likelihood(x, obs):
        if stop:
            raise interrupt
        return still.log_likelihood(x, obs)

    model = covey.StateSpaceModel(still.initial, still.transition, log_likelihood)
    session = covey.online(KEY, covey.bootstrap(model, 4, resample=never))
    session.update(0.5)
    state = session.state
    stop.append(True)
    with pytest.raises(interrupt):
        session.update(np.zeros(2))  # of another shape, so it is traced
    assert session.state is state
    stop.clear()
    with monkeypatch.context() as patch:

        def waiting(results):
            raise interrupt

        patch.setattr(jax, "block_until_ready", waiting)
        with pytest.raises(interrupt):
            session.update(0.5)
    assert session.state is state
    assert session.update(0.5).step == 2


def test_interrupts_within_a_running_step_leave_the_session_whole():
    """A model on the host raises while the compiled step runs."""
    stop = []

    def log_likelihood(x, obs):
        if stop:
            raise KeyboardInterrupt
        return -((x - obs) ** 2)

    model = covey.from_numpy(
        lambda rng, n: rng.normal(size=n), lambda rng, x, obs: x, log_likelihood
    )
    session = covey.online(KEY, covey.bootstrap(model, 4, resample=never))
    session.update(0.5)
    state = session.state
    stop.append(True)
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        session.update(0.1)
    assert session.state is state
    stop.clear()
    assert session.update(0.1).step == 2


def test_evidence_of_a_long_run_is_summed_without_loss():
    """One number added 100,000 times: in single precision a plain sum would be off by units."""
    steps, constant = 100_000, np.float32(-1.2345678)
    still = covey.StateSpaceModel(
        initial=lambda key, n: jnp.zeros((n, 1)),
        transition=lambda key, x, obs: x,
        log_likelihood=lambda x, obs: jnp.full(len(x), constant),
    )
    history = covey.run(jax.random.key(0), covey.bootstrap(still, 2), jnp.zeros(steps))
    exact = np.sum(np.asarray(history.log_increments, np.float64))
    plain = np.cumsum(np.asarray(history.log_increments))[-1]
    np.testing.assert_allclose(history.log_increments, constant, rtol=1e-6)
    assert abs(float(history.log_evidence) - exact) < 0.01
    assert abs(float(plain) - exact) > 1


def test_what_was_not_kept_is_not_handed_out():
    history = covey.run(
        jax.random.key(0), covey.bootstrap(covey.models.StochasticVolatility(), 10), jnp.zeros(3)
    )
    with pytest.raises(ValueError, match=r"nothing was kept.*save='particles'"):
        history.kept  # noqa: B018
