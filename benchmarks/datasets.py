"""Data to cluster: name -> (points, k). The same for every run."""

from collections.abc import Iterator

import numpy as np

Points = np.ndarray


def mixture(seed: int) -> tuple[Points, int]:
    """A random Gaussian mixture: k 5 to 40, d 2 to 8, unequal sizes and spreads."""
    rng = np.random.default_rng([500, seed])
    k, d = int(rng.integers(5, 41)), int(rng.integers(2, 9))
    sizes = np.maximum(10, (100 * k * rng.dirichlet(np.full(k, 2.0))).round().astype(int))
    spreads = 0.5 * np.exp(rng.normal(0, 0.5, k))
    means = rng.uniform(0, 6 * k ** (1 / d), (k, d))
    parts = zip(means, sizes, spreads, strict=True)
    return np.concatenate([m + s * rng.normal(size=(n, d)) for m, n, s in parts]), k


def hard(quick: bool) -> dict[str, tuple[Points, int]]:
    """Unbalanced, grid-like, high-dimensional, real and repeated data."""
    found = dict(_made())
    found |= dict(_real())
    if quick:
        return {name: found[name] for name in ("unbalanced", "far, d = 32", "iris, k = 3")}
    return found


def structureless(quick: bool) -> dict[str, tuple[Points, int]]:
    """Uniform data, where there is nothing to find."""
    rng = np.random.default_rng(7)
    found = {
        "uniform, d = 2": (rng.uniform(size=(5000, 2)), 50),
        "uniform, d = 5": (rng.uniform(size=(10_000, 5)), 50),
    }
    return {name: found[name] for name in list(found)[: 1 if quick else 2]}


def digits() -> tuple[Points, int]:
    from sklearn.datasets import load_digits

    return load_digits().data.astype(float), 10


def large(n: int) -> tuple[Points, int]:
    """Fifty overlapping clusters in eight dimensions."""
    rng = np.random.default_rng(1)
    means = 2 * rng.normal(size=(50, 8))
    x = rng.normal(size=(n, 8))
    # In place: the data must not be twice in memory.
    which = rng.integers(0, 50, n)
    for j in range(50):
        x[which == j] += means[j]
    return x, 50


def _made() -> Iterator[tuple[str, tuple[Points, int]]]:
    rng = np.random.default_rng(2024)
    heavy = [(0, 0), (1.5, 0), (0.7, 1.4)]
    light = [(12, 0), (12, 5), (15, 2), (10, 9), (14, 9)]
    groups = [m + 0.15 * rng.normal(size=(2000, 2)) for m in heavy]
    groups += [m + 0.6 * rng.normal(size=(100, 2)) for m in light]
    yield "unbalanced", (np.concatenate(groups), 8)
    for k, power, d, apart in ((30, 1.2, 4, 5.0), (60, 1.0, 8, 3.0)):
        shares = np.arange(1, k + 1) ** -power
        x = _gaussians(rng, 200 * k, k, d, apart, shares / shares.sum(), 0.4)
        yield f"Zipf, k = {k}", (x, k)
    for side, spread in ((7, 0.35), (10, 0.25), (15, 0.3)):
        k = side**2
        knots = np.stack(np.meshgrid(range(side), range(side)), -1).reshape(-1, 2)
        x = knots[rng.integers(0, k, 70 * k)] + spread * rng.normal(size=(70 * k, 2))
        yield f"grid, k = {k}", (x, k)
    yield "touching, k = 15", (_gaussians(rng, 5000, 15, 2, 3.5), 15)
    for d in (32, 64, 128):
        yield f"far, d = {d}", (_gaussians(rng, 1024, 16, d, 3.0), 16)
        near = 0.6 * np.sqrt(32 / d)
        yield f"near, d = {d}", (_gaussians(rng, 4000, 32, d, near, None, 0.2), 32)
    knots = rng.integers(0, 20, (300, 2)).astype(float)
    yield "repeated rows", (np.repeat(knots, 20, axis=0)[rng.permutation(6000)], 25)


def _gaussians(
    rng: np.random.Generator,
    n: int,
    k: int,
    d: int,
    apart: float,
    shares: Points | None = None,
    spread: float = 0.0,
) -> Points:
    """Clusters whose means are normal with deviation ``apart``, and whose widths vary."""
    means = apart * rng.normal(size=(k, d))
    which = rng.choice(k, n, p=shares)
    widths = np.exp(spread * rng.normal(size=k))
    return means[which] + widths[which, None] * rng.normal(size=(n, d))


def _real() -> Iterator[tuple[str, tuple[Points, int]]]:
    from sklearn import datasets

    for name, counts in {
        "iris": (3, 10),
        "wine": (3, 10),
        "digits": (10, 40),
        "breast_cancer": (2, 10),
    }.items():
        x = getattr(datasets, f"load_{name}")().data.astype(float)
        for k in counts:
            yield f"{name.replace('_', ' ')}, k = {k}", (x, k)
