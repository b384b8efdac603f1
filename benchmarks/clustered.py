"""What clustering costs: filters that resample at every step, with and without clusters."""

from importlib import import_module
from typing import Any

from benchmarks import peers
from benchmarks.problem import STEPS, series
from benchmarks.report import HOW_TO_READ, Report, Target, by_size, ratio, samples
from benchmarks.speed import QUICK_SIZES, SIZES
from benchmarks.timing import fresh, interleaved, progress

SCHEMES = ["systematic", "multinomial"]
BOUNDS = {1_000: 5.0, 100_000: 2.0, 1_000_000: 1.5}


def run(quick: bool) -> Report:
    tables, targets, values = [], [], {}
    for dtype in ("float32", "float64"):
        raw = fresh(
            "benchmarks.clustered:measure", double=dtype == "float64", dtype=dtype, quick=quick
        )
        values[dtype] = raw
        measured = samples(raw)
        plain = {f"clustered, {scheme}": f"plain, {scheme}" for scheme in SCHEMES}
        names = [name for pair in plain.items() for name in reversed(pair)]
        tables.append(
            by_size(
                f"Clusters, {dtype}: filters forced to resample at each of T = {STEPS} steps, "
                "k = 10, x: against the plain filter with the same scheme",
                measured,
                [*names, "particles"],
                unit=STEPS,
                against=plain,
                notes=[*HOW_TO_READ, "`particles` is its plain filter, resampling when due."],
            )
        )
        targets += _targets(measured, dtype)
    return Report(tables, targets, values)


def _targets(measured: dict[int, Any], dtype: str) -> list[Target]:
    found = []
    for scheme in SCHEMES:
        for n, bound in BOUNDS.items():
            if n in measured:
                times = ratio(measured[n], f"clustered, {scheme}", f"plain, {scheme}")
                found.append(
                    Target(f"{dtype}, {scheme}, N = {n}: times the plain filter", times, bound)
                )
        times = ratio(measured.get(100_000, {}), "particles", f"clustered, {scheme}")
        promise = f"{dtype}, {scheme}, N = 100000: times faster than plain particles"
        found.append(Target(promise, times, 1.0, at_least=True))
    return found


def measure(dtype: str, quick: bool) -> dict[int, Any]:
    """Runs in a process of its own, with the precision set."""
    covey = import_module("covey")
    y = series()
    model = covey.models.StochasticVolatility()
    measured = {}
    for n in QUICK_SIZES if quick else SIZES:
        progress(f"clustered filter, {dtype}, N = {n}")
        calls = {}
        for scheme in SCHEMES:
            every = getattr(covey, scheme)
            within = covey.clustered(covey.kmeans(10), within=scheme)
            for name, resample in (("plain", every), ("clustered", within)):
                filter = covey.bootstrap(model, n, resample=resample)
                calls[f"{name}, {scheme}"] = peers.covey_call(filter, y)
        if peers.installed("particles") and n <= 100_000:
            calls["particles"] = peers.particles_call(y, n)
        measured[n] = interleaved(calls, rounds=200, least=3, seconds=4 if quick else 8)
    return measured
