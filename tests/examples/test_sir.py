"""The simulator, the particle filter and the model of the SIR example."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from scipy import integrate, linalg

import report
import sir
import sir_simulator as simulator
from pymc_dp.graphs.values import PLAIN_MODE
from tests.agreement import same_law, values_follow
from tests.references import references

SEED = 3


def curves(seed, n, times, *, beta, gamma, **kwargs):
    return simulator.simulate(np.random.default_rng(seed), np.full(n, beta), gamma, times, **kwargs)


def test_steps_follow_the_law_of_the_events():
    size = {"beta": 0.61, "gamma": 0.049, "population": 20_000}
    times = np.array([10.0, 17.0, 34.0, 68.0])
    exact = curves(1, 3000, times, exact_below=np.inf, **size)
    same_law(curves(2, 10_000, times, **size), exact)


def laws(population, beta, gamma, times, weights=None):
    """Yield the law of S and I at each time, by the matrix exponential, times weights of I."""
    states = [(s, i) for s in range(population) for i in range(population + 1 - s)]
    index = {state: k for k, state in enumerate(states)}
    q = np.zeros((len(states), len(states)))
    for (s, i), k in index.items():
        for to, rate in (((s - 1, i + 1), beta * s * i / population), ((s, i - 1), gamma * i)):
            if rate:
                q[k, index[to]] += rate
                q[k, k] -= rate
    infected = np.array([i for _, i in states])
    law = np.eye(len(states))[index[population - 1, 1]]
    for k, wait in enumerate(np.diff(times, prepend=0.0)):
        law = law @ linalg.expm(q * wait)
        if weights is not None:
            law = law * weights[k, infected]
        yield infected, law


def test_every_event_is_drawn():
    times = np.array([1.0, 3.0, 6.0, 12.0])
    drawn = curves(SEED, 20_000, times, beta=1.2, gamma=0.4, population=20)
    for k, (infected, law) in enumerate(laws(20, 1.2, 0.4, times)):
        chances = np.bincount(infected, law)
        values_follow(drawn[:, k], np.arange(len(chances)), chances)


@pytest.mark.parametrize("beta", [0.3, 1.6])
def test_large_epidemics_follow_the_differential_equation(beta):
    population, infected, times = 10**8, 10**6, np.array([3.0, 9.0, 17.0, 40.0])

    def change(_, y):
        new = beta * y[0] * y[1] / population
        return [-new, new - 0.1 * y[1]]

    solution = integrate.solve_ivp(
        change, (0, 40), [population - infected, infected], t_eval=times, rtol=1e-9
    )
    found = curves(SEED, 50, times, beta=beta, gamma=0.1, population=population, infected=infected)
    np.testing.assert_allclose(found.mean(axis=0), solution.y[1], rtol=3e-3)


def test_likelihood_is_unbiased():
    size = population, beta, gamma, times = 7, 1.1, 0.5, np.array([0.5, 2.0, 5.0])
    log_mass = simulator.binomial_log_mass(np.array([6, 9, 5]), 20, 2.0, population)
    *_, (_, law) = laws(*size, np.exp(log_mass))
    rng, rates = np.random.default_rng(SEED), (np.full(20_000, rate) for rate in (beta, gamma))
    logs = simulator._log_likelihoods(rng, *rates, population, 1, times, log_mass, 10)
    estimates = np.exp(logs)
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - law.sum()) < 4 * error < 0.05 * law.sum()


def test_the_studies_are_as_stated():
    study, known = sir.measles(), references("neural")["sir"]
    assert study.released.tolist() == known["counts"]["10"]
    reference = known["reference"]["10"]
    for name, own in zip(("log_beta", "log_gamma", "R0"), study.reference.values(), strict=True):
        k = reference["names"].index(name)
        assert own == tuple(reference[m][k] for m in ("mean", "sd"))
    for epsilon in (0.3, 10.0):
        assert 10 * sir.school(epsilon, 1).mechanism.epsilon() == pytest.approx(epsilon)


@pytest.mark.nightly
def test_simulator_mechanism_and_priors_give_the_reference():
    study, rng = sir.measles(), np.random.default_rng(SEED)
    weighted = sir.particles(study, rng, draws=2500, particles=50, rounds=4)
    assert weighted.ess > 2500 / 3  # 1,500
    found = report.moments(sir.quantities(weighted.resample(rng, 20_000)))
    for name, (mean, sd) in study.reference.items():
        assert abs(found[name][0] - mean) < 0.1 * sd
        assert abs(found[name][1] / sd - 1) < 0.1


def test_a_batch_of_the_model_has_each_rate_and_the_simulators_law():
    study = sir.measles()
    model = cloudpickle.loads(cloudpickle.dumps(sir.build(study)))
    rates = np.log(np.linspace(0.3, 0.9, 400))
    curve = vectorize_graph(model["curve"], {model["log_beta"]: pt.constant(rates)})
    fixed = {model["log_gamma"]: pt.constant(np.log(0.125))}
    drawn = pm.draw(pm.pytensorf.clone_replace(curve, fixed), random_seed=SEED, mode=PLAIN_MODE)
    rng = np.random.default_rng(SEED)
    expected = simulator.simulate(
        rng, np.exp(np.tile(rates, 10)), 0.125, study.epidemic.times, population=1_000_000
    )
    assert drawn.shape == (400, 10)
    for half in (slice(0, 200), slice(200, 400)):
        same_law(drawn[half, :5], expected.reshape(10, 400, 10)[:, half, :5].reshape(-1, 5))
