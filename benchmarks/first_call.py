"""What the first call costs: a fresh process each, compilation included."""

import statistics
import time
from importlib import import_module
from typing import Any

from benchmarks.problem import STEPS, series
from benchmarks.report import Report, Table, Target
from benchmarks.timing import fresh, progress

BOUNDS = {"bootstrap": 3.0, "clustered, the paper's": 5.0, "clustered, systematic": 5.0}


def run(quick: bool) -> Report:
    rows, targets, values = [], [], {}
    for n in [100_000] if quick else [1_000, 100_000]:
        for name, bound in BOUNDS.items():
            progress(f"first call, {name}, N = {n}")
            found = [
                fresh("benchmarks.first_call:measure", name=name, n=n)
                for _ in range(1 if quick else 3)
            ]
            values[f"{name}, N = {n}"] = found
            first = [each["first"] for each in found]
            middle = statistics.median(first)
            rest = [statistics.median(each[key] for each in found) for key in ("import", "second")]
            cells = [middle, min(first), max(first), *rest]
            rows.append([f"{name}, N = {n}", *(f"{seconds:.2f}" for seconds in cells)])
            targets.append(Target(f"first call, {name}, N = {n}", middle, bound, unit=" s"))
    table = Table(
        f"First call of `covey.run`, float32, T = {STEPS}: seconds, compilation included",
        ["", "median", "least", "most", "import before", "second call"],
        rows,
        ["Every figure from fresh processes, without a persistent compilation cache."],
    )
    return Report([table], targets, values)


def make_filter(name: str, n: int) -> Any:
    """The filter of that name."""
    covey = import_module("covey")
    model = covey.models.StochasticVolatility()
    if name == "clustered, the paper's":
        return covey.cluster_filter(model, n)
    if name == "clustered, systematic":
        resample = covey.clustered(covey.kmeans(10), within="systematic")
        return covey.bootstrap(model, n, resample=resample)
    if name == "bootstrap, every step":
        return covey.bootstrap(model, n, resample=covey.systematic)
    return covey.bootstrap(model, n)


def measure(name: str, n: int) -> dict[str, float]:
    """Seconds for the import, the first call and the second; runs in a process of its own."""
    y = series()
    start = time.perf_counter()
    jax, covey = import_module("jax"), import_module("covey")
    imported = time.perf_counter()
    filter = make_filter(name, n)
    float(covey.run(jax.random.key(1), filter, y).log_evidence)
    first = time.perf_counter()
    float(covey.run(jax.random.key(2), filter, y).log_evidence)
    second = time.perf_counter()
    return {"import": imported - start, "first": first - imported, "second": second - first}
