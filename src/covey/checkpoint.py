"""Sessions on disk: written at once or not at all, and refused when damaged or foreign."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import secrets
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:
    from covey.filters.base import Filter
    from covey.particles import Particles
    from covey.run import Session

MAGIC = b"covey session 1\n"


def write(path: Any, session: Session) -> None:
    """Write a session: first beside the file, then in its place.

    A kill at any moment leaves the old file or the new one; a full disk leaves the old one.
    """
    path = Path(os.path.realpath(path))
    _check_place(path)
    body = _pack(session)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            file.write(MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    _sweep(path)


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"a session is saved to a file, got the folder {path}; name a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {path.parent}; make it")


def _sweep(path: Path) -> None:
    """Remove what writers that were killed have left: parts that nobody has touched for an hour."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > 3600:
                part.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself last, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _pack(session: Session) -> bytes:
    from covey import __version__

    step, particles, estimate = session.state
    header = {
        "covey": __version__,
        "step": step,
        "key": str(jax.random.key_impl(session.key)),
        "typed_key": jnp.issubdtype(session.key.dtype, jax.dtypes.prng_key),
        "numbers": _numbers(session.filter),
        "form": _form(particles),
        "estimate": estimate is not None,
    }
    arrays = {"key": np.asarray(_key_data(session.key))}
    for name, tree in (("particles", particles), ("estimate", estimate)):
        leaves = jax.tree.leaves(tree)
        arrays |= {f"{name}{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return json.dumps(header).encode() + b"\n" + buffer.getvalue()


def _numbers(filter: Filter) -> str:
    return f"n={filter.n}, n_initial={filter.n_initial}, hold={filter.hold}"


def _key_data(key: Array) -> Array:
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key


def _form(particles: Any) -> str:
    """Structure, shapes and types of a set of particles, as text."""
    leaves = jax.tree_util.tree_leaves_with_path(particles)
    return "; ".join(
        f"{jax.tree_util.keystr(path)} {np.dtype(leaf.dtype).name}{list(leaf.shape)}"
        for path, leaf in leaves
    )


def read(path: Any, filter: Filter, on_failure: str) -> Session:
    """Read a session back for its filter."""
    from covey.history import Estimate
    from covey.run import Session, State

    header, arrays = _unpack(Path(path))
    key = jnp.asarray(arrays["key"])
    if header["typed_key"]:
        key = jax.random.wrap_key_data(key, impl=header["key"])
    wanted = jax.eval_shape(partial(_particles_at, filter, header["step"]), key)
    _refuse_another(path, header, _numbers(filter), _form(wanted))
    estimate = None
    if header["estimate"]:
        blank = jax.eval_shape(Estimate.of, wanted, jnp.int32(0), wanted.log_evidence)
        estimate = _filled(blank, arrays, "estimate")
    state = State(header["step"], _filled(wanted, arrays, "particles"), estimate)
    return Session(key, filter, on_failure, state)


def _refuse_another(path: Any, header: dict[str, Any], numbers: str, form: str) -> None:
    for what, expected in (("numbers", numbers), ("form", form)):
        if header[what] != expected:
            raise ValueError(
                f"{path} is the session of another filter: expected {expected}, found "
                f"{header[what]}; resume it with the model, the numbers of particles and the "
                "float mode it was made with"
            )


def _particles_at(filter: Filter, step: int, key: Array) -> Particles:
    """Particles of the form that the filter has after so many steps."""
    particles = filter.init(key)
    if step and filter.particles_at(step) != filter.n_initial:
        return particles.select(jnp.zeros(filter.n, jnp.int32))
    return particles


def _filled(blank: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    leaves, treedef = jax.tree.flatten(blank)

    def filled(i: int, dtype: Any) -> Array:
        # An array file keeps types that NumPy does not know, such as bfloat16, as bare bytes.
        value = arrays[f"{name}{i}"]
        return jnp.asarray(value.view(dtype) if value.dtype.kind == "V" else value)

    return jax.tree.unflatten(treedef, [filled(i, leaf.dtype) for i, leaf in enumerate(leaves)])


def _unpack(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise ValueError(
            f"{path} is not a session that covey wrote: it must begin with {MAGIC!r}, got "
            f"{content[:16]!r}"
        )
    digest, _, body = content[len(MAGIC) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError(f"{path} is damaged: its checksum does not fit; use an older copy")
    line, _, packed = body.partition(b"\n")
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return json.loads(line), dict(arrays)
