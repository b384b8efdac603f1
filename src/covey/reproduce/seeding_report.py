"""What the seeding experiment tells: a table, a verdict, a figure and a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import linear_sum_assignment

from covey import figures
from covey.reproduce.seeding import (
    BREATHING,
    COLLAPSE,
    DESCRIBED,
    FARTHEST,
    GREEDY,
    MEANS,
    PAPER,
    PER_CLUSTER,
    PLAIN,
    POLISH,
    PRINTED,
    PRINTED_FIRST,
    PRINTED_RUNS,
    RANDOM,
    SMALL_BATCHES,
    TOLERANCE,
    K,
    Result,
    Settings,
    printed_p,
)

DECIDED = 0.05
TIMES = (0, 4, 8, 18)
"""The generations that the paper shows."""


def heading(settings: Settings) -> str:
    """Say what was run."""
    return (
        f"Seeding of k-means: {settings.datasets} data sets, {K} clusters of {PER_CLUSTER} points, "
        f"seed {settings.seed}\none start of each method on each data set\n"
    )


def legend() -> list[str]:
    """Say what each row of the table is."""
    return [
        f"failed: inertia above {TOLERANCE} times the best known; the interval is Wilson's.",
        "first: the first data set that failed. inertia: over the best known, the mean.",
        *(f"{name}: {text}." for name, text in DESCRIBED.items()),
    ]


def table(result: Result) -> Any:
    """Lay out failures, their rate and the printed one of every method as a Rich table."""
    from rich import box
    from rich.table import Table

    laid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    laid.add_column("", no_wrap=True)
    for title in ("failed", "%", "95% interval", "first", "inertia", "in print"):
        laid.add_column(title, justify="right", no_wrap=True)
    for name in DESCRIBED:
        printed = _printed(name)
        if name not in result.inertia:
            laid.add_row(name, "", "", "not installed", "", "", printed)
            continue
        failed = result.failed(name)
        rate, low, high = result.rate(name)
        ratio = (result.inertia[name] / result.best).mean()
        laid.add_row(
            name,
            str(failed.sum()),
            f"{100 * rate:.2f}",
            f"{100 * low:.2f} to {100 * high:.2f}",
            str(failed.argmax() + 1) if failed.any() else "none",
            f"{ratio:.4f}",
            printed,
        )
    return laid


def _printed(name: str) -> str:
    if name not in PRINTED:
        return ""
    return f"{100 * PRINTED[name] / PRINTED_RUNS:.1f} ({PRINTED[name]}/{PRINTED_RUNS})"


def verdict(result: Result) -> list[str]:
    """Say what the numbers mean for the paper's claim, in sentences made of the numbers."""
    lines = [_print_decides(), _claim(result), _agreement(result), _today(result)]
    ours = ", ".join(
        f"{name} on {int(result.failed(name).sum())} (at most {result.rate(name)[2]:.2%} by its "
        "interval)"
        for name in (COLLAPSE, POLISH)
    )
    lines.append(f"Covey's: of {len(result.best)} data sets {ours}.")
    if len(result.best) < 1000:
        lines.append(
            f"Rates from only {len(result.best)} data sets are rough: take more with --datasets."
        )
    return lines


def _print_decides() -> str:
    """What the counts in print can show by themselves."""
    ps = [printed_p(PAPER, rival) for rival in (PLAIN, RANDOM)]
    word = "are too few to decide" if min(ps) > DECIDED else "decide"
    return (
        f"In print: of {PRINTED_RUNS} data sets SSMC fails on {PRINTED[PAPER]}, {PLAIN} on "
        f"{PRINTED[PLAIN]} and {RANDOM} starts on {PRINTED[RANDOM]}. These {word}: Fisher's exact "
        f"test gives p = {ps[0]:.2f} and {ps[1]:.2f}."
    )


def _claim(result: Result) -> str:
    word, ps = _less_often(result, PAPER)
    shares = "; ".join(f"{name} {_rate(result, name)}" for name in (PAPER, PLAIN, RANDOM))
    small, small_ps = _less_often(result, SMALL_BATCHES)
    return (
        f"The claim: {shares}. That SSMC fails less often than both {word} (McNemar's exact test "
        f"on the same data sets: {ps}). With batches of 10, the number in print, it fails "
        f"{_rate(result, SMALL_BATCHES)}, and the claim {small} ({small_ps})."
    )


def _less_often(result: Result, name: str) -> tuple[str, str]:
    """Whether a method fails less often than both of the paper's rivals, and the p of each."""
    found = [result.paired(name, rival) for rival in (PLAIN, RANDOM)]
    if all(alone < other and p < DECIDED for alone, other, p in found):
        word = "holds here"
    elif any(alone > other and p < DECIDED for alone, other, p in found):
        word = "does not hold here"
    else:
        word = "is not decided by these data sets"
    return word, " and ".join(_p(p) for _, _, p in found)


def _agreement(result: Result) -> str:
    """Whether what is printed could have come from the rates found here."""
    ps = {}
    for name, failures in PRINTED.items():
        # Half a failure more, so that a rate of zero does not make everything impossible.
        rate = (result.failed(name).sum() + 0.5) / (len(result.best) + 1)
        ps[name] = float(stats.binomtest(failures, PRINTED_RUNS, rate).pvalue)
    low = [name for name, p in ps.items() if p < DECIDED]
    word = f"does not for {', '.join(low)}" if low else "agrees"
    listed = ", ".join(f"{name} {_p(p)}" for name, p in ps.items())
    return f"Reproduction: what is printed {word} with these rates (binomial test: {listed})."


def _today(result: Result) -> str:
    """The paper's method beside what users have today."""
    rivals = [name for name in (GREEDY, FARTHEST, BREATHING) if name in result.inertia]
    parts = []
    for name in rivals:
        alone, other, p = result.paired(PAPER, name)
        word = "no clear difference" if p >= DECIDED else "fewer" if alone > other else "more"
        parts.append(f"{name} {_rate(result, name)}: {word}, {_p(p)}")
    return "Not in print, failures beside SSMC: " + "; ".join(parts) + "."


def _rate(result: Result, name: str) -> str:
    rate, low, high = result.rate(name)
    return f"{rate:.2%} ({low:.2%} to {high:.2%})"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def as_json(result: Result) -> str:
    """Everything in the table, with what is needed to repeat it."""
    record = {
        "experiment": "seeding",
        "settings": asdict(result.settings),
        "versions": {
            name: _version(name) for name in ("covey", "numpy", "scikit-learn", "scipy", "bkmeans")
        },
        "described": DESCRIBED,
        "failed": f"inertia above {TOLERANCE} times the best known",
        "table": {name: _numbers(result, name) for name in result.inertia},
        "printed": {
            "failures": PRINTED,
            "first_failure": PRINTED_FIRST,
            "datasets": PRINTED_RUNS,
        },
        "fisher_p_of_print": {rival: printed_p(PAPER, rival) for rival in (PLAIN, RANDOM)},
        "mcnemar": {
            name: dict(
                zip(("paper_alone", "other_alone", "p"), result.paired(PAPER, name), strict=True)
            )
            for name in result.inertia
            if name != PAPER
        },
        "verdict": verdict(result),
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(result: Result, name: str) -> dict[str, Any]:
    failed, ratio = result.failed(name), result.inertia[name] / result.best
    rate, low, high = result.rate(name)
    return {
        "failures": int(failed.sum()),
        "rate": rate,
        "interval": [low, high],
        "first_failure": int(failed.argmax()) + 1 if failed.any() else None,
        "mean_ratio": float(ratio.mean()),
        "largest_ratio": float(ratio.max()),
        "best_found": float((ratio <= 1 + 1e-6).mean()),
    }


def write(result: Result, directory: Path) -> list[Path]:
    """Write ``seeding.png`` and ``seeding.json``; each is complete or not there at all."""
    picture, numbers = targets(directory)
    draw(result, picture)
    with figures.written_whole(numbers) as part:
        part.write_text(as_json(result), encoding="utf-8")
    return [picture, numbers]


def targets(directory: Path) -> tuple[Path, Path]:
    """Name the files that :func:`write` makes."""
    return directory / "seeding.png", directory / "seeding.json"


# The figure

COLOURS = np.array([figures.BLUE, figures.ORANGE, figures.GREEN, figures.PURPLE])


def draw(result: Result, path: Path) -> None:
    """Draw the paper's two figures, and below them the rates of failure."""
    with figures.figure(path, 7.2, 7.4) as canvas:
        canvas.suptitle(
            f"How k-means starts: {K} clusters of {PER_CLUSTER} points, "
            f"{result.settings.datasets} data sets"
        )
        grid = canvas.add_gridspec(3, 10, height_ratios=[1.5, 1, 1.6])
        _bad_start(canvas, grid, result)
        _generations(canvas, grid, result)
        _rates(canvas.add_subplot(grid[2, :]), result)
        canvas.supxlabel(
            "b: the first data set on which the random start fails. c to g: the first data set; "
            "areas of dots are copies.\nh: dots are rates of failure with 95% intervals of Wilson; "
            "crosses are printed rates, of 15 data sets.",
            fontsize="small",
        )


def _bad_start(canvas: Any, grid: Any, result: Result) -> None:
    left, right = canvas.add_subplot(grid[0, :5]), canvas.add_subplot(grid[0, 5:])
    shown = result.bad or result.collapse
    _scatter(left, shown.points, np.repeat(np.arange(K), PER_CLUSTER), 7)
    left.set_title("a  True membership")
    if result.bad is None:
        right.set_axis_off()
        right.text(0.5, 0.5, "the random start\nnever failed", ha="center", va="center")
        return
    bad = result.bad
    _scatter(right, bad.points, _as_true(bad.labels, bad.centres), 7)
    right.plot(*bad.start.T, "*", color="white", markeredgecolor=figures.BLACK, markersize=13)
    right.plot(*bad.centres.T, "X", color=figures.BLACK, markeredgecolor="white", markersize=8)
    right.set_title(f"b  A bad start, {bad.ratio:.1f} × the inertia")
    handles = [
        right.plot([], [], "*", color="white", markeredgecolor=figures.BLACK, markersize=11)[0],
        right.plot([], [], "X", color=figures.BLACK, markersize=7)[0],
    ]
    right.legend(handles, ["start", "end"], loc="lower right", handlelength=1)


def _generations(canvas: Any, grid: Any, result: Result) -> None:
    """The particles at the paper's times, or at the nearest there are, and what they lead to."""
    collapse = result.collapse
    last = len(collapse.generations) - 1
    for place, time in enumerate(nearest_times(last)):
        axes = canvas.add_subplot(grid[1, 2 * place : 2 * place + 2])
        axes.plot(*collapse.points.T, ".", color="#b8b8b8", markersize=1.2)
        generation = collapse.generations[time]
        axes.scatter(
            *generation.positions.T,
            s=4 + 120 * generation.masses / generation.masses.sum(),
            color=figures.ORANGE,
            edgecolors=figures.BLACK,
            linewidths=0.4,
            zorder=3,
        )
        end = " (end)" if time == last else ""
        axes.set_title(f"{'cdef'[place]}  $t = {time}${end}")
        axes.set_xlabel(f"{len(generation.positions)} different", fontsize="small")
        _bare(axes)
    axes = canvas.add_subplot(grid[1, 8:])
    centres = np.stack([collapse.points[collapse.labels == j].mean(0) for j in range(K)])
    _scatter(axes, collapse.points, _as_true(collapse.labels, centres), 2)
    axes.set_title("g  Clusters")
    axes.set_xlabel(f"{collapse.ratio:.2f} × the best", fontsize="small")


def nearest_times(last: int) -> list[int]:
    """Times to show of generations 0 to ``last``: the paper's, and the last where it ends sooner.

    Examples
    --------
    >>> from covey.reproduce.seeding_report import nearest_times
    >>> nearest_times(30), nearest_times(13), nearest_times(6)
    ([0, 4, 8, 18], [0, 4, 8, 13], [0, 4, 6])
    """
    return sorted({min(time, last) for time in TIMES})


def _as_true(labels: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Number clusters like the true ones they are nearest to, so that colours agree."""
    gaps = ((centres[:, None] - MEANS) ** 2).sum(-1)
    return linear_sum_assignment(gaps)[1][labels]


def _scatter(axes: Any, points: np.ndarray, labels: np.ndarray, size: float) -> None:
    axes.scatter(*points.T, s=size, c=COLOURS[labels], alpha=0.7, linewidths=0)
    _bare(axes)


def _bare(axes: Any) -> None:
    """Only the shape matters; distances are the same in both directions."""
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.grid(False)


def _rates(axes: Any, result: Result) -> None:
    names = [name for name in DESCRIBED if name in result.inertia]
    for row, name in enumerate(names):
        rate, low, high = (100 * value for value in result.rate(name))
        ours = name in (COLLAPSE, POLISH)
        colour = figures.GREEN if ours else figures.ORANGE if "SSMC" in name else figures.BLUE
        axes.errorbar(
            rate, row, xerr=[[rate - low], [high - rate]], fmt="o", color=colour, capsize=3
        )
        if name in PRINTED:
            axes.plot(100 * PRINTED[name] / PRINTED_RUNS, row, "x", color=figures.BLACK)
        axes.text(
            1, row, f"{rate:.2f}%", transform=axes.get_yaxis_transform(), ha="right", va="center"
        )
    axes.set(title="h  Runs that end above 1.05 × the best known", xlabel="percent")
    axes.set(yticks=range(len(names)), yticklabels=names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 115 * max(result.rate(name)[2] for name in names))
    axes.grid(axis="y", visible=False)
