"""Histories as labelled tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from covey.history import History

PER_STEP = (
    "log_evidence",
    "log_increment",
    "ess",
    "resampled",
    "unique",
    "cluster_kl",
    "status",
)


def dataset(history: History) -> Any:
    """Turn the history of one run into an :class:`xarray.Dataset`."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_xarray needs xarray: pip install 'covey[xarray]'") from error
    if history.final.log_w.ndim != 1:
        raise ValueError(
            "to_xarray works on one run; pick one first, for instance with "
            "jax.tree.map(lambda leaf: leaf[0], history)"
        )
    steps = history.steps
    variables = {name: ("step", np.asarray(getattr(steps, name))) for name in PER_STEP}
    for name, state in (("mean", steps.mean), ("variance", steps.variance)):
        variables |= _leaves(name, state, ("step",))
    if history.initial is not None:
        variables |= _particles(history)
    coordinates = {"step": np.asarray(steps.step)}
    return xarray.Dataset(
        variables,
        coordinates,
        {"particles": history.final.n, "log_evidence": float(history.log_evidence)},
    )


def _leaves(name: str, state: Any, dimensions: tuple[str, ...]) -> dict[str, Any]:
    """One variable a leaf; its own dimensions are called after it."""
    variables = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        label = name + "".join(f".{_word(part)}" for part in path)
        values = np.asarray(leaf)
        part, sizes = label.partition(".")[2] or "component", values.shape[len(dimensions) :]
        own = [f"{part}_{i}" for i in range(1, len(sizes) + 1)]
        own = ["component"] if len(own) == 1 and not path else own
        variables[label] = ((*dimensions, *own), values)
    return variables


def _word(part: Any) -> str:
    for name in ("key", "name", "idx"):
        if hasattr(part, name):
            return str(getattr(part, name))
    return str(part)


def _particles(history: History) -> dict[str, Any]:
    most = max(block["ancestors"].shape[1] for block in history.saved) if history.saved else 0

    def joined(pieces: Sequence[Any], fill: float) -> np.ndarray:
        padded = []
        for piece in map(np.asarray, pieces):
            if piece.shape[1] < most and not np.isdtype(piece.dtype, "signed integer"):
                piece = piece.astype(np.result_type(piece, np.float32))
            room = [(0, 0), (0, most - piece.shape[1])] + [(0, 0)] * (piece.ndim - 2)
            padded.append(np.pad(piece, room, constant_values=fill))
        return np.concatenate(padded)

    if not history.saved:
        return {}
    blocks = history.saved
    x = jax.tree.map(lambda *pieces: joined(pieces, _filler(pieces[0])), *(b["x"] for b in blocks))
    weight = joined([np.exp(b["log_w"]) for b in blocks], 0)
    ancestor = joined([b["ancestors"] for b in blocks], -1)
    both = ("step", "particle")
    return _leaves("x", x, both) | {"weight": (both, weight), "ancestor": (both, ancestor)}


def _filler(values: Any) -> float:
    return np.nan if np.issubdtype(values.dtype, np.floating) else -1
