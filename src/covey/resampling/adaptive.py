"""Resample only when it is due."""

from collections.abc import Callable
from dataclasses import dataclass

from jax import Array

from covey.particles import Particles, either


@dataclass(frozen=True)
class WhenEssBelow:
    """A resampler that waits; make one with :func:`when_ess_below`."""

    threshold: float
    resampler: Callable[[Array, Particles, int], Particles]

    def __call__(self, key: Array, particles: Particles, n: int) -> Particles:
        """Resample if that is due, or if the number of particles changes."""
        if n != particles.n:
            return self.resampler(key, particles, n)
        due = particles.ess < self.threshold * n
        return either(due, lambda: self.resampler(key, particles, n), particles)


def when_ess_below(
    threshold: float, resampler: Callable[[Array, Particles, int], Particles]
) -> WhenEssBelow:
    """Resample when the effective sample size falls below ``threshold * n``.

    A change of the number of particles always resamples.

    Parameters
    ----------
    threshold : float in [0, 1]; 0.5 is the paper's.
    resampler : what resamples then.

    Examples
    --------
    >>> import covey
    >>> covey.when_ess_below(0.5, covey.systematic)
    WhenEssBelow(threshold=0.5, resampler=covey.systematic)
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is a fraction of n and must lie in [0, 1], got {threshold}")
    if not callable(resampler):
        raise TypeError(f"resampler must be a resampler such as covey.ssp, got {resampler!r}")
    return WhenEssBelow(float(threshold), resampler)
