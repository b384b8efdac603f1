"""Covey: particle filters that keep every hypothesis alive."""

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

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "Filter",
    "FilterError",
    "History",
    "Particles",
    "Proposal",
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
    "ssp",
    "stratified",
    "systematic",
    "when_ess_below",
]
