"""Keeping XLA from fusing computations that are quicker apart.

XLA for CPUs fuses what makes an array into everything that reads it. It then works entries out as
often as they are read, works a scalar out for every entry that it meets, computes in the lanes of
the widest type in sight, and leaves loops with a branch in them (a padding) to scalar code.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

T = TypeVar("T")


def apart(make: Callable[[], T]) -> T:
    """Make arrays in a computation of their own and write them to memory.

    A branch stops fusion; this one is always taken, which XLA does not see.
    """
    shapes = jax.eval_shape(make)
    return lax.cond(
        lax.optimization_barrier(jnp.int32(0)) == 0,
        make,
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
    )


def written_out(arrays: T) -> T:
    """Write arrays to memory before they are gathered from."""
    return apart(lambda: arrays)
