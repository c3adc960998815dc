"""Pure numba functions (rng, state, parameters) -> state, free of PyMC."""

from hashlib import sha256
from pathlib import Path

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))

# PyTensor keeps compiled graphs on disk: their keys have to follow the source of the kernels.
KERNEL_VERSION = sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()
