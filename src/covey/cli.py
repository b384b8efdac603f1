"""The command line: one thin function per command, and nothing heavy before it is needed."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
    """Particle filters that keep every hypothesis alive.

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
    from rich.console import Console
    from rich.progress import Progress

    from covey.reproduce import volatility_report as report
    from covey.reproduce.volatility import experiment

    console, aside = Console(highlight=False), Console(stderr=True)
    with Progress(console=aside, transient=True, disable=not aside.is_terminal) as bar:
        task = bar.add_task("filtering (the first run of each filter compiles it)", total=None)
        result = experiment(
            settings, lambda done, total: bar.update(task, completed=done, total=total)
        )
    console.print(report.heading(settings))
    console.print(report.table(result))
    for line in (*report.legend(settings.lag), "", *report.verdict(result), ""):
        console.print(line)
    try:
        for path in report.write(result, out):
            print(f"wrote {path}")
    except OSError as error:
        raise _fail(
            f"could not write to {out}: {error.strerror}; free some space", FAILED
        ) from error
