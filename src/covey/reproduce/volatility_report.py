"""What the stochastic-volatility experiment tells: a table, a verdict, a figure and a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from covey import figures
from covey.reproduce.volatility import METRICS, Result, Settings

PRINTED, PAPER_RIVAL, BEST_RIVAL = "CBF as printed", "BF multinomial", "BF systematic"


def legend(lag: int) -> list[str]:
    """Say what each row of the table is."""
    return [
        "W1 to exact: Wasserstein distance of the particles at T to the exact p(x_T | y_1:T), in "
        "units of x; less is better.",
        "var log Z: variance of the log-evidence between runs on one series; less is better.",
        "mean Z / exact: the estimate of the evidence is unbiased where this is 1.",
        "unique parents: different particles that survive the last resampling.",
        f"ancestors: different particles {lag} steps before T that have descendants at T.",
        "ESS / N after: effective sample size over N right after a resampling.",
    ]


def heading(settings: Settings) -> str:
    """Say what was run."""
    return (
        f"Stochastic volatility: {settings.particles} particles, {settings.steps} steps, "
        f"{settings.clusters} clusters, seed {settings.seed}\n"
        f"{settings.series} series × {settings.runs} runs of each filter; "
        "mean ± standard error over series\n"
    )


def table(result: Result) -> Any:
    """Lay out mean and standard error of every metric and filter as a Rich table."""
    from rich import box
    from rich.table import Table

    laid = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # fits 80 columns
    laid.add_column("", no_wrap=True)
    for name in result.values:
        laid.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for metric, label in METRICS.items():
        laid.add_row(label, *(plus_minus(*result.estimate(name, metric)) for name in result.values))
    return laid


def plus_minus(value: float, error: float) -> str:
    """Write a number with its standard error, to two digits of the error.

    Examples
    --------
    >>> from covey.reproduce.volatility_report import plus_minus
    >>> plus_minus(0.052512, 0.00312), plus_minus(421.6, 17.8), plus_minus(1.0, 0.0)
    ('0.0525 ± 0.0031', '422 ± 18', '1')
    """
    if not error > 1e-5 * abs(value):
        return f"{value:.4g}"
    digits = max(0, 1 - int(np.floor(np.log10(error))))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def verdict(result: Result) -> list[str]:
    """Say what the numbers mean for the paper's claims, in sentences made of the numbers."""
    settings = result.settings
    parents = _compared(result, "parents", PAPER_RIVAL, ("fewer", "more"))
    lines = _compared(result, "ancestors", PAPER_RIVAL, ("fewer", "more"))
    often = _compared(result, "resamplings", PAPER_RIVAL, ("less often", "more often"))
    far = _compared(result, "wasserstein", BEST_RIVAL, ("closer", "farther"))
    noisy = _compared(result, "evidence_variance", BEST_RIVAL, ("steadier", "noisier"))
    holds = {"more": "holds here", "fewer": "does not hold here"}.get(
        lines.word, "is not decided by these runs"
    )
    single = int((result.modes == 1).sum())
    sentences = [
        f"Impoverishment: {PRINTED} has {parents} the unique parents of {PAPER_RIVAL}, resamples "
        f"{often} its rate, and has {lines} its ancestors {settings.lag} steps back: the claim "
        f"that clusters postpone impoverishment {holds}.",
        f"Modes: the exact law has a single mode in {single} of {settings.series} series"
        + (", so that more modes in a histogram are noise." if single else "."),
        f"Accuracy: {PRINTED} has {far} the distance to the exact law of {BEST_RIVAL}, and "
        f"{noisy} its variance of log Z.",
    ]
    if settings.series < 10:
        sentences.append(
            f"Intervals from only {settings.series} series are rough: take more replicates."
        )
    return sentences


@dataclass(frozen=True)
class Compared:
    """A ratio to a rival, its 95% interval, and the word for it."""

    ratio: float
    low: float
    high: float
    word: str

    def __str__(self) -> str:
        return f"{self.ratio:.2f} times ({self.low:.2f} to {self.high:.2f}: {self.word})"


def _compared(result: Result, metric: str, rival: str, words: tuple[str, str]) -> Compared:
    ratio, low, high = result.ratio(metric, PRINTED, rival)
    word = words[0] if high < 1 else words[1] if low > 1 else "no clear difference"
    return Compared(ratio, low, high, word)


def as_json(result: Result) -> str:
    """Everything in the table, with what is needed to repeat it."""
    settings = result.settings
    record = {
        "experiment": "stochastic volatility",
        "settings": asdict(settings) | {"series": settings.series, "runs": settings.runs},
        "versions": {name: version(name) for name in ("covey", "jax", "numpy")},
        "metrics": METRICS,
        "table": {
            name: {
                metric: dict(
                    zip(("value", "standard_error"), result.estimate(name, metric), strict=True)
                )
                for metric in METRICS
            }
            for name in result.values
        },
        "verdict": verdict(result),
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def write(result: Result, directory: Path) -> list[Path]:
    """Write ``volatility.png`` and ``volatility.json``; each is complete or not there at all."""
    picture, numbers = targets(directory)
    draw(result, picture)
    with figures.written_whole(numbers) as part:
        part.write_text(as_json(result), encoding="utf-8")
    return [picture, numbers]


def targets(directory: Path) -> tuple[Path, Path]:
    """Name the files that :func:`write` makes."""
    return directory / "volatility.png", directory / "volatility.json"


def draw(result: Result, path: Path) -> None:
    """Draw the paper's two histograms with the exact density, and below them all runs."""
    settings = result.settings
    with figures.figure(path, 7.2, 5.4) as canvas:
        canvas.suptitle(
            f"Stochastic volatility after {settings.steps} steps, "
            f"{settings.particles} particles, {settings.clusters} clusters"
        )
        grid = canvas.add_gridspec(2, 6, height_ratios=[1.5, 1])
        left = canvas.add_subplot(grid[0, :3])
        right = canvas.add_subplot(grid[0, 3:], sharex=left, sharey=left)
        edges = _edges(result)
        _histogram(left, result, PAPER_RIVAL, "a  Bootstrap filter (BF)", edges)
        _histogram(right, result, PRINTED, "b  Clustering-based filter (CBF)", edges)
        left.set_ylim(0, 1.45 * left.get_ylim()[1])  # room for what is written above the bars
        left.set_ylabel("probability density")
        right.tick_params(labelleft=False)
        below = {
            "wasserstein": ("c  W1 to exact", "less is better"),
            "evidence_variance": ("d  Variance of log Z", "less is better"),
            "ancestors": ("e  Ancestors", f"{settings.lag} steps back; more is better"),
        }
        for place, (metric, (title, label)) in enumerate(below.items()):
            axes = canvas.add_subplot(grid[1, 2 * place : 2 * place + 2])
            _intervals(axes, result, metric, title)
            axes.set_xlabel(label)
            axes.tick_params(labelleft=place == 0)
        canvas.supxlabel(
            "a, b: one run of each. c, d, e: small dots are series; large ones are their mean, "
            "with its 95% interval.",
            fontsize="small",
        )


COLOURS = {"BF": figures.BLUE, "CBF": figures.ORANGE}


def _colour(name: str) -> str:
    return COLOURS[name.partition(" ")[0]]


def _edges(result: Result) -> np.ndarray:
    """Borders of the bars, the same for all filters: where nearly all the exact mass is."""
    x, density = result.exact.x, result.exact.density
    cdf = np.cumsum(density) / density.sum()
    low, high = np.interp([0.0005, 0.9995], cdf, x)
    return np.linspace(low, high, 46)


def _histogram(axes: Any, result: Result, name: str, title: str, edges: np.ndarray) -> None:
    sample = result.samples[name]
    heights = np.histogram(sample.x, edges, weights=sample.weights)[0] / np.diff(edges)
    axes.stairs(heights, edges, fill=True, color=_colour(name), alpha=0.55, label="particles")
    inside = (result.exact.x >= edges[0]) & (result.exact.x <= edges[-1])
    x, density = result.exact.x[inside], result.exact.density[inside]
    axes.plot(x, density, color=figures.BLACK, linewidth=1.4, label="exact")
    axes.plot(result.state, 0, "^", color=figures.BLACK, clip_on=False, label="true state")
    axes.set(title=title, xlabel="log-volatility $x_T$", xlim=(edges[0], edges[-1]))
    axes.legend(loc="upper left", handlelength=1.4)
    seen = sample.measured
    text = (
        f"W1 {seen['wasserstein']:.3f}\n{seen['parents']:.0f} unique parents\n"
        f"{seen['ancestors']:.0f} ancestors {result.settings.lag} steps back"
    )
    axes.text(0.98, 0.96, text, transform=axes.transAxes, ha="right", va="top")


def _intervals(axes: Any, result: Result, metric: str, title: str) -> None:
    """Every series as a faint dot, their mean and 95% interval on top."""
    for row, (name, values) in enumerate(result.values.items()):
        mean, error = result.estimate(name, metric)
        colour = _colour(name)
        axes.plot(values[metric], np.full(len(values[metric]), row), ".", color=colour, alpha=0.25)
        axes.errorbar(mean, row, xerr=1.96 * error, fmt="o", color=colour, capsize=3)
    axes.set(title=title, yticks=range(len(result.values)), yticklabels=list(result.values))
    axes.set_ylim(len(result.values) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
