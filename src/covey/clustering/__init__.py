"""Clusterers: functions ``(key, features, log_w) -> labels`` for use within resampling."""

from covey.clustering.kmeans import KMeans, kmeans, nearest

__all__ = ["KMeans", "kmeans", "nearest"]
