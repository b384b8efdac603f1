"""k-means that starts well: seeding by particles that collapse, and the estimator."""

from covey.estimators.kmeans import SSMCKMeans
from covey.estimators.ssmc import Generation, ssmc_init

__all__ = ["Generation", "SSMCKMeans", "ssmc_init"]
