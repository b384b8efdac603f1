"""State-space models: what one is, and ready-made ones."""

from covey.models.base import Proposal, StateSpaceModel, simulate
from covey.models.linear_gaussian import LinearGaussian
from covey.models.numpy import from_numpy
from covey.models.volatility import StochasticVolatility

__all__ = [
    "LinearGaussian",
    "Proposal",
    "StateSpaceModel",
    "StochasticVolatility",
    "from_numpy",
    "simulate",
]
