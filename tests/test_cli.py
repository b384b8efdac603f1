"""The command does what its help says, and tells users rather than developers what is wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import covey
from covey import cli
from covey.files import read_table
from covey.reproduce import seeding, volatility
from covey.reproduce.volatility import METRICS

FILTERS = ["BF multinomial", "BF systematic", "CBF as printed", "CBF systematic"]


class Said(NamedTuple):
    """What the command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def say(monkeypatch, capsys):
    """Run the command in this process, as its entry point does."""

    def run(*arguments) -> Said:
        monkeypatch.setattr(sys, "argv", ["covey", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return Said(stopped.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def nothing_computes(monkeypatch):
    """Fail the test if an experiment or a fit begins."""

    def begun(*_, **__):
        raise AssertionError("the experiment has begun")

    for experiment in (volatility, seeding):
        monkeypatch.setattr(experiment, "experiment", begun)
    monkeypatch.setattr(covey.SSMCKMeans, "fit", begun)


def in_a_process(*arguments, **options) -> Said:
    """Run the command in a process of its own."""
    command = [sys.executable, "-c", "from covey.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    return Said(done.returncode, done.stdout, done.stderr)


def is_one_line(said: Said) -> bool:
    return said.err.startswith("covey: ") and said.err.count("\n") == 1


# Asking


def test_alone_it_shows_its_help(say):
    alone = say()
    assert alone == say("--help") == say("-h")
    assert alone.code == 0
    assert not alone.err
    assert "Particle filters that keep every hypothesis alive" in alone.out
    assert "reproduce" in alone.out
    assert "Exit codes: 0 done, 1 failed, 2 refused" in " ".join(alone.out.split())


def test_a_group_alone_shows_its_help(say):
    alone = say("reproduce")
    assert alone == say("reproduce", "-h")
    assert alone.code == 0
    assert "volatility" in alone.out


@pytest.mark.parametrize(
    ("command", "page", "options"),
    [
        ("reproduce seeding", "reproduce", "datasets seed out quick"),
        (
            "cluster",
            "clustering",
            "clusters method columns weights scale header no-header out centres plot seed",
        ),
    ],
)
def test_help_names_every_option_and_the_documentation_too(
    say, command, page, options, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    said = say(*command.split(), "--help")
    assert said.code == 0
    documented = (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text()
    found = set(re.findall(r"--([a-z-]+)", said.out)) - {"help"}
    assert found == set(options.split())
    for option in found:
        assert f"`--{option}`" in documented


def test_help_of_the_experiment_names_every_option_and_its_default(say):
    said = say("reproduce", "volatility", "--help")
    assert said.code == 0
    documented = (Path(__file__).parents[1] / "docs" / "reproduce.md").read_text()
    for option in ("replicates", "particles", "steps", "clusters", "seed", "out", "quick"):
        assert f"--{option}" in said.out
        assert f"`--{option}`" in documented
    usual = volatility.Settings()
    defaults = (usual.replicates, usual.particles, usual.steps, usual.clusters, usual.seed)
    printed = re.findall(r"\[default: \(?(\w+)\)?\]", said.out)
    assert printed == [*map(str, defaults), "outputs"]


def test_version(say):
    assert say("--version") == Said(0, f"covey {covey.__version__}\n", "")


# Refusing


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["reproduc"], "No such command 'reproduc'"),
        (["reproduce", "nothing"], "No such command 'nothing'"),
        (["--colour"], "No such option"),
        (["reproduce", "volatility", "--particle-count", "5"], "No such option"),
        (["reproduce", "volatility", "--particles"], "requires an argument"),
        (["reproduce", "volatility", "--particles", "many"], "Invalid value for '--particles'"),
        (["reproduce", "volatility", "--particles", "1.5"], "Invalid value for '--particles'"),
        (["reproduce", "volatility", "surplus"], "unexpected extra argument"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("nothing_computes")
def test_misspelt_commands_are_refused(say, arguments, reason):
    said = say(*arguments)
    assert said.code == 2
    assert is_one_line(said)
    assert reason in said.err
    assert re.search(r"; see covey( reproduce( volatility)?)? --help$", said.err)
    if "option" in reason and "volatility" in arguments:
        assert "see covey reproduce volatility --help" in said.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--replicates", "0"], "replicates must be from 4 to 100000, got 0; raise it to 4"),
        (["--particles", "-5"], "particles must be from 2 to 100000, got -5; raise it to 2"),
        (["--steps", "0"], "steps must be from 1 to 10000, got 0"),
        (["--clusters", "1001"], "clusters must be from 1 to 1000, got 1001; lower it to 1000"),
        (["--quick", "-k", "201"], "clusters must be from 1 to 200, got 201"),
        (["--seed", "-1"], "seed must be from 0 to 4294967295, got -1"),
        (["--particles", "100000", "--steps", "11"], "must be at most 1000000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("nothing_computes")
def test_numbers_out_of_range_are_refused(say, tmp_path, arguments, reason):
    said = say("reproduce", "volatility", *arguments, "--out", tmp_path / "new")
    assert said.code == 2
    assert is_one_line(said)
    assert reason in said.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
@pytest.mark.usefixtures("nothing_computes")
def test_a_file_in_the_way_is_refused(say, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    said = say("reproduce", "volatility", "--out", tmp_path / place)
    assert said.code == 2
    assert is_one_line(said)
    assert f"expected a directory to write to, got {tmp_path / place} (" in said.err
    assert "--out" in said.err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["volatility.png", "volatility.json"])
@pytest.mark.usefixtures("nothing_computes")
def test_a_directory_in_the_way_is_refused(say, tmp_path, name):
    (tmp_path / name).mkdir()
    said = say("reproduce", "volatility", "--out", tmp_path)
    assert said.code == 2
    assert is_one_line(said)
    assert f"got the directory {tmp_path / name}" in said.err


@pytest.mark.usefixtures("nothing_computes")
def test_a_directory_without_permission_is_refused(say, tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    said = say("reproduce", "volatility", "--out", tmp_path)
    assert said.code == 2
    assert is_one_line(said)
    assert "(Permission denied)" in said.err


@pytest.mark.usefixtures("nothing_computes")
def test_without_matplotlib_it_names_the_extra(say, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = say("reproduce", "volatility", "--out", tmp_path / "new")
    assert said == Said(1, "", "covey: figures need Matplotlib: pip install 'covey[figures]'\n")
    assert not (tmp_path / "new").exists()


# Failing and stopping


def test_interrupted_it_says_so(say, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(volatility, "experiment", interrupted)
    said = say("reproduce", "volatility", "--out", tmp_path)
    assert said.code == 130
    assert said.err.strip() == "covey: stopped"
    assert not list(tmp_path.iterdir())


def test_an_error_of_our_own_keeps_its_traceback(monkeypatch, tmp_path):
    """What no user can mend is not dressed up as a wrong option."""

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(volatility, "experiment", broken)
    monkeypatch.setattr(sys, "argv", ["covey", "reproduce", "volatility", "--out", str(tmp_path)])
    with pytest.raises(ZeroDivisionError):
        cli.main()


# Running


@cache
def quick_run() -> tuple[Said, Path]:
    """A first run, into a directory that is not there yet, on a terminal that knows ASCII only."""
    place = Path(tempfile.mkdtemp()) / "not" / "yet"
    plain = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "ascii", "TERM": "dumb"}
    return in_a_process("reproduce", "volatility", "--quick", "--out", place, env=plain), place


@pytest.mark.slow
def test_the_experiment_prints_a_table_and_what_it_means():
    said, place = quick_run()
    assert said.code == 0, said.err
    assert not said.err
    assert "200 particles, 40 steps, 10 clusters, seed 0" in said.out
    for label in METRICS.values():
        assert f"\n{label}" in said.out
    for sentence in ("Impoverishment: ", "Modes: ", "Accuracy: "):
        assert f"\n{sentence}" in said.out
    assert said.out.endswith(
        f"wrote {place / 'volatility.png'}\nwrote {place / 'volatility.json'}\n"
    )


@pytest.mark.slow
def test_the_experiment_writes_its_files_and_nothing_else():
    _, place = quick_run()
    assert {path.name for path in place.iterdir()} == {"volatility.png", "volatility.json"}


@pytest.mark.slow
def test_the_picture_is_one():
    from matplotlib.image import imread

    pixels = imread(quick_run()[1] / "volatility.png")
    assert pixels.shape[0] > 800
    assert pixels.shape[1] > 1000
    assert 0.02 < (pixels[..., :3].min(-1) < 0.9).mean() < 0.6  # neither blank nor black


@pytest.mark.slow
def test_the_file_has_every_number_of_the_table():
    said, place = quick_run()
    record = json.loads((place / "volatility.json").read_text(encoding="utf-8"))
    expected = {"replicates": 4, "particles": 200, "steps": 40, "clusters": 10, "seed": 0}
    assert record["settings"] == {**expected, "series": 2, "runs": 2}
    assert record["versions"]["covey"] == covey.__version__
    assert list(record["table"]) == FILTERS
    for measured in record["table"].values():
        assert set(measured) == set(METRICS) == set(record["metrics"])
        for number in measured.values():
            assert np.isfinite([number["value"], number["standard_error"]]).all()
    assert "NaN" not in (place / "volatility.json").read_text()
    assert record["verdict"][0] in " ".join(said.out.split())


def test_same_seed_same_file_and_another_seed_another(say, tmp_path, monkeypatch):
    """With one filter under all four names, which is compiled once."""
    model = covey.models.StochasticVolatility()
    same = dict.fromkeys(FILTERS, covey.bootstrap(model, 20))
    monkeypatch.setattr(volatility, "filters", lambda *_: same)
    files = []
    for seed in (0, 0, 1):
        sizes = ("--replicates", "4", "--particles", "20", "--steps", "3")
        said = say("reproduce", "volatility", *sizes, "--seed", seed, "--out", tmp_path)
        assert said.code == 0
        files.append((tmp_path / "volatility.json").read_text())
    assert files[0] == files[1]
    assert json.loads(files[2])["table"] != json.loads(files[0])["table"]


# Seeding


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--datasets", "1"], "datasets must be from 2 to 1000000, got 1; raise it to 2"),
        (["--seed", "-1"], "seed must be from 0 to 4294967295, got -1"),
        (["--datasets", "few"], "Invalid value for '--datasets'"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("nothing_computes")
def test_seeding_refuses_numbers_out_of_range(say, tmp_path, arguments, reason):
    said = say("reproduce", "seeding", *arguments, "--out", tmp_path / "new")
    assert said.code == 2
    assert is_one_line(said)
    assert reason in said.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("extra", ["figures", "cluster"])
@pytest.mark.usefixtures("nothing_computes")
def test_seeding_names_the_extra_that_is_missing(say, tmp_path, monkeypatch, extra):
    if extra == "cluster":
        monkeypatch.setattr(covey, "__getattr__", without_scikit_learn)
    else:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = say("reproduce", "seeding", "--out", tmp_path / "new")
    assert said.code == 1
    assert is_one_line(said)
    assert f"pip install 'covey[{extra}]'" in said.err
    assert not (tmp_path / "new").exists()


def without_scikit_learn(name):
    raise ImportError(f"covey.{name} needs scikit-learn: pip install 'covey[cluster]'")


def test_seeding_prints_a_table_and_a_verdict_and_writes_its_files(say, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = say("reproduce", "seeding", "--datasets", "5", "--seed", "3", "--out", tmp_path)
    assert said.code == 0
    assert not said.err
    table = said.out.split("failed: ")[0]
    assert "…" not in table  # nothing is cut off on a narrow terminal
    for name in seeding.DESCRIBED:
        assert f"\n{name} " in table
        assert f"\n{name}: " in said.out
    assert table.count("(1/15)") == table.count("(3/15)") == table.count("(4/15)") == 1
    for sentence in ("In print: ", "The claim: ", "Reproduction: ", "Not in print", "Covey's: "):
        assert f"\n{sentence}" in said.out
    paths = [tmp_path / "seeding.png", tmp_path / "seeding.json"]
    assert said.out.endswith("".join(f"wrote {path}\n" for path in paths))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    record = json.loads(paths[1].read_text(encoding="utf-8"))
    assert record["settings"] == {"datasets": 5, "seed": 3}
    assert record["verdict"][0] in " ".join(said.out.split())


# Clustering a table


@pytest.fixture
def table(tmp_path) -> Path:
    """Three groups in the columns a and b, a name, and a weight: sixty rows."""
    rng = np.random.default_rng(0)
    x = np.repeat([[0, 0], [9, 0], [0, 9]], 20, axis=0) + rng.normal(scale=0.5, size=(60, 2))
    rows = [f"{a},{b},row {j},{j % 3}" for j, (a, b) in enumerate(x)]
    path = tmp_path / "table.csv"
    path.write_text("a,b,name,w\n" + "\n".join(rows) + "\n")
    return path


def test_clusters_are_printed_and_written(say, table, tmp_path):
    out, centres, plot = tmp_path / "l.csv", tmp_path / "c.parquet", tmp_path / "p.png"
    files = ("--out", out, "--centres", centres, "--plot", plot)
    said = say("cluster", table, "-k", "3", "--columns", "a,b", *files)
    assert (said.code, said.err) == (0, "")
    assert "k = 3, 60 rows, 2 columns (a, b)\n" in said.out
    assert said.out.count(" 20 ") == 3
    assert said.out.endswith(f"\nwrote {out}\nwrote {centres}\nwrote {plot}\n")
    labels = read_table(out)
    assert labels.names == ("cluster",)
    groups = labels.values.ravel().reshape(3, 20)
    assert (groups == groups[:, :1]).all()
    x = read_table(table, ["a", "b"]).values
    found = read_table(centres)
    assert found.names == ("a", "b")
    means = [x[labels.values.ravel() == j].mean(0) for j in range(3)]
    np.testing.assert_allclose(found.values, means)
    inertia = ((x - found.values[labels.values.ravel().astype(int)]) ** 2).sum()
    assert f"inertia {inertia:.6g}, method collapse" in said.out


@pytest.mark.parametrize("method", ["collapse", "polish", "paper"])
def test_same_seed_same_clusters_by_every_method(say, table, tmp_path, method):
    said = []
    for name in ("one.npy", "two.npy"):
        options = ("--columns", "a,b", "--method", method, "--out", tmp_path / name)
        said.append(say("cluster", table, "-k", "5", *options).out.partition("wrote")[0])
    assert said[0] == said[1]
    assert f"method {method}\n" in said[0]
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))


def test_weights_weigh_rows(say, table, tmp_path):
    centres = tmp_path / "c.csv"
    options = ("--columns", "a,b", "--weights", "w", "--centres", centres)
    said = say("cluster", table, "-k", "1", *options)
    assert (said.code, said.err) == (0, "")
    assert "2 columns (a, b), rows weighed by w\n" in said.out
    x = read_table(table, ["a", "b", "w"]).values
    expected = np.average(x[:, :2], axis=0, weights=x[:, 2])
    np.testing.assert_allclose(read_table(centres).values, [expected])
    assert f" {x[:, 2].sum():g} " in said.out


def test_scaled_columns_have_the_same_say(say, tmp_path):
    """The group shows in the column of small numbers only; centres are in the file's units."""
    rng = np.random.default_rng(1)
    small = np.repeat([0.0, 1.0], 50) + rng.normal(scale=0.05, size=100)
    path, centres, labels = (tmp_path / name for name in ("x.npy", "c.npy", "l.npy"))
    np.save(path, np.column_stack([1000 * rng.uniform(size=100), small]))
    options = ("--scale", "standard", "--centres", centres, "--out", labels)
    assert "divided by their standard deviation" in say("cluster", path, "-k", 4, *options).out
    found = np.load(centres)
    assert 0 <= found[:, 0].min() < found[:, 0].max() <= 1000
    assert sorted(found[:, 1].round()) == [0, 0, 1, 1]
    say("cluster", path, "-k", 4, *options[2:])
    assert sorted(np.load(centres)[:, 1].round(1)) != [0, 0, 1, 1]


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_pictures_have_no_more_than_two_dimensions(say, tmp_path, columns, monkeypatch):
    from matplotlib.image import imread

    from covey import cluster_report

    monkeypatch.setattr(cluster_report, "SHOWN_POINTS", 100)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, columns)))
    said = say("cluster", tmp_path / "x.npy", "-k", "40", "--plot", tmp_path / "p.png")
    assert said.code == 0
    pixels = imread(tmp_path / "p.png")
    assert 0.01 < (pixels[..., :3].min(-1) < 0.9).mean() < 0.6


def test_many_clusters_are_summed_up(say, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(50.0)[:, None])
    said = say("cluster", tmp_path / "x.npy", "-k", "45").out
    assert re.search(r"\.\.\. and 5 more, of 1 to [12] rows\n", said)


def test_warnings_are_one_line_each(say, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((50, 2)))
    said = say("cluster", tmp_path / "x.npy", "-k", "3")
    assert said.code == 0
    assert is_one_line(said)
    assert "covey: warning: Number of distinct clusters (1)" in said.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["table.csv", "-k", "3"], "has text in column name ('row 0', for example)"),
        (["table.csv", "-k", "3", "--columns", "a,q"], "has no column q; it has a, b, name, w"),
        (["table.csv", "-k", "61", "--columns", "a"], "k must be from 1 to 60, the number of rows"),
        (["table.csv", "-k", "0", "--columns", "a"], "k must be from 1 to 60"),
        (["table.csv", "-k", "3", "--columns", "a", "--weights", "q"], "has no column q"),
        (["table.csv", "-k", "3", "--columns", "w", "--weights", "w"], "has no column beside w"),
        (["table.csv", "-k", "3", "--columns", "a", "--out", "l.xls"], "must end in one of"),
        (["table.csv", "-k", "3", "--columns", "a", "--out", "no/l.csv"], "no directory no"),
        (["table.csv", "-k", "3", "--columns", "a", "--plot", "p.bmp"], "--plot must end in"),
        (["table.csv", "-k", "3", "--columns", "a", "--out", "table.csv"], "different files"),
        (["table.csv", "-k", "3", "--method", "best"], "Invalid value for '--method'"),
        (["table.csv"], "Missing option '--clusters' / '-k'; see covey cluster --help"),
        (["nothing.csv", "-k", "3"], "no such file: nothing.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("nothing_computes")
def test_clustering_refuses(say, table, monkeypatch, arguments, reason):
    monkeypatch.chdir(table.parent)
    said = say("cluster", *arguments)
    assert said.code == 2
    assert not said.out
    assert is_one_line(said)
    assert reason in said.err
    assert list(table.parent.iterdir()) == [table]


def test_clustering_refuses_negative_weights(say, tmp_path):
    (tmp_path / "x.csv").write_text("a,w\n1,1\n2,-1\n")
    said = say("cluster", tmp_path / "x.csv", "-k", "1", "--weights", "w")
    assert said.code == 2
    assert "Negative values in sample_weight" in said.err
    assert is_one_line(said)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_table_that_may_not_be_read_is_refused(say, table):
    table.chmod(0)
    said = say("cluster", table, "-k", "3")
    assert said.code == 2
    assert "Permission denied" in said.err


def test_a_full_disk_is_told(say, table, tmp_path, monkeypatch):
    from covey import files

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_table", full)
    said = say("cluster", table, "-k", "3", "--columns", "a", "--out", tmp_path / "l.csv")
    assert said.code == 1
    assert said.err == "covey: could not write: No space left on device; free some space\n"


def test_clustering_names_the_extra_that_is_missing(say, table, monkeypatch):
    monkeypatch.setattr(covey, "__getattr__", without_scikit_learn)
    said = say("cluster", table, "-k", "3")
    assert said.code == 1
    assert said.err.endswith("needs scikit-learn: pip install 'covey[cluster]'\n")


def test_the_installed_command_is_the_entry_point():
    from importlib.metadata import entry_points

    (found,) = entry_points(group="console_scripts", name="covey")
    assert found.load() is cli.main


def test_ctrl_c_stops_a_process_with_its_code(tmp_path):
    """From outside, where signals arrive while JAX compiles."""
    waiting = (
        "import covey.reproduce.volatility as v, time\n"
        "def wait(*_):\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        "v.experiment = wait\n"
        "from covey.cli import main; main()"
    )
    arguments = [sys.executable, "-c", waiting, "reproduce", "volatility", "--out", str(tmp_path)]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "covey: stopped"


@pytest.mark.parametrize("module", ["covey", "covey.cli"])
def test_importing_is_light(module):
    """Optional libraries are imported where they are used; the command needs Typer at once."""
    heavy = {"matplotlib", "xarray", "scipy", "sklearn", "h5netcdf", "pyarrow"}
    heavy |= {"typer", "rich"} if module == "covey" else set()
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_reader_that_leaves_is_no_error():
    """As in ``covey --help | head -1``: no traceback, and nothing about files."""
    covey = subprocess.Popen(
        [sys.executable, "-c", "from covey.cli import main; main()", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    covey.stdout.close()
    assert covey.stderr.read() == b""
    assert covey.wait() == 1
