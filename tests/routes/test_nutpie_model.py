"""What nutpie is given is what it makes of a model itself."""

import numpy as np
import pymc as pm
import pytest

nutpie = pytest.importorskip("nutpie")

from pymc_dp.routes.nutpie_model import compile_model, density_of, with_data  # noqa: E402

pytestmark = pytest.mark.compiled


def model():
    with pm.Model(coords={"group": ["a", "b", "c"]}) as built:
        data = pm.Data("data", np.array([1.0, 2.0, 4.0]))
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        theta = pm.Normal("theta", mu, sigma, dims="group")
        p = pm.Dirichlet("p", np.ones(3))
        pm.Deterministic("twice", 2.0 * theta, dims="group")
        pm.Potential("penalty", -((p * data).sum() ** 2))
        pm.Normal("y", theta, 0.5, observed=data)
    return built


def expanded(compiled, q):
    """Call the function by which nutpie makes the variables of a draw."""
    out = np.empty(compiled.n_expanded)
    function = compiled.compiled_expand_func.ctypes
    kinds = function.argtypes[2:4]
    pointers = [a.ctypes.data_as(k) for a, k in zip([q, out], kinds, strict=True)]
    assert function(q.size, out.size, *pointers, compiled.user_data.ctypes.data) == 0
    return out


def _plain(value):
    return value if isinstance(value, str | slice) else [*value]


@pytest.mark.parametrize("var_names", [None, ["twice"]])
def test_density_expansion_and_labels(var_names):
    built, rng = model(), np.random.default_rng(1)
    own = with_data(compile_model(built, var_names))
    other = nutpie.compile_pymc_model(built, var_names=var_names)
    density = density_of(own)
    for _ in range(5):
        q = rng.normal(size=own.n_dim)
        value, gradient = density(q)
        expected = other.logp_func(q)
        np.testing.assert_allclose(value, expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-10)
        np.testing.assert_allclose(expanded(own, q), expanded(other, q), rtol=1e-12)
    assert own.n_dim == other.n_dim
    for ours, theirs in zip(own.shape_info, other.shape_info, strict=True):
        assert [_plain(v) for v in ours] == [_plain(v) for v in theirs]
    assert {k: [*v] for k, v in own.shapes.items()} == {k: [*v] for k, v in other.shapes.items()}
    assert own.dims == other.dims
    assert {k: list(v) for k, v in own.coords.items()} == {
        k: list(v) for k, v in other.coords.items()
    }
    assert own.reparameterized_names == other.reparameterized_names


def test_data_are_those_of_the_call():
    built = model()
    compiled = compile_model(built)
    before = density_of(with_data(compiled))(np.zeros(compiled.n_dim))
    built.set_data("data", [9.0, 9.0, 9.0])
    after = density_of(with_data(compiled))(np.zeros(compiled.n_dim))
    other = nutpie.compile_pymc_model(built).logp_func(np.zeros(compiled.n_dim))
    assert before[0] != after[0]
    np.testing.assert_allclose(after[0], other[0], rtol=1e-12)
    np.testing.assert_allclose(after[1], other[1], rtol=1e-12)


def test_what_has_no_value_is_told_as_nutpie_tells_it():
    with pm.Model() as built:
        x = pm.Normal("x")
        pm.Potential("edge", pm.math.log(x))
    for compiled in (with_data(compile_model(built)), nutpie.compile_pymc_model(built)):
        function, out, value = compiled.compiled_logp_func.ctypes, np.empty(1), np.empty(1)
        kinds = function.argtypes[1:4]
        codes = []
        for at in (1.0, -1.0):
            arrays = [np.array([at]), out, value]
            pointers = [a.ctypes.data_as(k) for a, k in zip(arrays, kinds, strict=True)]
            codes.append(function(1, *pointers, compiled.user_data.ctypes.data))
        assert codes[0] == 0
        assert codes[1] > 0  # the sampler may go on
