"""Scores and returns from your own code: one call gives the gradient and how far to trust it.

Here 30 episodes of a two-parameter Gaussian policy, as any framework might record them.
"""

import numpy as np

from bayespg import evidence

rng = np.random.default_rng(0)
actions = rng.normal(size=30)
scores = np.stack([actions, actions**2 - 1], 1)  # grad log N(a; 0, 1) in (mean, standard deviation)
returns = 3.0 - (actions - 1) ** 2 + rng.normal(size=30)
fisher = np.diag([1.0, 2.0])  # known here; an average of u u' over actions otherwise

posterior = evidence.model2(scores, returns, fisher)  # scale and noise chosen by evidence

lower, upper = posterior.interval(0.95)
print("exact gradient   [ 2.   -2.  ]")
print("posterior mean  ", np.round(posterior.mean, 2))
print("95 % interval   ", [f"{a:.2f} to {b:.2f}" for a, b in zip(lower, upper, strict=True)])
print("natural gradient", np.round(posterior.natural, 2))
print("a larger mean is better with probability", round(posterior.probability_uphill([1, 0]), 4))
print({name: float(value) for name, value in posterior.info.items()})
