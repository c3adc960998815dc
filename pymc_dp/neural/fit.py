r"""`sppe` and `sple`: the posterior given a private release of data that only a simulator knows.

Both learn from simulations alone (Xiong, Ju & Zhang): SPPE the posterior density
:math:`q(\theta \mid z)`, SPLE the density of the release :math:`q(z \mid \theta)`, which then
stands for the likelihood in a PyMC model.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pymc as pm
from xarray import DataTree

from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.neural.noise import Noise, has_atoms
from pymc_dp.neural.problem import Problem
from pymc_dp.neural.run import (
    MakeNoise,
    Run,
    check_counts,
    likelihood_proposal,
    posterior_proposal,
    supported_draws,
    warn_of_border,
    warn_of_leakage,
)
from pymc_dp.neural.settings import Training
from pymc_dp.neural.simulator import Simulator, function_problem, model_problem

# Arguments of pm.sample that would change the form of the result.
_NOT_TAKEN = ("idata_kwargs", "discard_tuned_samples", "return_inferencedata", "trace", "model")


def sppe(
    model: pm.Model | None = None,
    *,
    simulator: Simulator | None = None,
    prior: pm.Model | Mapping[str, Any] | None = None,
    mechanism: Mechanism | None = None,
    observed: Any = None,
    var_names: Sequence[str] | None = None,
    rounds: int = 10,
    simulations: int = 1000,
    noise_draws: int = 8,
    estimator: Literal["maf", "nsf"] | None = None,
    qmc: bool = True,
    training: Training | None = None,
    earlier: DataTree | None = None,
    draws: int = 1000,
    chains: int = 4,
    random_seed=None,
    device: str = "cpu",
    progressbar: bool = True,
) -> DataTree:
    r"""Estimate the posterior density by sequential private posterior estimation.

    A normalizing flow :math:`q(\theta \mid z)` is trained on simulations. The parameters of the
    first round are drawn from the prior, those of every later round from the posterior estimated
    so far; the loss takes the difference between the two into account. A simulation is released
    anew M times in every minibatch. A posterior may be hundreds of times narrower than the prior,
    in whose units the first network computes: in the round after half of them, and not before the
    third, a new network takes its place, which learns from the simulations in a box around the
    parameters of the later rounds only. The last round trains the longest.

    Parameters
    ----------
    model : pm.Model, optional
        A model with `PrivateObservation` releases; the one of the context if None. Everything in
        it can be drawn, nothing but the priors needs a density: the confidential data may be a
        ``pm.CustomDist(..., random=...)`` or a ``pm.Simulator``.
        Confidential data are the free variables that a statistic uses directly, if other free
        variables are their parents, and of those without parents the ones with as many rows (the
        covariates of a regression). The other free variables that the releases depend on are the
        parameters.
    simulator, prior, mechanism, observed : optional
        In the place of a model: a function ``(parameters, rng) -> statistics`` of a dict of
        arrays of shapes (count, ...) and a `numpy.random.Generator`, which returns one row of
        statistics for each simulation (it is tried with a count of 4 first); a pm.Model of the
        parameters, or a dict of ``X.dist(...)``; the mechanism; and what it released.
    var_names : sequence of str, optional
        The parameters, where the rule above does not find those wanted; everything else is
        simulated.
    rounds, simulations : int
        Number of rounds, those of an earlier result not counted, and of calls of the simulator in
        each.
    noise_draws : int
        Releases M of each simulation in a minibatch.
    estimator : {"maf", "nsf"}, optional
        Masked autoregressive or neural spline flow, in the place of the one in `training`.
    qmc : bool, default True
        Draw the noise by randomized quasi-Monte Carlo, else independently.
    training : Training, optional
        Settings of the networks and the optimiser.
    earlier : DataTree, optional
        An earlier result of `sppe` or `sple` for the same simulator and statistic; the mechanism
        and the release may be others. A network is trained on its simulations, in a round of its
        own in the training's history, and new rounds follow. At 50 of its parameters the simulator
        runs again, twice, to see that the statistic is the same.
    draws, chains : int
        Size of the result. The draws are independent and the chains only their arrangement, so
        that R-hat and effective sample sizes say nothing of how good the network is.
    random_seed : optional
        Seed. Results can be repeated on the same machine and versions.
    device : str, default "cpu"
        Where torch trains: "cpu", "cuda", ...
    progressbar : bool, default True
        Show rounds and epochs.

    Returns
    -------
    xarray.DataTree
        Groups posterior, sample_stats (lp, the log density of the draws under the network, on the
        scale of the unconstrained parameters), observed_data, training (both losses by round and
        epoch, per release) and simulations (to go on from). Attributes of the posterior name the
        method and the estimator, which is "mdn", a mixture of Normals, where the density is that of
        a single variable; ``leakage`` is the share of draws without a prior density, or far from
        all the parameters of the later rounds, which were drawn again. The former do not occur
        where transforms of PyMC cover the support of the prior.

    Raises
    ------
    ImportError
        torch or sbi are not installed.
    ValueError, NotImplementedError
        Naming the variable and what to do.

    References
    ----------
    .. [1] Y. Xiong, N. P. Ju, S. Zhang (2024). Conditional density estimations from
       privacy-protected data.

    Examples
    --------
    Far too few simulations for a result, but fast:

    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=20)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.3), observed=0.4)
    >>> fast = dp.neural.Training(hidden_features=8, epoch_steps=5, max_epochs=2, last_epochs=4)
    >>> few = {"simulations": 100, "training": fast, "random_seed": 1, "progressbar": False}
    >>> tree = dp.neural.sppe(model, rounds=2, draws=50, chains=2, **few)
    >>> tree["posterior"]["mu"].shape
    (2, 50)
    """
    problem = read_problem(model, simulator, prior, mechanism, observed, var_names)
    check_counts(draws=draws, chains=chains)
    noise = _noise(problem, noise_draws, qmc)
    run = Run("posterior", problem, training, estimator, noise, device, random_seed)
    with run.torch():
        simulated = run.rounds(rounds, simulations, earlier, posterior_proposal, progressbar)
        run.check_range(simulated)
        release, density = problem.observed[None], run.trainer.density
        drawn, leakage = supported_draws(problem.prior, density, release, draws * chains, run.box)
        theta = drawn[:, 0]
        logq = density.log_prob(theta, release)
    warn_of_leakage(problem.prior, leakage, run.box)
    warn_of_border(run.box, theta)
    posterior = problem.prior.natural(theta.reshape(chains, draws, -1))
    stats = {"lp": logq.reshape(chains, draws)}
    return run.tree(posterior, stats, simulated, {"method": "sppe", "leakage": leakage})


def sple(
    model: pm.Model | None = None,
    *,
    simulator: Simulator | None = None,
    prior: pm.Model | Mapping[str, Any] | None = None,
    mechanism: Mechanism | None = None,
    observed: Any = None,
    var_names: Sequence[str] | None = None,
    rounds: int = 10,
    simulations: int = 1000,
    noise_draws: int = 8,
    estimator: Literal["maf", "nsf"] | None = None,
    qmc: bool = True,
    training: Training | None = None,
    earlier: DataTree | None = None,
    draws: int = 1000,
    tune: int = 500,
    chains: int = 4,
    random_seed=None,
    device: str = "cpu",
    progressbar: bool = True,
    **kwargs: Any,
) -> DataTree:
    r"""Estimate the likelihood by sequential private likelihood estimation, and sample with it.

    A normalizing flow :math:`q(z \mid \theta)` is trained on simulations, of parameters from the
    prior at first and then from the posterior under the network; the loss is right whatever they
    are drawn from. In the round after half of them a new network takes over, as in `sppe`. After
    the last one, NUTS samples the model's priors with the network as the likelihood.

    Parameters
    ----------
    model, simulator, prior, mechanism, observed, var_names, rounds, simulations
        As for `sppe`.
    noise_draws, estimator, qmc, training, earlier, random_seed, device, progressbar
        As for `sppe`.
    draws, tune, chains : int
        Of `pm.sample`. It takes minutes, too: each step evaluates the network.
    **kwargs
        Further arguments of `pm.sample`. Chains run one after another unless cores= is given:
        ``cores=2`` gives the same draws in half of the time.
        Many divergences, or chains that do not agree, say that the network has not been trained
        enough.

    Returns
    -------
    xarray.DataTree
        The groups posterior, sample_stats and observed_data, and those named training and
        simulations of `sppe`.

    Raises
    ------
    ImportError, TypeError, ValueError, NotImplementedError
        As `sppe`; an argument of `pm.sample` that it does not take; a clipped release, unless it is
        on a lattice that is not fine beside the noise: a flow cannot follow its atoms.

    Notes
    -----
    Of whole-number releases, which get uniform noise one step wide when the network is trained, it
    learns a density whose integral over a step is about their probability; that blurs the posterior
    where a step is wide beside the spread of the releases.

    References
    ----------
    .. [1] Y. Xiong, N. P. Ju, S. Zhang (2024). Conditional density estimations from
       privacy-protected data.

    Examples
    --------
    Far too few simulations for a result, but fast:

    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     x = pm.Normal("x", mu, 1, shape=20)
    ...     z = dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.3), observed=0.4)
    >>> fast = dp.neural.Training(hidden_features=8, epoch_steps=5, max_epochs=2, last_epochs=4)
    >>> few = {"simulations": 100, "training": fast, "random_seed": 1, "progressbar": False}
    >>> few["compute_convergence_checks"] = False
    >>> tree = dp.neural.sple(model, rounds=2, draws=20, tune=20, chains=2, **few)
    >>> tree["posterior"]["mu"].shape
    (2, 20)
    """
    wrong = [name for name in _NOT_TAKEN if name in kwargs]
    if wrong:
        raise TypeError(f"sple does not take {wrong[0]}= of pm.sample: leave it out")
    problem = read_problem(model, simulator, prior, mechanism, observed, var_names)
    check_counts(draws=draws, chains=chains)
    for channel in problem.channels:
        if has_atoms(channel):
            raise NotImplementedError(
                f"{channel.name!r}: {channel.mechanism!r} releases single values with positive "
                f"probability, for which SPLE's network has no density: use dp.neural.sppe"
            )
    noise = _noise(problem, noise_draws, qmc)
    run = Run("likelihood", problem, training, estimator, noise, device, random_seed)
    with run.torch():
        simulated = run.rounds(rounds, simulations, earlier, likelihood_proposal, progressbar)
        run.check_range(simulated)
        from pymc_dp.neural.likelihood import network_model

        starts = likelihood_proposal(run, simulated, 2 * chains + 100)
        warn_of_border(run.box, starts)
        starts = starts[:chains]
        network = network_model(problem, run.trainer.density, run.box)
        initial = problem.prior.natural(starts)
        with network:
            tree = pm.sample(
                draws=draws,
                tune=tune,
                chains=chains,
                random_seed=int(run.rng.integers(2**31)),
                progressbar=progressbar,
                **{
                    "cores": 1,
                    "nuts_sampler": "pymc",
                    "init": "adapt_diag",
                    "initvals": [{k: v[c] for k, v in initial.items()} for c in range(chains)],
                }
                | kwargs,
            )
    posterior = {n: tree["posterior"][n].to_numpy() for n in problem.prior.names}
    stats = {n: v.to_numpy() for n, v in tree["sample_stats"].data_vars.items()}
    return run.tree(posterior, stats, simulated, {"method": "sple"})


def _noise(problem: Problem, draws: int, qmc: bool) -> MakeNoise:
    check_counts(noise_draws=draws)
    return lambda _, rng: Noise(problem.channels, draws, rng, qmc=qmc)


def check_installed() -> None:
    """Refuse to go on without the packages of the extra."""
    for package in ("torch", "sbi"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(
                f"neural estimation needs {package}, which is not installed ({error}): "
                f'pip install "pymc-dp[neural]"'
            ) from error


def read_problem(
    model, simulator, prior, mechanism, observed, var_names, shape=None, *, released=True
) -> Problem:
    """Read the arguments of `sppe`, or of `amortise`, where `shape` replaces observed=."""
    check_installed()
    arguments = {"prior": prior, "mechanism": mechanism, "observed": observed}
    if simulator is None:
        stray = [name for name, value in arguments.items() if value is not None]
        if stray:
            raise TypeError(f"{stray[0]}= goes with simulator=; a model has its own")
        return model_problem(model, var_names, released=released)
    if shape is not None:
        del arguments["observed"]
    missing = [f"{name}=" for name, value in arguments.items() if value is None]
    if model is not None or var_names is not None or missing:
        raise TypeError(
            "simulator= takes prior=, mechanism= and observed=, and no model or var_names"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )
    return function_problem(simulator, prior, mechanism, observed, shape)
