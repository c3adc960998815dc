"""Numbers in, numbers out: densities of noisy sums by inversion, and draws of sums."""
