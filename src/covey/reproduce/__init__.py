"""The experiments of the paper; inside the package, so that an installed Covey can repeat them."""
