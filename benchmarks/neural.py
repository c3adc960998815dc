"""Neural estimation: how fast the inner integral converges, and what its noise costs.

``python -m benchmarks neural`` takes three minutes and needs the extra `neural`;
``python -m benchmarks.neural --output DIR`` draws the picture, too.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import pymc_dp as dp
from pymc_dp.examples import clamped_regression
from pymc_dp.neural.noise import Channel, Noise
from pymc_dp.neural.settings import Training
from pymc_dp.neural.simulator import model_problem
from pymc_dp.neural.training import Simulations, Trainer, direct_loss

SIZES = (4, 8, 16, 32, 64, 128, 256)
REPEATS = 400
MECHANISMS = {
    "Laplace": dp.LaplaceMechanism(0.13),
    "Gaussian": dp.GaussianMechanism(0.13),
    "geometric": dp.GeometricMechanism(2.0),
    "discrete Gaussian": dp.DiscreteGaussianMechanism(2.0),
    "binomial": dp.BinomialMechanism(382, 381.5, 763),
}


def trained():
    """Return the network of a short fit of the clamped regression, with its simulations."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    problem = model_problem(clamped_regression.build())
    theta = problem.prior.draw(1000, rng)
    data = Simulations(
        theta,
        problem.simulate(theta, rng),
        problem.prior.logp(theta),
        np.zeros(len(theta), int),
        np.arange(len(theta)) < 100,
    )
    noise = Noise(problem.channels, 4, rng)
    trainer = Trainer("posterior", noise, Training(), rng, "cpu")
    trainer.fit(data, 10)
    return problem, trainer, data


def errors(problem, trainer, data, *, qmc: bool) -> np.ndarray:
    """Root mean square error of the loss of one simulation, by the number of noise draws."""
    rng = np.random.default_rng(1)
    statistic, theta = data.statistic[:1], data.theta[:1]

    def loss(draws: int, repeats: int, qmc: bool) -> np.ndarray:
        noise = Noise(problem.channels, draws, rng, qmc=qmc)
        released = noise.draw(np.repeat(statistic, repeats, axis=0))
        at, z = trainer.standard(np.repeat(theta, repeats, axis=0), released)
        with torch.no_grad():
            network = trainer.density.network
            found = direct_loss(lambda t, c: network.log_prob(t[None], c)[0], at, z)
        return found.numpy().mean(axis=1)

    exact = loss(4096, 50, True).mean()
    return np.array([np.sqrt(np.mean((loss(m, REPEATS, qmc) - exact) ** 2)) for m in SIZES])


def convergence(console: Console, output: Path | None = None) -> None:
    """Print the error of the inner integral of the loss against the number of draws."""
    problem, trainer, data = trained()
    table = Table(title="The loss of one simulation, an integral over nine Laplace noises: error "
                  "of its mean over M draws")  # fmt: skip
    table.add_column("noise")
    for m in SIZES:
        table.add_column(f"M = {m}", justify="right")
    table.add_column("slope", justify="right")
    curves = {}
    for name, qmc in (("Monte Carlo", False), ("randomized quasi-Monte Carlo", True)):
        found = curves[name] = errors(problem, trainer, data, qmc=qmc)
        slope = np.polyfit(np.log(SIZES), np.log(found), 1)[0]
        table.add_row(name, *(f"{e:.4f}" for e in found), f"{slope:.2f}")
    console.print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for (name, found), colour in zip(curves.items(), ("#D55E00", "#0072B2"), strict=True):
            axes.loglog(SIZES, found, "o-", color=colour, label=name)
        axes.set(xlabel="noise draws M", ylabel="error of the inner integral")
        axes.legend(frameon=False)
        figure.savefig(output / "noise.png", dpi=120)
        console.print(f"Written: {output / 'noise.png'}")


def cost(console: Console) -> None:
    """Print what the noise of a minibatch costs beside a step of the training."""
    _, trainer, data = trained()
    batch = np.arange(100)

    def step(released) -> None:
        network = trainer.density.network.train()
        loss = trainer._loss(network, data, batch, released).mean()
        loss.backward()

    released = trainer.release(data.statistic[batch])
    step(released)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the fits do
    training = _seconds(lambda: step(released))
    torch.set_num_threads(threads)
    table = Table(title=f"A minibatch of 100 simulations, released four times; a step of the "
                  f"network takes {1e3 * training:.1f} ms")  # fmt: skip
    for column in ("noise", "milliseconds", "of the step"):
        table.add_column(column, justify="left" if column == "noise" else "right")
    for name, mechanism in MECHANISMS.items():
        noise = Noise([Channel("z", mechanism, (9,))], 4, np.random.default_rng(2))
        statistic = np.full((100, 9), 5.0)
        noise.draw(statistic)
        own = _seconds(lambda noise=noise, statistic=statistic: noise.draw(statistic))
        table.add_row(name, f"{1e3 * own:.2f}", f"{own / training:.1%}")
    console.print(table)


def _seconds(run, repeats: int = 30) -> float:
    began = time.thread_time()
    for _ in range(repeats):
        run()
    return (time.thread_time() - began) / repeats


def main(console: Console, output: Path | None = None) -> None:
    """Print the tables."""
    convergence(console, output)
    cost(console)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    main(Console(width=110), parser.parse_args().output)
