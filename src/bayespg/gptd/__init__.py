"""The critic: Gaussian process temporal difference learning (Section 7.1, sparse in 7.3).

    r(z_i) = Q(z_i) - gamma Q(z_{i+1}) + N(z_i, z_{i+1}),    Cov[N] = s^2 H H'      (Eqs. 29 to 32)

The noise is H times white noise, so the posterior of Eqs. 33 and 34 is that of a plain regression,

    y_i = Q(z_i) + v_i b + noise of variance s^2,

of the rewards-to-go y, with one unknown tail b of flat prior for each truncated episode: v, with
v_i = gamma^(steps to the last pair), spans the null space of its H. No H is ever formed.

`posterior` takes all steps at once, `Online` one transition at a time. Both end in a `Critic`.
"""

from bayespg.gptd.critic import Critic, Targets, posterior, targets
from bayespg.gptd.inputs import checked_kernel, checked_steps
from bayespg.gptd.online import Online, online
from bayespg.gptd.sarsa import greedy, sarsa

__all__ = [
    "Critic",
    "Online",
    "Targets",
    "checked_kernel",
    "checked_steps",
    "greedy",
    "online",
    "posterior",
    "sarsa",
    "targets",
]


def __dir__() -> list[str]:
    return sorted(__all__)
