"""One look for every figure: readable in print, and by readers who see colours differently."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLACK, GREY = "#222222", "#6e6e6e"
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"
"""Colours of Okabe and Ito (2008), told apart with every kind of colour vision."""

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": BLACK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.titlesize": 11,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "text.color": BLACK,
    "xtick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.color": GREY,
    "ytick.labelcolor": BLACK,
}


def need_matplotlib() -> None:
    """Say what to install where Matplotlib is missing: before the computing, not after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("figures need Matplotlib: pip install 'covey[figures]'") from error


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Any]:
    """Lend a figure of this size in inches, and write it to a file when the block ends well.

    The file is complete or not there at all. No window opens and no setting of Matplotlib stays
    changed.
    """
    need_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        lent = Figure(figsize=(width, height), layout="constrained")
        yield lent
        with written_whole(path) as part:
            lent.savefig(part, format=path.suffix[1:])


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Lend a place to write to, which becomes the file when the block ends well."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
