"""What the tests of mechanisms share: graphs as numbers, and draws against their law."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from scipy import stats

# Graphs as written, without rewrites or compilation: milliseconds instead of seconds each.
PYTHON = Mode(linker="py", optimizer=None)


def evaluate(*graphs):
    values = pytensor.function([], list(graphs), mode=PYTHON)()
    return values[0] if len(graphs) == 1 else values


@cache
def functions_of(mechanism_class):
    """The functions of noise of one scale, with slopes; by night compiled as in a model."""
    value, s, scale, low, high, p = variables = pt.vectors(
        "value", "s", "scale", "low", "high", "p"
    )
    mechanism = mechanism_class(scale)
    graphs = {
        "logp": mechanism.logp(value, s),
        "interval": mechanism.log_interval(low, high, s),
        "logcdf": mechanism.logcdf(value, s),
        "icdf": mechanism.icdf(p, s),
    }
    zero = {"disconnected_inputs": "ignore", "return_disconnected": "zero"}
    for name in ("logp", "interval") if mechanism.is_discrete else tuple(graphs):
        by_s, by_scale = pt.grad(graphs[name].sum(), [s, scale], **zero)
        graphs |= {f"{name}_by_s": by_s, f"{name}_by_scale": by_scale}
    function = pytensor.function(variables, list(graphs.values()))

    def call(value=0.0, s=0.0, scale=1.0, low=-1.0, high=1.0, p=0.5):
        arguments = np.broadcast_arrays(*map(np.atleast_1d, (value, s, scale, low, high, p)))
        found = function(*(np.array(a, dtype=float) for a in arguments))
        return SimpleNamespace(**dict(zip(graphs, found, strict=True)))

    return call


def assert_law_of_draws(draws, edges, cdf):
    """Between increasing edges are as many draws as the distribution function there says."""
    expected = len(draws) * np.diff(cdf, prepend=0.0, append=1.0)
    # Bin i holds edges[i-1] < z <= edges[i].
    observed = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    assert not np.any(observed[expected <= 1e-6])
    rare = expected < 5
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    chi2 = ((observed - expected) ** 2 / np.maximum(expected, 1.0)).sum()
    assert stats.chi2.sf(chi2, len(expected) - 1) > 1e-3
