"""The data as they are: far from zero, very large or very many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
from joblib import cpu_count  # type: ignore[import-untyped]
from numpy.random import Generator
from scipy.sparse import issparse
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from covey.estimators.points import Array, Points, systematic

T = TypeVar("T")

BLOCK = 2**14
"""Rows held at a time where the data are not copied."""


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> Any:
    """Context in which a matrix product runs on one core.

    Products here are small, and threads wait for each other longer than they compute; blocks of
    data are spread over the cores instead.
    """
    return _controller().limit(limits=1, user_api="blas")


@dataclass(frozen=True)
class Frame:
    """Coordinates in which the data are centred and at most about 1.

    The scale is one power of two for all columns, so that nothing is rounded by it and no column
    gains or loses importance; without it squares overflow from 1e154 on.
    """

    scale: float
    centre: Array | float

    @classmethod
    def around(cls, x: Any, weight: Array) -> Frame:
        """Find the frame of data (n, d), without a copy of them."""
        scale = _scale(x)
        # Centring would fill a sparse matrix.
        return cls(scale, 0.0 if issparse(x) else _mean(x, weight, scale))

    def holding(self, x: Any) -> Frame:
        """Coordinates for other data (n, d), the same but for a power of two if they are larger."""
        scale = min(self.scale, _scale(x))
        return Frame(scale, 0.0 if issparse(x) else self.centre * (scale / self.scale))

    def into(self, x: Any) -> Any:
        """Take data (n, d) to these coordinates, in double precision."""
        scaled = x.astype(float) * self.scale
        return scaled if issparse(x) else np.subtract(scaled, self.centre, out=scaled)

    def back(self, x: Array) -> Array:
        """Take points (m, d) back to the coordinates of the data."""
        return (x + self.centre) / self.scale


def _scale(x: Any) -> float:
    values = x.data if issparse(x) else x
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    exponent = np.clip(np.frexp(largest)[1], -1000, 1000)
    return float(np.ldexp(1.0, -int(exponent)))


def _mean(x: Array, weight: Array, scale: float) -> Array:
    total = np.zeros(x.shape[1])
    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        total += weight[part] @ (x[part].astype(float) * scale)
    return total / weight.sum()


@dataclass(frozen=True)
class Blocks:
    """All data in a frame, some rows at a time and on all cores."""

    x: Any
    weight: Array
    frame: Frame

    @classmethod
    def of(cls, x: Any, weight: Array) -> Blocks:
        """In a frame around them."""
        return cls(x, weight, Frame.around(x, weight))

    def map(self, question: Callable[[Points], T]) -> Iterator[T]:
        """Ask every block, in order."""
        starts = range(0, self.x.shape[0], BLOCK)
        if len(starts) == 1:
            yield question(self.whole)
            return

        def answer(start: int) -> T:
            part = slice(start, start + BLOCK)
            if "whole" in vars(self):
                return question(self.whole.take(part))
            return question(Points.of(self.frame.into(self.x[part]), self.weight[part]))

        with ThreadPoolExecutor(cpu_count()) as workers:
            yield from workers.map(answer, starts)

    @cached_property
    def whole(self) -> Points:
        """All as one copy, made once, for data that are few."""
        return Points.of(self.frame.into(self.x), self.weight)


def sample(blocks: Blocks, size: int, rng: Generator) -> Points:
    """About ``size`` points that stand for all, or all if there are no more than that.

    A point is drawn with probability ``q_i = w_i / 2W + w_i |x_i - m|^2 / 2 sum_j w_j |x_j - m|^2``
    and weighs ``w_i / (size q_i)``: small groups far away are not overlooked, and weighted sums
    keep their expectation (Bachem, Lucic and Krause, *Scalable k-means clustering via lightweight
    coresets*, 2018).
    """
    x, weight, frame = blocks.x, blocks.weight, blocks.frame
    if x.shape[0] <= size:
        return blocks.whole
    spread = np.empty(x.shape[0])
    for block, squares in enumerate(blocks.map(lambda block: block.weight * block.norm)):
        spread[block * BLOCK : (block + 1) * BLOCK] = squares
    total, sum_of_squares = weight.sum(), spread.sum()
    share = spread
    share /= 2 * sum_of_squares if sum_of_squares > 0 else 1
    for start in range(0, len(share), BLOCK):
        part = slice(start, start + BLOCK)
        share[part] += weight[part] / ((2 if sum_of_squares > 0 else 1) * total)
    drawn, times = np.unique(systematic(share, size, rng), return_counts=True)
    return Points.of(frame.into(x[drawn]), weight[drawn] * times / (size * share[drawn]))
