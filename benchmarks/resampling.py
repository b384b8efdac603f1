"""Resampling alone: each scheme against the same scheme of other libraries."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.report import HOW_TO_READ, Report, by_size, samples
from benchmarks.speed import QUICK_SIZES, SIZES
from benchmarks.timing import fresh, interleaved, progress

SCHEMES = {
    "systematic": ["blackjax", "particles", "cuthbert"],
    "stratified": ["blackjax", "particles"],
    "multinomial": ["blackjax", "particles", "cuthbert"],
    "residual": ["blackjax", "particles"],
    "ssp": ["particles"],
    "killing": ["particles", "cuthbert"],
}
"""Which libraries have which of Covey's schemes."""


def run(quick: bool) -> Report:
    tables, values = [], {}
    for dtype in ("float32", "float64"):
        raw = fresh("benchmarks.resampling:measure", double=dtype == "float64", quick=quick)
        values[dtype] = raw
        names = {
            f"{scheme}, {library}": f"{scheme}, covey"
            for scheme, libraries in SCHEMES.items()
            for library in ["covey", *libraries]
        }
        tables.append(
            by_size(
                f"Resampling alone, {dtype}: log-normal weights, ancestors of N particles",
                samples(raw),
                [*names],
                unit=1,
                against=names,
                notes=[*HOW_TO_READ, "`particles` always works in float64."],
            )
        )
    return Report(tables, [], values)


def measure(quick: bool) -> dict[int, Any]:
    """Runs in a process of its own, with the precision set."""
    measured = {}
    for n in QUICK_SIZES if quick else SIZES:
        measured[n] = {}
        log_w = np.random.default_rng(n).standard_normal(n)
        for scheme, libraries in SCHEMES.items():
            progress(f"resampling, {scheme}, N = {n}")
            calls = {f"{scheme}, covey": _covey(scheme, log_w)}
            for library in filter(peers.installed, libraries):
                calls[f"{scheme}, {library}"] = PEERS[library](scheme, log_w)
            seconds = 0.3 if quick else 1.0
            measured[n] |= interleaved(calls, rounds=200, least=3, seconds=seconds)
    return measured


def _covey(scheme: str, log_w: np.ndarray) -> Callable[[], Any]:
    jax, covey = import_module("jax"), import_module("covey")
    inside = import_module("covey.particles")
    n = len(log_w)
    equal = inside.equally_weighted(jax.numpy.zeros((n, 1)))
    weighted = replace(equal, log_w=inside.normalise(jax.numpy.asarray(log_w))[0])
    resample = getattr(covey, scheme)
    ancestors = jax.jit(lambda key, particles: resample(key, particles, n).ancestors)
    key = jax.random.key(0)
    return lambda: jax.block_until_ready(ancestors(key, weighted))


def _blackjax(scheme: str, log_w: np.ndarray) -> Callable[[], Any]:
    jax = import_module("jax")
    resample = getattr(import_module("blackjax.smc.resampling"), scheme)
    ancestors = jax.jit(resample, static_argnums=2)
    weights = jax.nn.softmax(jax.numpy.asarray(log_w))
    key = jax.random.key(0)
    return lambda: jax.block_until_ready(ancestors(key, weights, len(log_w)))


def _cuthbert(scheme: str, log_w: np.ndarray) -> Callable[[], Any]:
    jax = import_module("jax")
    resample = import_module(f"cuthbertlib.resampling.{scheme}").resampling
    ancestors = jax.jit(lambda key, logits: resample(key, logits, logits, len(log_w))[0])
    logits, key = jax.numpy.asarray(log_w), jax.random.key(0)
    return lambda: jax.block_until_ready(ancestors(key, logits))


def _particles(scheme: str, log_w: np.ndarray) -> Callable[[], Any]:
    resample = import_module("particles.resampling").resampling
    weights = np.exp(log_w) / np.exp(log_w).sum()
    return lambda: resample(scheme, weights, M=len(log_w))


PEERS = {"blackjax": _blackjax, "cuthbert": _cuthbert, "particles": _particles}
