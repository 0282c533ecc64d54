"""A rival: the estimator of deep Bayesian quadrature policy gradients, on GPyTorch.

Akella et al., "Deep Bayesian quadrature policy optimization" (AAAI 2021, arXiv 2006.15637), written
anew for today's GPyTorch after the paper and the settings of its repository
(Akella17/Deep-Bayesian-Quadrature-Policy-Optimization), which needs Python 3.6. Per update:

1. a randomised singular value decomposition of the scores, U' = A S V', of rank k;
2. one step of Adam on the marginal likelihood of the advantages under the kernel
   c1 k_state + c2 N v v' + noise, where k_state is a sum over the ten outputs of a network of RBF
   kernels interpolated on grids of 128 points (KISS-GP), and v are the rows of V;
3. alpha = (K + noise I)^-1 A by conjugate gradients, and the gradient U' alpha.
"""

import itertools
import math
from typing import Any

import gpytorch
import torch

RANK = 90  # HalfCheetah-v2 with natural gradients or TRPO, helper_config.json
STATE, FISHER = 1.0, 5e-5
LEAST_NOISE = 1e-4
GRID, OUTPUTS = 128, 10


class Policy(torch.nn.Module):
    """The tanh network of the comparison, with the given weights: (inputs, outputs) each."""

    def __init__(self, weights: list[Any], biases: list[Any], last: Any, log_scale: Any):
        super().__init__()
        as_parameter = lambda x: torch.nn.Parameter(torch.as_tensor(x))  # noqa: E731
        self.weights = torch.nn.ParameterList(map(as_parameter, weights))
        self.biases = torch.nn.ParameterList(map(as_parameter, biases))
        self.last = as_parameter(last)
        self.log_scale = as_parameter(log_scale)

    def log_probs(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        x = states
        for W, b in zip(self.weights, self.biases, strict=True):
            x = torch.tanh(x @ W + b)
        mean = x @ self.last[:, :-1].T + self.last[:, -1]
        z = (actions - mean) * torch.exp(-self.log_scale)
        return -(0.5 * z**2 + self.log_scale + 0.5 * math.log(2 * math.pi)).sum(-1)


class Values(gpytorch.models.ExactGP):
    """The Gaussian process of the action values."""

    def __init__(self, inputs: int, likelihood: Any):
        super().__init__(None, None, likelihood)
        sizes = (inputs, 64, 48, OUTPUTS)
        layers = [
            module
            for i, o in itertools.pairwise(sizes)
            for module in (torch.nn.Linear(i, o), torch.nn.Tanh())
        ]
        self.inputs = inputs
        self.features = torch.nn.Sequential(*layers)
        self.mean = gpytorch.means.ConstantMean()
        self.state = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.GridInterpolationKernel(
                gpytorch.kernels.RBFKernel(), grid_size=GRID, num_dims=1, grid_bounds=[(-1.1, 1.1)]
            )
        )
        self.fisher = gpytorch.kernels.LinearKernel()

    def forward(self, x: torch.Tensor) -> Any:
        features = gpytorch.utils.grid.scale_to_bounds(self.features(x[:, : self.inputs]), -1, 1)
        each = self.state(features.T.unsqueeze(-1))  # one kernel per output, summed
        v = x[:, self.inputs :]
        covariance = each.sum(-3) * STATE + self.fisher(v) * (FISHER * x.shape[0])
        return gpytorch.distributions.MultivariateNormal(self.mean(features), covariance)


class Estimator:
    """Keeps the Gaussian process from update to update."""

    def __init__(self, policy: Policy, inputs: int, rank: int = RANK):
        example = policy.last
        self.policy, self.rank = policy, rank
        limit = gpytorch.constraints.GreaterThan(LEAST_NOISE)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=limit)
        self.values = Values(inputs, self.likelihood).to(example)
        self.likelihood.to(example)
        self.optimiser = torch.optim.Adam(self.values.parameters(), lr=1e-4, weight_decay=1e-3)
        self.evidence = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.values)

    def __call__(self, states: Any, actions: Any, advantages: Any) -> torch.Tensor:
        """The gradient, U' alpha / N."""
        y = (advantages - advantages.mean()) / advantages.std()
        log_probs = self.policy.log_probs(states, actions)
        inputs = torch.cat([states, self._right_vectors(log_probs)], 1)
        self.values.train()
        self.values.set_train_data(inputs, y, strict=False)
        settings = gpytorch.settings
        with settings.max_cg_iterations(1000), settings.max_preconditioner_size(50):
            self.optimiser.zero_grad()
            (-self.evidence(self.values(inputs), y)).backward()
            self.optimiser.step()
            with torch.no_grad():
                covariance = self.likelihood(self.values(inputs)).lazy_covariance_matrix
                alpha = covariance.solve(y.unsqueeze(-1)).squeeze(-1)
        return self._transposed(log_probs, alpha) / len(y)

    def _transposed(self, log_probs: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """U' a."""
        parts = torch.autograd.grad(
            log_probs, list(self.policy.parameters()), grad_outputs=a, retain_graph=True
        )
        return torch.cat([part.reshape(-1) for part in parts])

    def _right_vectors(self, log_probs: torch.Tensor) -> torch.Tensor:
        """V (N, k) of the randomised decomposition of U'."""
        parameters = list(self.policy.parameters())
        dual = torch.ones_like(log_probs, requires_grad=True)
        parts = torch.autograd.grad(log_probs, parameters, grad_outputs=dual, create_graph=True)
        flat = torch.cat([part.reshape(-1) for part in parts])
        directions = 2 * torch.rand(self.rank + 2, len(flat), dtype=flat.dtype, device=flat.device)
        seen = [
            torch.autograd.grad(flat, dual, grad_outputs=r, retain_graph=True)[0]
            for r in directions - 1
        ]
        Q, _ = torch.linalg.qr(torch.stack(seen, 1))
        B = torch.stack([self._transposed(log_probs, q) for q in Q.T], 1)
        _, _, right = torch.linalg.svd(B, full_matrices=False)
        return (Q @ right.T)[:, : self.rank].detach()
