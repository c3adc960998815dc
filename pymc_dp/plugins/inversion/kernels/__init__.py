"""Numbers in, numbers out: the densities of sums by inversion."""
