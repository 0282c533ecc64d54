"""Scores and returns made in PyTorch, the gradient's posterior made here.

A small network of torch on CartPole: one row of scores per step by torch.func, handed over as they
are (anything with dlpack or __array__ works). The Fisher matrix has its actions integrated out, and
scales and noise are chosen by evidence: nothing is set by hand.

    pip install torch gymnasium
    python examples/pytorch_scores.py
"""

import gymnasium
import numpy as np
import torch

from bayespg import actor_critic, kernels
from bayespg import fisher as fishers

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
parameters = dict(network.named_parameters())


def logits_of(parameters, state):
    return torch.func.functional_call(network, parameters, (state,))


environment = gymnasium.make("CartPole-v1")
states, actions, rewards, last, terminated = [], [], [], [], []
for episode in range(10):
    state, _ = environment.reset(seed=episode)
    done = False
    while not done:
        with torch.no_grad():
            logits = network(torch.as_tensor(state))
        action = int(torch.distributions.Categorical(logits=logits).sample())
        following, reward, ended, cut, _ = environment.step(action)
        done = ended or cut
        for column, value in zip(
            (states, actions, rewards, last, terminated),
            (state, action, reward, done, ended),
            strict=True,
        ):
            column.append(value)
        state = following

# One row per step of the Jacobian of the logits, and of the scores: that of log p(a) is the
# Jacobian's row a less the mean of its rows.
visited = torch.tensor(np.array(states))
rows = torch.func.vmap(torch.func.jacrev(logits_of), (None, 0))(parameters, visited)
jacobian = torch.cat([row.flatten(2) for row in rows.values()], 2)
logits = network(visited)
mean = torch.einsum("nk,nkp->np", logits.softmax(-1), jacobian)
scores = jacobian[range(len(actions)), actions] - mean

posterior = actor_critic.gradient_posterior(
    states, scores, rewards,
    fishers.of_softmax(logits, jacobian=jacobian, last=last, discount=0.99),
    last=last, terminated=terminated, discount=0.99, state_kernel=kernels.Gaussian(1.0), noise=None,
)  # fmt: skip
print(f"{scores.shape[0]} steps, {scores.shape[1]} parameters")
lower, upper = posterior.interval(0.95)
print("95 % interval of the first component", lower[0], "to", upper[0])

# Back to torch: one step of stochastic gradient ascent along the posterior mean.
step = torch.tensor(np.array(posterior.mean), dtype=torch.float32)
with torch.no_grad():
    for parameter, part in zip(
        parameters.values(), step.split([p.numel() for p in parameters.values()]), strict=True
    ):
        parameter += 0.01 * part.view_as(parameter)
