"""A value function learned while driving: the mountain car, two drivers and `gptd.Online`.

One driver pumps energy into the swing, the other acts at random. After every transition the critic
holds a posterior over the whole value function; the last one is drawn, with its standard deviation,
and held against returns of many episodes.

    python examples/mountain_car_value.py [picture.png]
"""

import sys
from pathlib import Path

import jax
import numpy as np
from matplotlib.colors import LogNorm

from bayespg import gptd, kernels
from bayespg.algebra.sparsification import Sparsify
from bayespg.environments import MountainCar
from bayespg.runs import plots

EPISODES, SEED, SIDE = 20, 3, 101
# Values lie between -100 and 0. The length scale is below the paper's 0.325, because the value has
# a cliff: one swing more or one less.
kernel = kernels.Scaled(kernels.Gaussian(0.2), 50.0**2)
# Returns-to-go along an episode err together, which the model does not know; a large noise variance
# makes up for part of that.
NOISE = 10.0**2
car = MountainCar()
step, unit = jax.jit(car.step), jax.jit(car.unit)
low, high = np.array((-1.2, -0.07)), np.array((0.5, 0.07))


def pumping(velocities, rng):
    """Push the way the car moves (0 forward, 1 reverse); one action in ten is random."""
    push = (velocities < 0).astype(int)
    return np.where(rng.random(push.shape) < 0.1, rng.integers(3, size=push.shape), push)


def random(velocities, rng):
    return rng.integers(3, size=velocities.shape)


def learn(driver):
    """The critic after some episodes, the states it saw and how often it reached the goal."""
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    critic = gptd.online(
        kernel, np.zeros(2), discount=car.discount, noise=NOISE, sparsify=Sparsify(2.5, 150)
    )
    visited, goals = [], 0
    for state in np.asarray(car.reset(key, EPISODES))[:, None]:
        critic = critic.begin(unit(state)[0])
        for _ in range(car.horizon):
            visited.append(state[0])
            state, reward, absorbed = map(np.asarray, step(key, state, driver(state[:, 1], rng)))
            if absorbed[0]:
                critic = critic.terminate(reward[0])
                goals += 1
                break
            critic = critic.observe(reward[0], unit(state)[0])
        else:
            critic = critic.truncate()
    return critic.critic(), np.array(visited), goals


def returns(driver, starts, repeats=20, steps=600):
    """Mean discounted return from each start."""
    rng, key = np.random.default_rng(SEED), jax.random.key(SEED)
    state = np.repeat(starts.astype(np.float32), repeats, 0)
    total, alive = np.zeros(len(state)), np.ones(len(state), bool)
    for t in range(steps):
        state, reward, absorbed = map(np.asarray, step(key, state, driver(state[:, 1], rng)))
        total += car.discount**t * np.where(alive, reward, 0.0)
        alive &= ~absorbed
    return total.reshape(-1, repeats).mean(1)


def draw(figure, axis, values, visited, title, dots, levels, **look):
    axes = [np.linspace(a, b, SIDE) for a, b in zip(low, high, strict=True)]
    Z = values.reshape(SIDE, SIDE).T
    shown = axis.pcolormesh(*axes, Z, shading="gouraud", rasterized=True, **look)
    lines = axis.contour(*axes, Z, levels, colors=dots, linewidths=0.7, linestyles="solid")
    axis.clabel(lines, fontsize=7, fmt="%g")
    axis.plot(*visited.T, ".", color=dots, ms=2, alpha=0.7, mew=0)
    axis.set(title=title, xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    axis.grid(False)
    bar = figure.colorbar(shown, ax=axis, pad=0.02, aspect=25, format="%g")
    bar.outline.set_visible(False)
    bar.minorticks_off()
    if "norm" in look:
        bar.set_ticks(levels)


def report(name, critic, driver, starts):
    """The posterior against Monte Carlo."""
    points = (starts - low) / (high - low)
    error = critic.mean(points) - returns(driver, starts)
    sd = np.sqrt(critic.variance(points))
    print(f"{name}; dictionary of {int(critic.info['dictionary_size'])}")
    for label, here in (("up to 5", sd <= 5), ("above 5", sd > 5)):
        print(
            f"  standard deviation {label}: {here.sum():3d} of {len(starts)} states, root mean "
            f"square error {np.sqrt(np.mean(error[here] ** 2)):4.1f}, within two standard "
            f"deviations {np.mean(np.abs(error) <= 2 * sd, where=here):4.0%}"
        )


def main(path: Path):
    edge = np.linspace(0, 1, SIDE)
    grid = np.stack(np.meshgrid(edge, edge, indexing="ij"), -1).reshape(-1, 2)
    starts = np.random.default_rng(SEED).uniform(low, high, (200, 2))
    with plots.styled():
        figure, axes = plots.sheet(2, 2, width=9.6, height=6.4, sharex=True, sharey=True)
        for row, driver in zip(axes, (pumping, random), strict=True):
            critic, visited, goals = learn(driver)
            name = f"{driver.__name__.capitalize()} driver"
            report(f"{name}, {goals} of {EPISODES} episodes at the goal", critic, driver, starts)
            draw(
                figure, row[0], critic.mean(grid), visited,
                f"{name}: value after {len(visited):,} steps",
                "white", (-80, -60, -40, -20), cmap="viridis", vmin=-105, vmax=0,
            )  # fmt: skip
            draw(
                figure, row[1], np.sqrt(critic.variance(grid)), visited,
                "Its standard deviation", "#333333", (1, 2, 5, 10, 20),
                cmap="YlOrRd", norm=LogNorm(1, 30),
            )  # fmt: skip
            row[0].set_ylabel("velocity")
        for axis in axes[-1]:
            axis.set_xlabel("position")
        figure.savefig(path, dpi=100)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "mountain_car_value.png"))
