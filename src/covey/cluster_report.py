"""What ``covey cluster`` does between reading and writing, what it prints, and its picture."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey import figures
from covey.files import Table

if TYPE_CHECKING:
    from covey import SSMCKMeans

SHOWN_CLUSTERS = 40
SHOWN_POINTS = 20_000
NUMBERED = 30
"""With more clusters than this their numbers hide the points."""

COLOURS = (
    figures.BLUE,
    figures.ORANGE,
    figures.GREEN,
    figures.PURPLE,
    figures.SKY,
    "#E69F00",
    figures.GREY,
)


@dataclass(frozen=True)
class Clustered:
    """A table, its clusters, and in which coordinates they were sought.

    Attributes
    ----------
    values : (n, d), in the units of the file
    scaled : (n, d), what was clustered
    labels : (n,)
    centres : (k, d), in the units of the file
    scaled_centres : (k, d)
    masses : (k,), rows of each cluster, or their weight
    inertia : float, in the units of ``scaled``
    remarks : warnings, one sentence each
    """

    names: tuple[str, ...]
    values: np.ndarray
    scaled: np.ndarray
    labels: np.ndarray
    centres: np.ndarray
    scaled_centres: np.ndarray
    sizes: np.ndarray
    masses: np.ndarray | None
    inertia: float
    remarks: tuple[str, ...]


def estimator(k: int, method: str, seed: int) -> SSMCKMeans:
    """Make the estimator, so that a missing scikit-learn and a wrong method show at once."""
    import covey

    return covey.SSMCKMeans(k, method=method, random_state=seed)


def cluster(
    table: Table, kmeans: SSMCKMeans, scale: str, weights: np.ndarray | None = None
) -> Clustered:
    """Cluster a table, with columns as they are or each divided by its standard deviation."""
    k, n = kmeans.n_clusters, len(table.values)
    if not 1 <= k <= n:
        raise ValueError(f"k must be from 1 to {n}, the number of rows, got {k}")
    scaled, back = table.values, None
    if scale == "standard":
        from sklearn.preprocessing import StandardScaler

        back = StandardScaler().fit(table.values, sample_weight=weights)
        scaled = back.transform(table.values)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kmeans.fit(scaled, sample_weight=weights)
    centres = kmeans.cluster_centers_
    labels = kmeans.labels_
    return Clustered(
        names=table.names,
        values=table.values,
        scaled=scaled,
        labels=labels,
        centres=centres if back is None else back.inverse_transform(centres),
        scaled_centres=centres,
        sizes=np.bincount(labels, minlength=k),
        masses=None if weights is None else np.bincount(labels, weights, k),
        inertia=kmeans.inertia_,
        remarks=tuple(str(warning.message) for warning in caught),
    )


def heading(found: Clustered, method: str, scale: str, weights: str | None) -> str:
    """Say what was clustered and how well."""
    n, d = found.values.shape
    shown = ", ".join(found.names[:8]) + (", ..." if d > 8 else "")
    units = " of columns divided by their standard deviation" if scale == "standard" else ""
    weighed = f", rows weighed by {weights}" if weights is not None else ""
    return (
        f"k = {len(found.centres)}, {n:,} rows, {d} column{'s' * (d > 1)} ({shown}){weighed}\n"
        f"inertia {found.inertia:.6g}{units}, method {method}\n"
    )


def table(found: Clustered) -> Any:
    """Lay out the sizes of the clusters as a Rich table, the first ones where there are many."""
    from rich import box
    from rich.table import Table as Laid

    laid = Laid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    weighed = found.masses is not None
    for title in ("cluster", "rows", *(["weight"] if weighed else []), "share"):
        laid.add_column(title, justify="right", no_wrap=True)
    masses = found.sizes if found.masses is None else found.masses
    shares = masses / masses.sum()
    for j in range(min(len(shares), SHOWN_CLUSTERS)):
        weight = [f"{masses[j]:.6g}"] if weighed else []
        laid.add_row(str(j), f"{found.sizes[j]:,}", *weight, f"{shares[j]:.1%}")
    return laid


def rest(found: Clustered) -> str | None:
    """Sum up the clusters that the table leaves out."""
    left = found.sizes[SHOWN_CLUSTERS:]
    if not len(left):
        return None
    return f"... and {len(left)} more, of {left.min():,} to {left.max():,} rows"


# The picture


def draw(found: Clustered, path: Path) -> None:
    """Draw the points by cluster with the centres: the two columns, or principal components."""
    points, centres, labels = _seen(found)
    place, axis_names = _projection(found)
    points, centres = place(points), place(centres)
    colours = apart(centres)
    n, k = len(found.values), len(centres)
    with figures.figure(path, 6.4, 4.8) as canvas:
        axes = canvas.add_subplot()
        size = float(np.clip(4000 / len(points), 2, 20))
        axes.scatter(
            *points.T,
            s=size,
            c=np.array(COLOURS)[colours[labels]],
            alpha=0.75 if len(points) < 2000 else 0.45,
            linewidths=0,
            rasterized=True,
        )
        _mark(axes, centres)
        axes.set(title=f"{n:,} rows in {k} clusters", xlabel=axis_names[0], ylabel=axis_names[1])
        if not axis_names[1]:
            axes.set(yticks=[])
            axes.grid(False)
        if len(points) < n:
            canvas.supxlabel(f"{len(points):,} of the rows, drawn at random", fontsize="small")


def _seen(found: Clustered) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, centres and labels to draw: not more rows than eyes can tell apart."""
    n, d = found.values.shape
    chosen = np.arange(n)
    if n > SHOWN_POINTS:
        chosen = np.random.default_rng(0).choice(n, SHOWN_POINTS, replace=False)
    if d > 2:
        return found.scaled[chosen], found.scaled_centres, found.labels[chosen]
    return found.values[chosen], found.centres, found.labels[chosen]


def _projection(found: Clustered) -> tuple[Any, tuple[str, str]]:
    """How to go from d columns to two, and what they are then called."""
    d = found.values.shape[1]
    if d == 1:
        # Spread upwards, so that points of one value do not hide each other.
        def spread(x: np.ndarray) -> np.ndarray:
            many = len(x) > len(found.centres)
            heights = np.random.default_rng(0).uniform(-1, 1, len(x)) if many else np.zeros(len(x))
            return np.column_stack([x[:, 0], heights])

        return spread, (found.names[0], "")
    if d == 2:
        return lambda x: x, (found.names[0], found.names[1])
    from sklearn.decomposition import PCA

    fitted = PCA(2, random_state=0).fit(_seen(found)[0])
    shares = np.nan_to_num(fitted.explained_variance_ratio_)
    first, second = (f"{share:.0%} of the variance" for share in shares)
    return fitted.transform, (
        f"first principal component ({first})",
        f"second principal component ({second})",
    )


def apart(centres: np.ndarray) -> np.ndarray:
    """Give colours (k,), by number, such that those that must repeat do so far apart.

    Examples
    --------
    >>> import numpy as np
    >>> from covey.cluster_report import apart
    >>> apart(np.array([[float(j), 0.0] for j in range(9)])).tolist()
    [0, 1, 2, 3, 4, 5, 6, 0, 1]
    """
    chosen = np.zeros(len(centres), int)
    for j, centre in enumerate(centres):
        distance = np.linalg.norm(centres[:j] - centre, axis=1)
        nearest = [
            distance[chosen[:j] == colour].min(initial=np.inf) for colour in range(len(COLOURS))
        ]
        chosen[j] = int(np.argmax(nearest))
    return chosen


def _mark(axes: Any, centres: np.ndarray) -> None:
    numbered = len(centres) <= NUMBERED
    axes.scatter(
        *centres.T,
        s=130 if numbered else 22,
        marker="o",
        c="white",
        edgecolors=figures.BLACK,
        linewidths=1.0,
        zorder=3,
    )
    if numbered:
        for j, (x, y) in enumerate(centres):
            axes.annotate(str(j), (x, y), ha="center", va="center_baseline", fontsize=7, zorder=4)
