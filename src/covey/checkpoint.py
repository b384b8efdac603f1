"""Sessions on disk: written at once or not at all, and refused when damaged or foreign."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import json
import os
import re
import secrets
import shutil
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

NAME, FORMAT = b"covey session ", 1
MAGIC = b"%s%d\n" % (NAME, FORMAT)


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
            with contextlib.suppress(OSError):  # no file yet, or a system without permissions
                shutil.copymode(path, part)
            file.write(MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise _unsaved(path, error) from error
        raise
    _sync_folder(path.parent)
    _sweep(path)


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"a session is saved to a file, got the folder {path}; name a file")
    if path.exists() and not path.is_file():
        raise OSError(f"a session is saved to a file, got the device or pipe {path}; name a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save {path}: there is no folder {path.parent}; make it")


def _unsaved(path: Path, error: OSError) -> OSError:
    """Return an error of the same kind about the file that was to be written, not its part."""
    left = "the file is as it was" if path.exists() else "nothing was left"
    reason = f"cannot save a session: {error.strerror or error}; {left}; save to another place"
    return OSError(error.errno, reason, str(path))


def _sweep(path: Path) -> None:
    """Remove what writers that were killed have left: parts that nobody has touched for an hour."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > 3600:
                part.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself last, where the system can."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some file systems cannot, and a folder that may be written need not be readable.
        if error.errno not in (errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOTSUP):
            reason = (
                f"a session was saved, but may not outlast a crash: {error.strerror}; save again"
            )
            raise OSError(error.errno, reason, str(folder)) from error


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
    elif header["key"] != (usual := str(jax.random.key_impl(jax.random.key(0)))):
        raise ValueError(
            f"{path} has a bare key of kind {header['key']}, and bare keys are now taken for "
            f"{usual}; set jax_default_prng_impl to {header['key']!r}"
        )
    wanted = jax.eval_shape(partial(_particles_at, filter, header["step"]), key)
    _refuse_another(path, header, _numbers(filter), _form(wanted))
    estimate = None
    if header["estimate"]:
        blank = jax.eval_shape(Estimate.of, wanted, jnp.int32(0))
        estimate = _filled(blank, arrays, "estimate")
    state = State(header["step"], _filled(wanted, arrays, "particles"), estimate)
    return Session(key, filter, on_failure, state)


def _refuse_another(path: Any, header: dict[str, Any], numbers: str, form: str) -> None:
    for what, expected, separator in (("numbers", numbers, ", "), ("form", form, "; ")):
        if header[what] != expected:
            ours, theirs = expected.split(separator), header[what].split(separator)
            raise ValueError(
                f"{path} is the session of another filter: expected "
                f"{_beyond(ours, theirs, separator)}, found {_beyond(theirs, ours, separator)}; "
                "resume it with the model, the numbers of particles and the float mode it was "
                "made with"
            )


def _beyond(parts: list[str], others: list[str], separator: str) -> str:
    return separator.join(part for part in parts if part not in others) or "nothing else"


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
    if path.is_dir():
        raise IsADirectoryError(f"a session is one file, got the folder {path}; name a file in it")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        reason = "there is no session to resume; name a file that Session.save wrote"
        raise FileNotFoundError(error.errno, reason, str(path)) from error
    if not content.startswith(MAGIC):
        later = re.match(NAME + rb"(\d{1,9})\n", content)
        if later and int(later[1]) > FORMAT:
            raise ValueError(
                f"{path} is a session of format {int(later[1])}, written by a later covey: this "
                f"one reads format {FORMAT}; install the covey that wrote it"
            )
        raise ValueError(
            f"{path} is not a session that covey wrote, or its beginning is lost: expected "
            f"{MAGIC!r}, got {content[:16]!r}; name another file or an older copy"
        )
    digest, _, body = content[len(MAGIC) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError(f"{path} is damaged: its checksum does not fit; use an older copy")
    line, _, packed = body.partition(b"\n")
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return json.loads(line), dict(arrays)
