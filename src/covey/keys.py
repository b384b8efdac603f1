"""The numbers of JAX's default random keys, drawn in less time on a CPU.

JAX lowers its Threefry hash to a loop on CPUs, one pass over memory after the other, so that it
compiles fast. Here the rounds are written out: XLA then fuses them with the transformation of the
bits (to a normal draw, say) into one pass, shared by all cores. Bits, splits and folds are those of
``jax.random.key(seed)`` exactly. A filter hands such keys to the functions of its model, which use
them with ``jax.random`` as any others.

References
----------
Salmon, Moraes, Dror and Shaw (2011), *Parallel random numbers: as easy as 1, 2, 3*.
"""

import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_DEFAULT = "threefry2x32"
_LAYOUT = "jax_threefry_partitionable"
"""The setting of JAX that decides which bits a key gives: here, those where it is on."""


def quick(key: Array) -> Array:
    """Return the same key, quicker to draw from; a key of another kind than the default as it is.

    So is every key where ``jax_threefry_partitionable`` is off, JAX's older layout of bits.

    Parameters
    ----------
    key : random key, or the bare data of one, such as ``jax.random.PRNGKey`` makes

    Examples
    --------
    >>> import jax
    >>> from covey.keys import quick
    >>> key = jax.random.key(1)
    >>> bool(jax.random.normal(key) == jax.random.normal(quick(key)))
    True
    """
    if str(jax.random.key_impl(key)) != _DEFAULT or not getattr(jax.config, _LAYOUT, True):
        return key
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(jax.random.key_data(key) if typed else key, impl=_QUICK)


def words(key: Array, shape: tuple[int, ...], width: int) -> tuple[Array, Array]:
    """Draw two arrays of random words of 32 or 64 bits.

    A hash makes 64 bits, and JAX throws half of them away where 32 are asked for; here they serve.
    """
    key = quick(key)
    if jax.random.key_impl(key) != _QUICK:
        first, second = jax.random.split(key)
        kind = f"uint{width}"
        return jax.random.bits(first, shape, kind), jax.random.bits(second, shape, kind)
    data = jax.random.key_data(key)
    pair = _counted(data, shape)
    if width == 32:
        return pair
    # Without the barrier the hash would share the few wide lanes of what is computed from it.
    more = _counted(data, shape, 1)
    (high, low), (second_high, second_low) = lax.optimization_barrier((pair, more))
    return _joined(high, low), _joined(second_high, second_low)


def _joined(high: Array, low: Array) -> Array:
    return high.astype(jnp.uint64) << 32 | low.astype(jnp.uint64)


def _hash(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 in 20 rounds of counters ``(high, low)``."""
    schedule = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    left, right = high + schedule[0], low + schedule[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(turn)) | (right >> np.uint32(32 - turn)))
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def _counted(key: Array, shape: tuple[int, ...], high: int = 0) -> tuple[Array, Array]:
    """Hashes of the counters 0, 1, 2, ... below ``high`` words, in an array of that shape."""
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"at most 2**32 - 1 numbers can be drawn from one key, got {size}")
    counter = lax.iota(jnp.uint32, size).reshape(shape)
    return _hash(key, jnp.full_like(counter, np.uint32(high)), counter)


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed, impl=_DEFAULT))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_counted(key, shape), axis=-1)


def _fold_in(key: Array, data: ArrayLike) -> Array:
    low = jnp.asarray(data).astype(jnp.uint32)
    return jnp.stack(_hash(key, jnp.zeros_like(low), low))


def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    left, right = _counted(key, shape)
    if width == 64:
        return _joined(left, right)
    return (left ^ right).astype(f"uint{width}")


_QUICK = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="quick_threefry2x32",
    tag="quick",
)
