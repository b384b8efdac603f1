"""A stream of points, remembered as particles: merge and reduce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.sparse import issparse, vstack

from covey.estimators.data import Frame
from covey.estimators.points import Array, Points, particles


@dataclass(frozen=True)
class Summary:
    """Particles (m, d) with masses (m,) that stand for so many rows."""

    positions: Any
    masses: Array
    rows: int


@dataclass
class Stream:
    """What is remembered of all rows so far: a few summaries, each of many more rows than the next.

    Parameters
    ----------
    size : int, particles of a summary

    Notes
    -----
    A batch becomes a summary: particles are drawn in proportion to ``w D^2`` and moved to the means
    of their cells. Two summaries of about as many rows become one in the same way. So a row has
    been summarised only ``log_2(rows / size)`` times, memory is ``size log_2(rows / size)``
    particles, and nothing is forgotten: masses and means stay exact (Bentley and Saxe, 1980;
    Har-Peled and Mazumdar, *On coresets for k-means and k-median clustering*, 2004).

    Examples
    --------
    >>> import numpy as np
    >>> from covey.estimators.stream import Stream
    >>> stream, rng = Stream(size=10), np.random.default_rng(0)
    >>> for _ in range(50):
    ...     stream.add(rng.normal(size=(20, 2)), np.ones(20), rng)
    >>> positions, masses = stream.gathered()
    >>> len(masses) <= 60, round(masses.sum())
    (True, 1000)
    """

    size: int
    summaries: list[Summary] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows have been seen."""
        return sum(summary.rows for summary in self.summaries)

    def add(self, x: Any, weight: Array, rng: Generator) -> None:
        """Take in a batch (n, d) with weights (n,)."""
        dense = x if issparse(x) else x.astype(float)
        self.summaries.append(self._reduced(Summary(dense, weight, x.shape[0]), rng))
        while len(self.summaries) > 1 and self.summaries[-2].rows < 2 * self.summaries[-1].rows:
            last, before = self.summaries.pop(), self.summaries.pop()
            self.summaries.append(self._reduced(_both(before, last), rng))

    def gathered(self) -> tuple[Any, Array]:
        """All particles (m, d) and their masses (m,)."""
        everything = self.summaries[0]
        for summary in self.summaries[1:]:
            everything = _both(everything, summary)
        return everything.positions, everything.masses

    def _reduced(self, whole: Summary, rng: Generator) -> Summary:
        alive = np.flatnonzero(whole.masses > 0)
        if len(alive) <= self.size:
            return Summary(whole.positions[alive], whole.masses[alive], whole.rows)
        x, weight = whole.positions[alive], whole.masses[alive]
        frame = Frame.around(x, weight)
        points = Points.of(frame.into(x), weight)
        drawn, label, _ = particles(points, self.size, rng)
        positions, masses = points.means(label, len(drawn))
        return Summary(frame.back(positions), masses, whole.rows)


def _both(one: Summary, other: Summary) -> Summary:
    parts = one.positions, other.positions
    if all(issparse(part) for part in parts):
        joined = vstack(parts, format="csr")
    else:
        joined = np.concatenate([p.toarray() if issparse(p) else p for p in parts])
    return Summary(joined, np.concatenate([one.masses, other.masses]), one.rows + other.rows)
