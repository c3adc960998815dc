"""Pure numba kernels: scalar and array functions that know nothing of PyMC."""
