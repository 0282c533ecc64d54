"""Policies by name, for any environment.

    fourier    logits or means linear in the observation and in random waves of it: the default for
               choices
    mlp        a tanh network, 16 x 16 unless `hidden` says otherwise: the default for continuous
               actions
    linear     linear in the observation alone: a handful of parameters
    gaussian   the same in Gaussian bumps on a grid, for three dimensions or fewer
    tiles      tile coding, for four dimensions or fewer

With few parameters the posterior of the gradient is exact, sharp and cheap.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import PRNGKeyArray

from bayespg._support import checks
from bayespg.environments import spaces
from bayespg.policies import tiles
from bayespg.policies.base import Policy
from bayespg.policies.features import MLP, Features, Fourier, Gaussians, Linear
from bayespg.policies.heads import composed

Name = Literal["fourier", "linear", "gaussian", "tiles", "mlp"]
WAVES = {"choices": (50, 0.3), "means": (100, 1.0)}
"""Number of random waves and their size: small for choices, so that decisions are nearly linear."""
HIDDEN = (16, 16)
"""Widths of the layers of a network."""
MOST = {"gaussian": 3, "tiles": 4}
"""Dimensions of the observation that a grid can cover."""


def make(
    name: str,
    inputs: int,
    actions: spaces.Actions,
    key: PRNGKeyArray,
    hidden: tuple[int, ...] = HIDDEN,
) -> Policy:
    """An initial policy from `inputs` numbers to `actions`: all choices are equally likely, all
    means in the middle of the range."""
    names = get_args(Name)
    if name not in names:
        hint = checks.suggestion(name.lower().removesuffix("policy"), names, 0.4)
        raise ValueError(f"policy: no policy is called '{name}'; {hint}")
    if inputs > MOST.get(name, inputs):
        raise ValueError(
            f"policy: '{name}' covers at most {MOST[name]} dimensions with its grid, and the "
            f"observation has {inputs}; take 'linear', 'fourier' or 'mlp'"
        )
    choices = isinstance(actions, spaces.Choices)
    features: Features
    match name:
        case "linear":
            features = Linear(inputs)
        case "fourier":
            count, scale = WAVES["choices" if choices else "means"]
            features = Fourier(inputs, count, scale=scale)
        case "gaussian":
            features = Gaussians(inputs)
        case "tiles":
            outputs = sum(actions.sizes) if choices else actions.size
            weights = np.zeros(tiles.size(inputs, outputs), np.float32)
            sizes, scalar = (actions.sizes, actions.scalar) if choices else ((), False)
            return tiles.Tiles(weights, inputs, outputs, sizes, scalar)
        case _:
            if not hidden or any(width < 1 for width in hidden):
                raise ValueError(f"hidden: expected widths of at least 1, found {hidden}")
            features = MLP(inputs, hidden, key=key)
    return composed(features, actions)
