"""Resamplers: functions ``(key, particles, n) -> particles``."""

from covey.resampling.adaptive import when_ess_below
from covey.resampling.clustered import clustered
from covey.resampling.schemes import (
    Scheme,
    killing,
    multinomial,
    residual,
    ssp,
    stratified,
    systematic,
)

__all__ = [
    "Scheme",
    "clustered",
    "killing",
    "multinomial",
    "residual",
    "ssp",
    "stratified",
    "systematic",
    "when_ess_below",
]
