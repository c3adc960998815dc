"""Releases of the producer Acme: a line of text, `acme <value> laplace <scale>`."""

import pymc_dp as dp


def read(text):
    """Return the release that a line states."""
    producer, value, noise, scale = text.split()
    if producer != "acme" or noise != "laplace":
        raise ValueError(f"acme: {text!r} is not `acme <value> laplace <scale>`")
    return dp.Release(float(value), dp.LaplaceMechanism(float(scale)), source="Acme")
