"""Covey: particle filters that keep every hypothesis alive, and k-means that starts well."""

from typing import TYPE_CHECKING, Any

from covey import models
from covey.clustering import kmeans
from covey.errors import FilterError
from covey.filters import Filter, auxiliary, bootstrap, cluster_filter, guided
from covey.history import Estimate, History
from covey.models import Proposal, StateSpaceModel, from_numpy, simulate
from covey.particles import Particles
from covey.resampling import (
    Scheme,
    clustered,
    killing,
    multinomial,
    residual,
    ssp,
    stratified,
    systematic,
    when_ess_below,
)
from covey.run import Session, online, resume, run

if TYPE_CHECKING:
    from covey.estimators import SSMCKMeans, ssmc_init

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "Filter",
    "FilterError",
    "History",
    "Particles",
    "Proposal",
    "SSMCKMeans",
    "Scheme",
    "Session",
    "StateSpaceModel",
    "auxiliary",
    "bootstrap",
    "cluster_filter",
    "clustered",
    "from_numpy",
    "guided",
    "killing",
    "kmeans",
    "models",
    "multinomial",
    "online",
    "residual",
    "resume",
    "run",
    "simulate",
    "ssmc_init",
    "ssp",
    "stratified",
    "systematic",
    "when_ess_below",
]

_ESTIMATORS = ("SSMCKMeans", "ssmc_init")


def __getattr__(name: str) -> Any:
    """Load the estimators when they are first asked for: filters do without scikit-learn."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from covey import estimators
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("covey"):
            raise
        raise ImportError(
            f"covey.{name} needs scikit-learn: pip install 'covey[cluster]'"
        ) from error
    return getattr(estimators, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
