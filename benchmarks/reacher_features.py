"""Which features a policy needs to reach with two joints: Reacher-v5.

    python benchmarks/reacher_features.py

The torques k J'(target - hand) - c (angular velocities), J being the Jacobian of the hand, are
regressed on features of the observation. It prints the mean return, with its standard error, of
these torques and of each regression.
"""

import gymnasium
import numpy as np

GAIN, DAMPING = 20, 0.1
"""k and c, the best of three and four values."""
EPISODES, NOISE, RIDGES = 60, 0.2, (1e-2, 1.0)
"""Episodes and standard deviation of the noise of actions that are learned from; precisions of the
prior of weights."""
TESTED = 100


def torques(x: np.ndarray) -> np.ndarray:
    towards, hand = -x[8:10], x[4:6] + x[8:10]
    arms = hand, hand - 0.1 * np.array([x[0], x[2]])
    pull = np.array([arm[0] * towards[1] - arm[1] * towards[0] for arm in arms])
    return GAIN * pull - DAMPING * x[6:8]


def play(act, episodes: int, seed: int, noise: float = 0.0) -> tuple[np.ndarray, list]:
    env, rng = gymnasium.make("Reacher-v5"), np.random.default_rng(seed)
    returns, seen = np.zeros(episodes), []
    for k in range(episodes):
        (x, _), over = env.reset(seed=seed + k), False
        while not over:
            seen.append((x, act(x)))
            drawn = np.clip(seen[-1][1] + noise * rng.normal(size=2), -1, 1)
            x, reward, ended, cut, _ = env.step(drawn)
            returns[k], over = returns[k] + float(reward), ended or cut
    return returns, seen


def main() -> None:
    X, A = (np.array(z) for z in zip(*play(torques, EPISODES, 5000, NOISE)[1], strict=True))
    A, mean, scale = np.clip(A, -1.5, 1.5), X.mean(0), X.std(0)
    rng, d = np.random.default_rng(0), X.shape[1]
    W, b = rng.normal(size=(150, d)) / np.sqrt(d), rng.uniform(0, 2 * np.pi, 150)
    i, j = np.triu_indices(d)
    more = {
        "linear": lambda z: z[:, :0],
        "150 waves": lambda z: np.sqrt(2 / 150) * np.cos(z @ W.T + b),
        "products": lambda z: z[:, i] * z[:, j],
    }
    show("torques", play(torques, TESTED, 9000)[0])
    for name, ridge in ((n, r) for n in more for r in RIDGES):

        def phi(x, name=name):
            z = (x - mean) / scale
            return np.concatenate([np.ones((len(z), 1)), z, more[name](z)], 1)

        P = phi(X)
        V = np.linalg.solve(P.T @ P + ridge * np.eye(P.shape[1]), P.T @ A)
        returns = play(lambda x, phi=phi, V=V: (phi(x[None]) @ V)[0], TESTED, 9000)[0]
        show(f"{name}, ridge {ridge:g}, largest weight {np.abs(V).max():.1f}", returns)


def show(name: str, returns: np.ndarray) -> None:
    print(f"{name}: {returns.mean():.2f} +- {returns.std(ddof=1) / np.sqrt(len(returns)):.2f}")


if __name__ == "__main__":
    main()
