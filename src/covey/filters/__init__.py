"""Filters: how particles start and how one observation changes them."""

from covey.filters.auxiliary import auxiliary
from covey.filters.base import Filter
from covey.filters.bootstrap import bootstrap, cluster_filter
from covey.filters.guided import guided

__all__ = ["Filter", "auxiliary", "bootstrap", "cluster_filter", "guided"]
