"""Sessions on disk: written at once or not at all, and refused when damaged or foreign."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:
    from covey.filters.base import Filter
    from covey.run import Session

MAGIC = b"covey session 1\n"


def write(path: Any, session: Session) -> None:
    """Write a session: first beside the file, then in its place.

    A kill at any moment leaves the old file or the new one; a full disk leaves the old one.
    """
    path = Path(path)
    body = _pack(session)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


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

    leaves = jax.tree.leaves(session.particles)
    header = {
        "covey": __version__,
        "step": session.step,
        "key": str(jax.random.key_impl(session.key)),
        "typed_key": jnp.issubdtype(session.key.dtype, jax.dtypes.prng_key),
        "form": _form(session.particles),
        "estimate": session.estimate is not None,
    }
    arrays = {f"particles{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    arrays["key"] = np.asarray(_key_data(session.key))
    for i, leaf in enumerate(jax.tree.leaves(session.estimate)):
        arrays[f"estimate{i}"] = np.asarray(leaf)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return json.dumps(header).encode() + b"\n" + buffer.getvalue()


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
    header, arrays = _unpack(Path(path))
    key = jnp.asarray(arrays["key"])
    if header["typed_key"]:
        key = jax.random.wrap_key_data(key, impl=header["key"])
    from covey.run import Session

    session = Session(key, filter, on_failure)
    wanted = particles_form(filter, key, header["step"])
    expected, found = _form(wanted), header["form"]
    if expected != found:
        raise ValueError(
            f"{path} is the session of another filter: expected particles {expected}, "
            f"found {found}; resume it with the filter, the number of particles and the float "
            "mode it was made with"
        )
    session.step = header["step"]
    session.particles = _filled(wanted, arrays, "particles")
    if header["estimate"]:
        from covey.history import Estimate

        blank = jax.eval_shape(Estimate.of, wanted, jnp.int32(0), wanted.log_evidence)
        session.estimate = _filled(blank, arrays, "estimate")
    return session


def particles_form(filter: Filter, key: Any, step: int) -> Any:
    """Shapes of the particles that the filter has after so many steps."""
    form = jax.eval_shape(filter.init, key)
    n = filter.particles_at(step) if step else filter.n_initial
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(((n, *leaf.shape[1:]) if leaf.ndim else ()), leaf.dtype),
        form,
    )


def _filled(blank: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    leaves, treedef = jax.tree.flatten(blank)
    values = [jnp.asarray(arrays[f"{name}{i}"]) for i in range(len(leaves))]
    return jax.tree.unflatten(treedef, values)


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
