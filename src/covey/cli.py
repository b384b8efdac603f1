"""The command line: one thin function per command, and nothing heavy before it is needed."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from covey.reproduce.volatility import Settings

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
reproduce = typer.Typer(invoke_without_command=True)
app.add_typer(reproduce, name="reproduce")

FAILED, REFUSED, STOPPED = 1, 2, 130


def main() -> None:
    """Run the command ``covey`` and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± still shows the numbers
    try:
        code = app(prog_name="covey", standalone_mode=False) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has had enough, as head has; Python would complain again when it closes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except Exception as error:
        # Typer's errors about options; which library defines their class depends on its version.
        if not hasattr(error, "format_message"):
            raise
        place = getattr(getattr(error, "ctx", None), "command_path", "covey")
        code = _complain(f"{error.format_message().rstrip('.')}; see {place} --help", REFUSED)
    if code == STOPPED:
        _complain("stopped", STOPPED)
    raise SystemExit(code)


def _complain(message: str, code: int) -> int:
    print(f"covey: {message}", file=sys.stderr)
    return code


def _fail(message: object, code: int) -> typer.Exit:
    return typer.Exit(_complain(str(message), code))


def _show_version(wanted: bool) -> None:
    if wanted:
        from covey import __version__

        print(f"covey {__version__}")
        raise typer.Exit


@app.callback()
def covey(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Particle filters that keep every hypothesis alive, and k-means that starts well.

    Exit codes: 0 done, 1 failed, 2 refused before anything was computed, 130 stopped by Ctrl-C.
    """
    _help_if_alone(context)


@reproduce.callback()
def experiments(context: typer.Context) -> None:
    """Repeat an experiment of the paper."""
    _help_if_alone(context)


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


class Method(StrEnum):
    """How k-means starts."""

    collapse = "collapse"
    polish = "polish"
    paper = "paper"


class Scale(StrEnum):
    """What is done to columns before they are compared."""

    none = "none"
    standard = "standard"


@app.command()
def cluster(
    file: Annotated[Path, typer.Argument(help="Table: csv, tsv, parquet, npy or npz.")],
    clusters: Annotated[int, typer.Option("--clusters", "-k", help="How many clusters.")],
    method: Annotated[
        Method,
        typer.Option(help="collapse: fast; polish: closer to the best; paper: as published."),
    ] = Method.collapse,
    columns: Annotated[
        str | None, typer.Option(help="Names of columns, with commas between.", show_default="all")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Name of the column with the weights of rows.")
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="standard: divide columns by their standard deviation.")
    ] = Scale.none,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header", help="Does the csv begin with names?", show_default="found out"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the label of each row: csv, tsv, parquet or npy.")
    ] = None,
    centres: Annotated[
        Path | None, typer.Option(help="Write the centres: csv, tsv, parquet or npy.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the clusters: png, pdf or svg.")] = None,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same clusters.", min=0, max=2**32 - 1)
    ] = 0,
) -> None:
    """Cluster the rows of a table by k-means that starts well.

    Prints k, the inertia and the size of each cluster. Writes only what is asked for, each file
    whole or not at all.
    """
    from covey import cluster_report as report
    from covey import figures, files

    with _refusing():
        _check_outputs(file, out, centres, plot)
        kmeans = report.estimator(clusters, method, seed)
        if plot is not None:
            figures.need_matplotlib()
    with _refusing(), _working() as stage:
        stage(f"reading {file.name}")
        table, masses = files.read_weighted(file, columns, weights, header)
        for remark in table.remarks:
            print(f"covey: {remark}", file=sys.stderr)
        stage(f"clustering {len(table.values):,} rows")
        found = report.cluster(table, kmeans, scale, masses)
    _show_clusters(found, report.heading(found, method, scale, weights))
    _write_clusters(found, out, centres, plot)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn what is wrong with the input into one line: what is missing fails, the rest refuses."""
    try:
        yield
    except ImportError as error:
        raise _fail(error, FAILED) from error
    except ValueError as error:
        raise _fail(error, REFUSED) from error
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else "the file"
        raise _fail(f"cannot use {where}: {error.strerror or error}", REFUSED) from error


@contextmanager
def _working() -> Iterator[Any]:
    """Show on a terminal that something goes on: a function that says what."""
    from rich.console import Console
    from rich.progress import Progress

    aside = Console(stderr=True)
    with Progress(console=aside, transient=True, disable=not aside.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda message: bar.update(task, description=message)


def _check_outputs(file: Path, out: Path | None, centres: Path | None, plot: Path | None) -> None:
    """See that files can be written before anything is computed."""
    from covey import files

    for path in (out, centres):
        if path is not None:
            files.check_writable(path)
    if plot is not None:
        if plot.suffix not in (".png", ".pdf", ".svg"):
            raise ValueError(f"--plot must end in .png, .pdf or .svg, got {plot.name}")
        files.check_place(plot)
    named = [path.resolve() for path in (file, out, centres, plot) if path is not None]
    if len(set(named)) < len(named):
        raise ValueError("the table and what is written must be different files")


def _show_clusters(found: Any, heading: str) -> None:
    from rich.console import Console

    from covey import cluster_report as report

    for remark in found.remarks:
        print(f"covey: warning: {remark}", file=sys.stderr)
    console = Console(highlight=False, markup=False)
    console.print(heading, soft_wrap=True)
    console.print(report.table(found))
    left = report.rest(found)
    if left:
        console.print(left)


def _write_clusters(found: Any, out: Path | None, centres: Path | None, plot: Path | None) -> None:
    from covey import cluster_report as report
    from covey import files

    try:
        if out is not None:
            files.write_table(out, ["cluster"], found.labels[:, None])
        if centres is not None:
            files.write_table(centres, list(found.names), found.centres)
        if plot is not None:
            report.draw(found, plot)
    except OSError as error:
        raise _fail(f"could not write: {error.strerror}; free some space", FAILED) from error
    written = [path for path in (out, centres, plot) if path is not None]
    if written:
        print()
    for path in written:
        print(f"wrote {path}")


@reproduce.command()
def volatility(
    replicates: Annotated[
        int | None,
        typer.Option(help="Runs of each filter, over at most 20 series.", show_default="40"),
    ] = None,
    particles: Annotated[int | None, typer.Option(help="Particles.", show_default="1000")] = None,
    steps: Annotated[int, typer.Option(help="Steps of a series.")] = 40,
    clusters: Annotated[int, typer.Option("--clusters", "-k", help="Clusters of the CBF.")] = 10,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory to write to.")] = Path("outputs"),
    quick: Annotated[
        bool, typer.Option("--quick", help="4 replicates of 200 particles, to see that it works.")
    ] = False,
) -> None:
    """Bootstrap filter against clustering-based filter on stochastic volatility.

    Prints a table of errors against the exact filter and what it means for the paper's claims.

    Writes volatility.png (the paper's histograms, and more) and volatility.json (the table).
    """
    from covey import figures
    from covey.reproduce.volatility import Settings

    usual = (4, 200) if quick else (40, 1000)
    try:
        settings = Settings(
            replicates=usual[0] if replicates is None else replicates,
            particles=usual[1] if particles is None else particles,
            steps=steps,
            clusters=clusters,
            seed=seed,
        )
    except ValueError as error:
        raise _fail(error, REFUSED) from error
    try:
        figures.need_matplotlib()
    except ImportError as error:
        raise _fail(error, FAILED) from error
    _check_directory(out, ["volatility.png", "volatility.json"])
    _reproduce_volatility(settings, out)


@reproduce.command()
def seeding(
    datasets: Annotated[
        int | None, typer.Option(help="Simulated data sets.", show_default="200")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory to write to.")] = Path("outputs"),
    quick: Annotated[
        bool, typer.Option("--quick", help="20 data sets, to see that it works.")
    ] = False,
) -> None:
    """How often k-means falls into a bad minimum, by how it starts: the paper's Table 1.

    Prints failures with intervals beside the printed ones, and what they mean for the paper's
    claim.

    Writes seeding.png (the paper's figures, and the rates) and seeding.json (the table).
    """
    from covey import figures
    from covey.reproduce import seeding as experiment
    from covey.reproduce import seeding_report as report

    try:
        figures.need_matplotlib()
        experiment.methods()
    except ImportError as error:
        raise _fail(error, FAILED) from error
    usual = 20 if quick else 200
    with _refusing():
        settings = experiment.Settings(usual if datasets is None else datasets, seed)
    _check_directory(out, ["seeding.png", "seeding.json"])
    with _counting("k-means on data sets") as progress:
        result = experiment.experiment(settings, progress)
    lines = (*report.legend(), "", *report.verdict(result), "")
    _show(report.heading(settings), report.table(result), lines)
    _write(out, lambda: report.write(result, out))


def _check_directory(directory: Path, names: list[str]) -> None:
    """Make the directory and see that these files can be written there: before the computing."""
    import tempfile

    advice = "choose another directory with --out"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        reason = f"expected a directory to write to, got {directory} ({error.strerror}); {advice}"
        raise _fail(reason, REFUSED) from error
    for name in names:
        if (directory / name).is_dir():
            reason = f"expected a file to write, got the directory {directory / name}; {advice}"
            raise _fail(reason, REFUSED)


def _reproduce_volatility(settings: Settings, out: Path) -> None:
    from covey.reproduce import volatility_report as report
    from covey.reproduce.volatility import experiment

    with _counting("filtering (the first run of each filter compiles it)") as progress:
        result = experiment(settings, progress)
    lines = (*report.legend(settings.lag), "", *report.verdict(result), "")
    _show(report.heading(settings), report.table(result), lines)
    _write(out, lambda: report.write(result, out))


@contextmanager
def _counting(task: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far an experiment is: a function of how much is done of how much."""
    from rich.console import Console
    from rich.progress import Progress

    aside = Console(stderr=True)
    with Progress(console=aside, transient=True, disable=not aside.is_terminal) as bar:
        running = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(running, completed=done, total=total)


def _show(heading: str, table: Any, lines: Iterable[str]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for part in (heading, table, *lines):
        console.print(part)


def _write(out: Path, write: Callable[[], list[Path]]) -> None:
    try:
        written = write()
    except OSError as error:
        raise _fail(
            f"could not write to {out}: {error.strerror}; free some space", FAILED
        ) from error
    for path in written:
        print(f"wrote {path}")
