"""Speed of the bootstrap filter against other libraries, resampling when it is due."""

from importlib import import_module
from typing import Any

from benchmarks import peers
from benchmarks.problem import STEPS, series
from benchmarks.report import HOW_TO_READ, Report, Target, by_size, ratio, samples
from benchmarks.timing import fresh, interleaved, progress

SIZES = [1_000, 10_000, 100_000, 1_000_000]
QUICK_SIZES = [1_000, 100_000]


def run(quick: bool) -> Report:
    tables, targets, values = [], [], {}
    for dtype, factor in (("float32", 6), ("float64", 3)):
        raw = fresh("benchmarks.speed:measure", double=dtype == "float64", dtype=dtype, quick=quick)
        values[dtype] = raw
        measured = samples(raw)
        names = ["covey", *peers.NAMES]
        tables.append(
            by_size(
                f"Bootstrap filter, {dtype}: stochastic volatility, T = {STEPS}, systematic "
                "resampling when ESS < N/2",
                measured,
                names,
                unit=STEPS,
                against=dict.fromkeys(names, "covey"),
                notes=[*HOW_TO_READ, *NOTES],
            )
        )
        targets += _targets(measured, dtype, factor)
    return Report(tables, targets, values)


NOTES = [
    "All but plain `particles` compute mean and variance of every step: the like-for-like peer is",
    "`particles, moments`; plain `particles` computes less and is the stricter comparison.",
    "`particles` always works in float64, the others in the precision of the table.",
]


def _targets(measured: dict[int, Any], dtype: str, factor: float) -> list[Target]:
    found = []
    for peer in ("particles, moments", "particles"):
        for n, bound in ((100_000, factor), (1_000, 1.0)):
            times = ratio(measured.get(n, {}), peer, "covey")
            promise = f"{dtype}, N = {n}: times faster than {peer}"
            found.append(Target(promise, times, bound, at_least=True))
    return found


def measure(dtype: str, quick: bool) -> dict[int, Any]:
    """Runs in a process of its own, with the precision set."""
    covey = import_module("covey")
    y = series()
    model = covey.models.StochasticVolatility()
    measured = {}
    for n in QUICK_SIZES if quick else SIZES:
        progress(f"bootstrap filter, {dtype}, N = {n}")
        calls = {"covey": peers.covey_call(covey.bootstrap(model, n), y)}
        calls |= peers.filters(y, n, dtype)
        measured[n] = interleaved(calls, rounds=200, least=3, seconds=4 if quick else 10)
    return measured
