"""Sessions on disk: they go on bit for bit, are written at once or not at all, or are refused."""

import contextlib
import errno
import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import checkpoint
from tests.laws import precision

ROOT = Path(__file__).parents[1]
OBS = (0.3, -1.2, 0.1, 2.0, 0.4, -0.2, 0.9)
VOLATILITY = covey.models.StochasticVolatility()


class Target(NamedTuple):
    place: jax.Array
    turns: jax.Array


def many_parts() -> covey.StateSpaceModel:
    """A state of nested parts: floats, integers and bools."""

    def initial(key, n):
        place = jax.random.normal(key, (n, 2))
        return {"target": Target(place, jnp.zeros(n, int)), "seen": (jnp.ones((n, 1), bool),)}

    def transition(key, x, obs):
        place = x["target"].place + jax.random.normal(key, x["target"].place.shape)
        turns = x["target"].turns + (place[:, 0] > 0)
        return {"target": Target(place, turns), "seen": (~x["seen"][0],)}

    def log_likelihood(x, obs):
        return -0.5 * (x["target"].place[:, 0] + x["target"].turns - obs) ** 2

    return covey.StateSpaceModel(initial, transition, log_likelihood)


def walk(dtype) -> covey.StateSpaceModel:
    """A random walk whose states have this type."""

    def step(key, shape):
        return (2 * jax.random.normal(key, shape)).astype(dtype)

    return covey.StateSpaceModel(
        initial=lambda key, n: step(key, (n, 1)),
        transition=lambda key, x, obs: x + step(key, x.shape),
        log_likelihood=lambda x, obs: -0.5 * (x[:, 0] - obs) ** 2,
    )


def in_numpy() -> covey.StateSpaceModel:
    return covey.from_numpy(
        initial=lambda rng, n: rng.normal(size=(n, 1)),
        transition=lambda rng, x, obs: x + rng.normal(size=x.shape),
        log_likelihood=lambda x, obs: -0.5 * (obs - x[:, 0]) ** 2,
    )


def linear_guided() -> covey.Filter:
    model = covey.models.LinearGaussian(0.9, 0.5, 1.0, 0.3)
    return covey.guided(model, model.optimal_proposal(), 40)


FILTERS = {
    "array": lambda: covey.bootstrap(VOLATILITY, 40),
    "parts": lambda: covey.bootstrap(many_parts(), 40),
    "integers": lambda: covey.bootstrap(walk("int32"), 40),
    "bfloat16": lambda: covey.bootstrap(walk("bfloat16"), 40),
    "n_initial": lambda: covey.bootstrap(VOLATILITY, 40, n_initial=90, hold=3),
    "n_initial, no hold": lambda: covey.bootstrap(many_parts(), 40, n_initial=90, hold=0),
    "clustered": lambda: covey.cluster_filter(VOLATILITY, 40, k=3),
    "guided": linear_guided,
    "NumPy": lambda: covey.bootstrap(in_numpy(), 40),
}
KEYS = {
    "key": lambda: jax.random.key(1),
    "bare key": lambda: jax.random.PRNGKey(1),
    "rbg key": lambda: jax.random.key(1, impl="rbg"),
    "NumPy's bare key": lambda: np.asarray(jax.random.PRNGKey(1)),
}
CASES = [
    *((name, "key", "float32") for name in FILTERS),
    *(("array", key, "float32") for key in KEYS if key != "key"),
    ("array", "key", "float64"),
]


def assert_same(one, other):
    """Two pytrees of arrays are alike to the last bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            assert left.dtype == right.dtype
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        left, right = np.asarray(left), np.asarray(right)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()


def assert_same_session(one, other):
    assert one.step == other.step
    assert_same((jnp.asarray(one.key), one.particles), (jnp.asarray(other.key), other.particles))
    assert (one.estimate is None) == (other.estimate is None)
    assert_same(one.estimate, other.estimate)


@pytest.mark.parametrize(("name", "key", "dtype"), CASES)
def test_resumed_sessions_go_on_bit_for_bit(name, key, dtype, tmp_path):
    """Stopped and resumed before every step, also before, at and after a change of n."""
    path = tmp_path / "session.covey"
    with precision(dtype):
        filter = FILTERS[name]()
        straight = covey.online(KEYS[key](), filter)
        stopped = covey.online(KEYS[key](), filter)
        for value in OBS:
            stopped.save(path)
            stopped = covey.resume(path, filter)
            assert_same_session(stopped, straight)
            assert_same(stopped.update(value), straight.update(value))
        assert_same_session(stopped, straight)
        if name == "array":
            assert stopped.particles.x.dtype == dtype


def test_resumed_session_keeps_what_to_do_on_failure(tmp_path):
    filter = covey.bootstrap(VOLATILITY, 40)
    covey.online(jax.random.key(0), filter).save(tmp_path / "session")
    with pytest.raises(covey.FilterError):
        covey.resume(tmp_path / "session", filter).update(np.inf)
    flagging = covey.resume(tmp_path / "session", filter, on_failure="flag")
    assert flagging.update(np.inf).status == 1


@pytest.fixture(scope="module")
def small():
    return covey.bootstrap(VOLATILITY, 20)


@pytest.fixture
def sessions(small):
    """The same session after one and after two steps."""
    both = []
    for steps in (1, 2):
        session = covey.online(jax.random.key(0), small)
        for value in OBS[:steps]:
            session.update(value)
        both.append(session)
    return both


def go_on(path):
    """In a process of its own: update and save, for ever."""
    session = covey.online(jax.random.key(0), covey.bootstrap(VOLATILITY, 20))
    for value in itertools.cycle(OBS):
        session.update(value)
        session.save(path)


def test_killed_program_goes_on_bit_for_bit(small, tmp_path):
    path = tmp_path / "session.covey"
    with start(f"go_on({str(path)!r})") as process:
        waited = time.monotonic()
        while not path.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() - waited < 60
            time.sleep(0.01)
        time.sleep(0.05)
        process.kill()
    resumed = covey.resume(path, small)
    straight = covey.online(jax.random.key(0), small)
    for value in itertools.islice(itertools.cycle(OBS), resumed.step):
        straight.update(value)
    assert_same_session(resumed, straight)
    assert_same(resumed.update(0.5), straight.update(0.5))


def start(call: str) -> subprocess.Popen:
    """Run a function of this file in another process."""
    code = f"from tests.test_checkpoint import *; {call}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes)


def kill_writers(path, kills):
    """In a process of its own: fork a writer, kill it at a random moment, see what it left."""
    filter = covey.bootstrap(VOLATILITY, 30_000)
    session = covey.online(jax.random.key(0), filter)
    packed = []
    for _ in range(2):
        packed.append(checkpoint._pack(session))
        session.update(0.3)
    bodies = itertools.cycle(packed)
    checkpoint._pack = lambda session: next(bodies)  # a forked process cannot rely on JAX
    session.save(path)
    moment = random.Random(0)
    steps = set()
    for _ in range(kills):
        writer = os.fork()
        while not writer:
            session.save(path)
        time.sleep(moment.uniform(0, 0.01))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        steps.add(covey.resume(path, filter).step)
    parts = len(list(Path(path).parent.glob(".*.part")))
    print(json.dumps({"steps": sorted(steps), "parts": parts}))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_at_any_moment_leaves_a_whole_session(tmp_path):
    """100 kills, of which many fall within a writing: those leave a part behind."""
    with start(f"kill_writers({str(tmp_path / 'session.covey')!r}, 100)") as process:
        printed, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    left = json.loads(printed)
    assert left["steps"] == [0, 1]
    assert left["parts"] > 10


class HalfWriting:
    """A file on a disk that is full after half of what is written."""

    def __init__(self, file, error):
        self.file, self.error = file, error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        raise self.error


def fail_at(call, error, monkeypatch):
    """Let one kind of system call fail."""

    def failing(*arguments, **options):
        raise error

    if call == "open":
        monkeypatch.setattr(checkpoint, "open", failing, raising=False)
    elif call == "write":

        def half(path, mode):
            return HalfWriting(Path(path).open(mode), error)

        monkeypatch.setattr(checkpoint, "open", half, raising=False)
    else:
        monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EROFS, "Read-only file system"),
        KeyboardInterrupt(),
        MemoryError(),
    ],
    ids=lambda error: getattr(error, "strerror", None) or type(error).__name__,
)
def test_failed_write_changes_nothing(call, error, there, sessions, small, tmp_path, monkeypatch):
    old, session = sessions
    path = tmp_path / "session.covey"
    if there:
        old.save(path)
    with monkeypatch.context() as patch:
        fail_at(call, error, patch)
        with pytest.raises(type(error)) as caught:
            session.save(path)
    if isinstance(error, OSError):
        assert caught.value.errno == error.errno
        assert caught.value.filename == str(path)
        assert error.strerror in str(caught.value)
        assert "save to another place" in str(caught.value)
    assert [*tmp_path.iterdir()] == [path] * there
    if there:
        assert_same_session(covey.resume(path, small), old)
    session.save(path)
    assert_same_session(covey.resume(path, small), session)
    assert session.update(0.1).step == 3


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_folder_that_cannot_be_synced(number, sessions, small, tmp_path, monkeypatch):
    """File systems that cannot are let off; one that fails is not."""
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    failing = pytest.raises(OSError, match=r"may not outlast a crash.*save again")
    with failing if number == errno.EIO else contextlib.nullcontext():
        sessions[0].save(tmp_path / "session")
    assert_same_session(covey.resume(tmp_path / "session", small), sessions[0])


def assert_damaged(path, filter):
    """Refused in words, not by whatever library stumbled over it."""
    with pytest.raises(ValueError, match=r"older copy|install the covey") as caught:
        covey.resume(path, filter)
    assert type(caught.value) is ValueError
    assert str(path) in str(caught.value)


@pytest.fixture
def content(sessions, tmp_path):
    sessions[0].save(tmp_path / "good.covey")
    return (tmp_path / "good.covey").read_bytes()


def test_any_flipped_byte_is_noticed(content, small, tmp_path):
    path = tmp_path / "damaged.covey"
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= (0x01, 0x80, 0xFF)[place % 3]
        path.write_bytes(flipped)
        assert_damaged(path, small)


def test_any_lost_or_added_end_is_noticed(content, small, tmp_path):
    path = tmp_path / "damaged.covey"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert_damaged(path, small)
    for more in (b"\0", b"\n", content):
        path.write_bytes(content + more)
        assert_damaged(path, small)


def test_holes_are_noticed(content, small, tmp_path):
    """After a power cut a file system may have the length of a file and not its blocks."""
    path = tmp_path / "damaged.covey"
    for start in range(0, len(content), 512):
        path.write_bytes(content[:start] + bytes(len(content) - start))
        assert_damaged(path, small)


def foreign_files(folder: Path) -> list[Path]:
    texts = {"empty": b"", "text": b"x, y\n1, 2\n", "JSON": b"{}", "letters": "λόγος".encode()}
    texts["pickle"] = pickle.dumps({"step": 3})
    texts["no body"] = checkpoint.MAGIC
    texts["no digest"] = checkpoint.MAGIC + b"\n"
    texts["older"] = checkpoint.NAME + b"0\n"
    texts["long number"] = checkpoint.NAME + b"9" * 10_000
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    np.savez(folder / "arrays.npz", particles0=np.ones(3))
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("key.npy", "nothing")
    return [*folder.iterdir()]


def test_foreign_files_are_refused(small, tmp_path):
    files = foreign_files(tmp_path)
    assert len(files) == 11
    for path in files:
        assert_damaged(path, small)


def test_session_of_a_later_covey_is_refused(content, small, tmp_path):
    path = tmp_path / "later.covey"
    path.write_bytes(content.replace(b"session 1\n", b"session 12\n", 1))
    with pytest.raises(ValueError, match=r"format 12, written by a later covey.*install"):
        covey.resume(path, small)


def test_missing_file_and_folder_are_named(small, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no session to resume.*gone\.covey"):
        covey.resume(tmp_path / "gone.covey", small)
    with pytest.raises(IsADirectoryError, match=f"got the folder {tmp_path}"):
        covey.resume(tmp_path, small)


OTHERS = {
    "other n": (lambda: covey.bootstrap(VOLATILITY, 41, n_initial=90, hold=3), "expected n=41, f"),
    "other n_initial": (
        lambda: covey.bootstrap(VOLATILITY, 40, n_initial=91, hold=3),
        "expected n_initial=91, found n_initial=90",
    ),
    "other hold": (
        lambda: covey.bootstrap(VOLATILITY, 40, n_initial=90, hold=4),
        "expected hold=4, found hold=3",
    ),
    "no n_initial": (lambda: covey.bootstrap(VOLATILITY, 40), "expected n_initial=40, hold=0"),
    "other shape": (
        lambda: covey.bootstrap(
            covey.models.LinearGaussian(np.eye(2), np.eye(2), np.eye(2), np.eye(2)),
            40,
            n_initial=90,
            hold=3,
        ),
        r"expected \.x float32\[90, 2\], found \.x float32\[90, 1\]",
    ),
    "other type": (
        lambda: covey.bootstrap(walk("int32"), 40, n_initial=90, hold=3),
        r"expected \.x int32\[90, 1\], found \.x float32\[90, 1\]",
    ),
    "other structure": (
        lambda: covey.bootstrap(many_parts(), 40, n_initial=90, hold=3),
        r"expected \.x\['seen'\]\[0\] bool\[90, 1\]; .*found \.x float32\[90, 1\];",
    ),
}


@pytest.mark.parametrize("step", [0, 4])
def test_session_of_another_filter_is_refused(step, tmp_path):
    session = covey.online(jax.random.key(0), covey.bootstrap(VOLATILITY, 40, n_initial=90, hold=3))
    for value in OBS[:step]:
        session.update(value)
    path = tmp_path / "session.covey"
    session.save(path)
    for other, difference in OTHERS.values():
        difference = difference if step == 0 else difference.replace("90,", "40,")
        message = f"{path} is the session of another filter: {difference}"
        with pytest.raises(ValueError, match=message):
            covey.resume(path, other())


def test_session_of_another_precision_is_refused(sessions, small, tmp_path):
    path = tmp_path / "session.covey"
    sessions[0].save(path)
    with precision("float64"), pytest.raises(ValueError, match=r"float64.*found.*float32.*mode"):
        covey.resume(path, covey.bootstrap(VOLATILITY, 20))


def test_bare_key_of_another_kind_is_refused(sessions, small, tmp_path):
    path = tmp_path / "session.covey"
    covey.online(jax.random.PRNGKey(0), small).save(path)
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match=r"kind threefry2x32.*rbg"):
        covey.resume(path, small)


def test_resume_refuses_misplaced_arguments(sessions, small, tmp_path):
    path = tmp_path / "session.covey"
    sessions[0].save(path)
    with pytest.raises(TypeError, match="filter must be a filter such as"):
        covey.resume(path, VOLATILITY)
    with pytest.raises(TypeError, match="filter must be a filter such as"):
        covey.resume(small, path)
    with pytest.raises(ValueError, match="on_failure must be 'raise' or 'flag', got 'ignore'"):
        covey.resume(path, small, on_failure="ignore")


def test_two_sessions_may_save_to_one_path(sessions, small, tmp_path):
    """Whoever reads meanwhile finds one of the two, whole."""
    path = tmp_path / "session.covey"
    sessions[0].save(path)
    failures = []

    def write(session):
        try:
            for _ in range(60):
                session.save(path)
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=[session]) for session in sessions]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers) or not reads:
        resumed = covey.resume(path, small)
        assert_same_session(resumed, sessions[resumed.step - 1])
        reads += 1
    assert not failures
    assert [*tmp_path.iterdir()] == [path]


def test_parts_of_killed_writers_are_swept_after_an_hour(sessions, tmp_path):
    names = (".session.1-ab.part", ".session.2-cd.part", ".other.1-ab.part")
    old, fresh, other = (tmp_path / name for name in names)
    for part in (old, fresh, other):
        part.write_bytes(b"half")
    for part in (old, other):
        os.utime(part, (time.time() - 3700,) * 2)
    sessions[0].save(tmp_path / "session")
    assert {*tmp_path.iterdir()} == {fresh, other, tmp_path / "session"}


@pytest.mark.parametrize("name", ["with space.covey", "ünï☃.covey", "[a]*?.covey", ".hidden"])
def test_any_name_will_do(name, sessions, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sessions[0].save(name)
    assert_same_session(covey.resume(name, small), sessions[0])
    sessions[1].save(str(tmp_path / name))
    assert_same_session(covey.resume(tmp_path / name, small), sessions[1])
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("there", [True, False])
def test_links_stay_links(there, sessions, small, tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "session.covey", tmp_path / "link.covey"
    link.symlink_to(target)
    if there:
        sessions[0].save(target)
    sessions[1].save(link)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert_same_session(covey.resume(target, small), sessions[1])
    assert_same_session(covey.resume(link, small), sessions[1])


def test_permissions_are_those_of_the_file_before_or_of_the_umask(sessions, tmp_path):
    path = tmp_path / "session"
    umask = os.umask(0o027)
    try:
        sessions[0].save(path)
        assert path.stat().st_mode & 0o777 == 0o640
        for mode in (0o600, 0o664):
            path.chmod(mode)
            sessions[1].save(path)
            assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(umask)


def test_places_that_are_no_files_are_refused(sessions, tmp_path):
    session = sessions[0]
    with pytest.raises(IsADirectoryError, match="name a file"):
        session.save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing; make it"):
        session.save(tmp_path / "missing" / "session")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"got the device or pipe .*; name a file"):
        session.save(pipe)
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]
