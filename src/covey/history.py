"""What a run leaves behind: estimates of every step, and particles if they were kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from covey.particles import Particles, State


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Estimate:
    """What is known after one step.

    Attributes
    ----------
    step : int, counted from 1
    log_evidence : ``log p(y_1:t)``
    log_increment : ``log p(y_t | y_1:t-1)``
    mean, variance : of each component of the state, shaped like it
    ess : effective sample size of the weights
    resampled : whether the step began with a resampling
    unique : how many different parents the particles have
    cluster_kl : ``D(v || c)`` of the step's clustered resampling, or NaN
    status : 0, or the kind of failure (see :class:`covey.FilterError`)
    """

    step: Array
    log_evidence: Array
    log_increment: Array
    mean: State
    variance: State
    ess: Array
    resampled: Array
    unique: Array
    cluster_kl: Array
    status: Array

    @classmethod
    def of(cls, particles: Particles, step: Array) -> Estimate:
        """Summarise the particles of a step."""
        mean, variance = particles.moments()
        return cls(
            step=jnp.asarray(step, jnp.int32),
            log_evidence=particles.log_evidence,
            log_increment=particles.log_increment,
            mean=mean,
            variance=variance,
            ess=particles.ess,
            resampled=particles.resampled,
            unique=particles.unique,
            cluster_kl=particles.cluster_kl,
            status=particles.status,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class History:
    """The record of a run of T steps.

    Attributes
    ----------
    steps : Estimate whose leaves lead with T
    saved : tuple
        What ``save`` kept, in pieces of consecutive steps; see :meth:`kept`.
    final : Particles after the last step
    initial : Particles at time 0, if all particles were kept
    """

    steps: Estimate
    saved: tuple[Any, ...]
    final: Particles
    initial: Particles | None

    @property
    def log_evidence(self) -> Array:
        """Logarithm of the estimate of ``p(y_1:T)``."""
        return self.final.log_evidence

    @property
    def log_increments(self) -> Array:
        """``log p(y_t | y_1:t-1)``: (T,)."""
        return self.steps.log_increment

    @property
    def mean(self) -> State:
        """Filtering means, leading with T."""
        return self.steps.mean

    @property
    def variance(self) -> State:
        """Filtering variances, leading with T."""
        return self.steps.variance

    @property
    def ess(self) -> Array:
        """Effective sample sizes (T,)."""
        return self.steps.ess

    @property
    def resampled(self) -> Array:
        """Whether each step began with a resampling: (T,)."""
        return self.steps.resampled

    @property
    def unique(self) -> Array:
        """How many different parents the particles of each step have: (T,)."""
        return self.steps.unique

    @property
    def cluster_kl(self) -> Array:
        """The paper's ``D(v || c)`` of each clustered resampling, NaN elsewhere: (T,)."""
        return self.steps.cluster_kl

    @property
    def status(self) -> Array:
        """0, or what went wrong in each step: (T,)."""
        return self.steps.status

    @property
    def kept(self) -> Any:
        """What a ``save`` function returned, leading with T.

        With ``n_initial`` the first steps have more particles; where the results then differ in
        shape they cannot be joined, and :attr:`saved` has the pieces.
        """
        if not self.saved:
            raise ValueError("nothing was kept: the run had no steps")
        if not jax.tree.leaves(self.saved):
            raise ValueError(
                "nothing was kept but the summaries; run with save='particles' or a function"
            )
        axis = self.final.log_w.ndim - 1  # of time, after those of vmap
        shapes = [
            jax.tree.map(lambda leaf: (*leaf.shape[:axis], *leaf.shape[axis + 1 :]), block)
            for block in self.saved
        ]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                "what was kept changes its shape with the number of particles (n_initial) and "
                "cannot be joined; take the pieces from history.saved"
            )
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *self.saved)

    def particles(self, step: int) -> Particles:
        """The particles of step 1, ..., T, or of the start at step 0; needs save="particles"."""
        initial = self._start("particles")
        if step == 0:
            return initial
        where = step - 1
        for block in self.saved:
            size = block["ancestors"].shape[0]
            if 0 <= where < size:
                kept = jax.tree.map(lambda leaf, at=where: leaf[at], block)
                return self._restored(kept, step - 1)
            where -= size
        raise IndexError(f"there are steps 0 to {len(self.ess)}, got {step}")

    def _restored(self, kept: dict[str, Any], index: int) -> Particles:
        of_step = jax.tree.map(lambda leaf: leaf[index], self.steps)
        return Particles(
            **kept,
            ess=of_step.ess,
            log_evidence=of_step.log_evidence,
            log_increment=of_step.log_increment,
            resampled=of_step.resampled,
            unique=of_step.unique,
            cluster_kl=of_step.cluster_kl,
            status=of_step.status,
            features=self.final.features,
        )

    def ancestry(self) -> State:
        """Paths ``x_0:T`` of the particles that are alive at the end.

        Returns
        -------
        State whose leaves have shape (T + 1, n, ...): entry ``[t, i]`` is where the ancestor at
        time t of final particle i was. Their weights are ``final.weights``.
        """
        initial = self._start("ancestry")
        index = np.arange(self.final.n)
        path = []
        for block in reversed(self.saved):
            x = jax.tree.map(np.asarray, block["x"])
            ancestors = np.asarray(block["ancestors"])
            for t in reversed(range(len(ancestors))):
                path.append(jax.tree.map(lambda leaf, t=t, i=index: leaf[t, i], x))
                index = ancestors[t, index]
        path.append(jax.tree.map(lambda leaf: np.asarray(leaf)[index], initial.x))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *reversed(path))

    def _start(self, what: str) -> Particles:
        """The particles at time 0, if this is the history of one run that kept all particles."""
        if self.initial is None:
            raise ValueError(
                f"History.{what} needs all particles of all steps; run with save='particles'"
            )
        if self.final.log_w.ndim != 1:
            raise ValueError(
                f"History.{what} works on one run; pick one first, for instance with "
                "jax.tree.map(lambda leaf: leaf[0], history)"
            )
        return self.initial

    def to_xarray(self) -> Any:
        """The record as an :class:`xarray.Dataset` with dimension ``step``.

        States in a pytree become one variable a leaf (``mean.position``); kept particles become
        ``x``, ``weight`` and ``ancestor`` with dimension ``particle``, NaN, 0 and -1 where there
        are fewer.
        """
        from covey.tables import dataset

        return dataset(self)

    def __str__(self) -> str:
        if self.final.log_w.ndim != 1:
            return f"History of {self.final.log_w.shape[:-1]} runs"
        failed = int(np.count_nonzero(np.asarray(self.status)))
        lines = [
            f"{len(self.ess)} steps, {self.final.n} particles",
            f"log evidence   {float(self.log_evidence):.4f}",
        ]
        if len(self.ess):
            lines += [
                f"ESS            {float(np.mean(self.ess)):.1f} mean, "
                f"{float(np.min(self.ess)):.1f} least",
                f"resampled      {int(np.sum(self.resampled))} times",
            ]
        if failed:
            lines.append(f"failed         {failed} steps: see history.status")
        return "\n".join(lines)
