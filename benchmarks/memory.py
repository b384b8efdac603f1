"""Peak memory of very many particles."""

import time
from importlib import import_module
from typing import Any

from benchmarks.first_call import make_filter
from benchmarks.problem import exact_log_evidence, series
from benchmarks.report import Report, Table, Target
from benchmarks.timing import fresh, peak_memory, progress

STEPS = 5
GIB = 2**30
FILTERS = [
    "bootstrap",
    "bootstrap, every step",
    "clustered, systematic",
    "clustered, the paper's",
]


def run(quick: bool) -> Report:
    n = 1_000_000 if quick else 10_000_000
    rows, targets, values = [], [], {}
    exact = exact_log_evidence(series()[:STEPS])
    for name in FILTERS:
        progress(f"memory, {name}, N = {n}")
        found = values[name] = fresh("benchmarks.memory:measure", name=name, n=n)
        gib = found["peak"] / GIB
        rows.append(
            [
                name,
                f"{gib:.2f}",
                f"{found['before'] / GIB:.2f}",
                f"{(found['peak'] - found['before']) / n:.0f}",
                f"{found['first']:.1f}",
                f"{found['second']:.1f}",
                f"{found['log_evidence'] - exact:+.4f}",
            ]
        )
        if not quick:
            targets.append(Target(f"peak memory, {name}, N = {n}", gib, 2.0, unit=" GiB"))
    header = ["", "peak GiB", "before GiB", "bytes/particle", "first s", "second s", "error"]
    table = Table(
        f"Memory: N = {n:.0e}, one state dimension, float32, T = {STEPS}",
        header,
        rows,
        [
            "Largest resident size of a fresh process up to the end of its first call, and before",
            "it; error: log-evidence less the exact one.",
        ],
    )
    return Report([table], targets, values)


def measure(name: str, n: int) -> dict[str, Any]:
    """Runs in a process of its own."""
    y = series()[:STEPS]
    jax, covey = import_module("jax"), import_module("covey")
    filter = make_filter(name, n)
    keys = [jax.random.key(seed) for seed in (1, 2)]
    before = peak_memory()
    start = time.perf_counter()
    log_evidence = float(covey.run(keys[0], filter, y).log_evidence)
    first = time.perf_counter()
    peak = peak_memory()
    again = time.perf_counter()
    float(covey.run(keys[1], filter, y).log_evidence)
    second = time.perf_counter() - again
    return {
        "before": before,
        "peak": peak,
        "first": first - start,
        "second": second,
        "log_evidence": log_evidence,
    }
