"""That speed is not bought with error: log-evidence against the exact one, and float32."""

from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.first_call import make_filter
from benchmarks.problem import STEPS, exact_log_evidence, series
from benchmarks.report import Report, Table, Target
from benchmarks.timing import fresh, progress

Z_BOUND = 4.0
SMALL, LARGE = 1_000, 1_000_000
OURS = {
    "covey": "bootstrap",
    "covey, every step": "bootstrap, every step",
    "covey, clustered, every step": "clustered, systematic",
    "covey, clustered, the paper's": "clustered, the paper's",
}
LARGE_FILTERS = ["bootstrap, every step", "clustered, systematic"]


def run(quick: bool) -> Report:
    exact = exact_log_evidence(series())
    small, targets = _against_peers(exact, 200 if quick else 1000)
    large, more = _against_double(exact, 4 if quick else 16)
    values = {"exact": exact, "against peers": small[1], "against float64": large[1]}
    return Report([small[0], large[0]], targets + more, values)


def _against_peers(exact: float, runs: int) -> tuple[tuple[Table, Any], list[Target]]:
    raw = fresh("benchmarks.accuracy:measure_small", runs=runs)
    errors = {name: np.array(values) - exact for name, values in raw.items()}
    rows = [_row(name, errors.get(name)) for name in [*OURS, *peers.NAMES]]
    targets = [
        Target(f"evidence of {name}, N = {SMALL}: |z| of its bias", abs(_bias(error)[1]), Z_BOUND)
        for name, error in errors.items()
        if name in OURS
    ]
    z = None
    if "particles" in errors:
        z = _z_of_variances(errors["covey"], errors["particles"])
    targets.append(Target("var log Z of covey over particles: z of its logarithm", z, Z_BOUND))
    table = Table(
        f"Accuracy, float32, N = {SMALL}, T = {STEPS}: {runs} runs on one series, exact log Z = "
        f"{exact:.4f}",
        ["", "mean log Z - exact", "var log Z", "+-", "Z / exact - 1", "z"],
        rows,
        [
            "Z / exact - 1 is the bias of the evidence, z the same in standard errors; |z| > 4 has",
            "a chance of 1 in 16,000. The same bound holds for the ratio of variances.",
        ],
    )
    return (table, raw), targets


def _row(name: str, error: np.ndarray | None) -> list[str]:
    if error is None:
        return [name, "not installed", "", "", "", ""]
    bias, z = _bias(error)
    variance = error.var(ddof=1)
    uncertain = variance * (2 / (len(error) - 1)) ** 0.5
    return [
        name,
        f"{error.mean():+.4f}",
        f"{variance:.4f}",
        f"{uncertain:.4f}",
        f"{bias:+.4f}",
        f"{z:+.1f}",
    ]


def _bias(error: np.ndarray) -> tuple[float, float]:
    """Relative bias of the evidence, and the same in standard errors."""
    relative = np.exp(error) - 1
    return float(relative.mean()), float(_z(relative))


def _z(values: np.ndarray) -> float:
    return values.mean() / (values.std(ddof=1) / len(values) ** 0.5)


def _z_of_variances(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Logarithm of the ratio of variances in standard errors, as of normal samples."""
    deviation = (2 / (len(ours) - 1) + 2 / (len(theirs) - 1)) ** 0.5
    return float(np.log(ours.var(ddof=1) / theirs.var(ddof=1)) / deviation)


def _against_double(exact: float, seeds: int) -> tuple[tuple[Table, Any], list[Target]]:
    rows, targets, raw = [], [], {}
    for name in LARGE_FILTERS:
        found = {}
        for dtype in ("float32", "float64"):
            progress(f"accuracy, {name}, {dtype}, N = {LARGE}")
            values = fresh(
                "benchmarks.accuracy:measure_large",
                double=dtype == "float64",
                name=name,
                seeds=seeds,
            )
            raw[f"{name}, {dtype}"] = values
            found[dtype] = np.array(values) - exact
            z = _z(found[dtype])
            cells = [found[dtype].mean(), found[dtype].std(ddof=1)]
            rows.append([f"{name}, {dtype}", *(f"{cell:+.5f}" for cell in cells), f"{z:+.1f}"])
        gap = found["float32"].mean() - found["float64"].mean()
        error = (sum(each.var(ddof=1) for each in found.values()) / seeds) ** 0.5
        targets.append(
            Target(f"{name}, N = {LARGE}: |z| of float32 less float64", abs(gap / error), Z_BOUND)
        )
    table = Table(
        f"Single precision, N = {LARGE:.0e}, T = {STEPS}: {seeds} seeds",
        ["", "mean log Z - exact", "deviation", "z"],
        rows,
        ["deviation: of one run; z: mean in standard errors."],
    )
    return (table, raw), targets


def measure_small(runs: int) -> dict[str, list[float]]:
    """Log-evidences of all contestants; runs in a process of its own."""
    y = series()
    calls = {name: peers.covey_call(make_filter(f, SMALL), y) for name, f in OURS.items()}
    calls |= peers.filters(y, SMALL, "float32")
    found = {}
    for name, call in calls.items():
        progress(f"accuracy, {name}, N = {SMALL}")
        found[name] = [call() for _ in range(runs)]
    return found


def measure_large(name: str, seeds: int) -> list[float]:
    """Log-evidences for several seeds; runs in a process of its own, with the precision set."""
    jax, covey = import_module("jax"), import_module("covey")
    filter = make_filter(name, LARGE)
    y = jax.numpy.asarray(series())
    keys = jax.random.split(jax.random.key(0), seeds)
    return [float(covey.run(key, filter, y).log_evidence) for key in keys]
