"""What strings stand for: policies, estimators, updates and environments in JAX by name."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bayespg import environments, policies
from bayespg._support import checks
from bayespg.environments import Environment, classic
from bayespg.learning import estimators, line_search, updates
from bayespg.learning import network_estimators as networks
from bayespg.learning.estimators import Estimator
from bayespg.learning.learner import TargetKind
from bayespg.learning.network_estimators import NetworkEstimator
from bayespg.policies import MemoryPolicy, Policy
from bayespg.policies.features import Features

Chosen = tuple[Estimator | NetworkEstimator, TargetKind]

ESTIMATORS: dict[str, Callable[[Features], Chosen]] = {
    "bac": lambda f: (networks.Joint(f), "advantages"),
    "bac-returns": lambda f: (networks.Joint(f), "returns"),
    "rebase": lambda f: (networks.MonteCarlo(f, baseline="states"), "advantages"),
    "gae": lambda f: (networks.MonteCarlo(f, baseline="mean"), "advantages"),
    "fitted": lambda f: (networks.MonteCarlo(f, baseline="states"), "returns"),
    "gpomdp": lambda f: (networks.MonteCarlo(f, baseline="none"), "returns"),
    "mc": lambda f: (estimators.Reinforce("none", estimators.actions_integrated_out), "returns"),
    "mc-baseline": lambda f: (
        estimators.Reinforce("best", estimators.actions_integrated_out), "returns"
    ),
    "enac": lambda f: (estimators.ENAC(), "returns"),
    "model1": lambda f: (estimators.Model1(noise=None), "returns"),
    "model2": lambda f: (estimators.Model2(noise=None, baseline=float("inf")), "returns"),
}  # fmt: skip
"""bac: states and scores fitted together to advantages; bac-returns: to returns, as in the paper;
rebase: advantages less a fit by states; gae: advantages alone; fitted: returns less a fit by
states; gpomdp: returns alone; mc, mc-baseline: whole paths (REINFORCE); enac: episodic natural
actor-critic; model1, model2: Bayesian quadrature of whole paths."""

OF_PATHS = ("mc", "mc-baseline", "enac", "model1", "model2")
"""Those that look at whole paths alone, and so take policies with memory too."""

LIMITED = ("natural", "plain", "conjugate-gradients")
"""Updates that go as far as a limit allows; all others have a rate."""
UPDATES = ("natural", "plain", "conjugate-gradients", "adam", "sgd", "variance-scaled")
"""natural, plain: along G^-1 g or g, as far as the Kullback-Leibler limit allows;
conjugate-gradients: line searches along conjugate natural gradients, led by their error bars; adam,
sgd, and any other optimiser of optax: with a rate; variance-scaled: BPG-var of the paper, for
model1."""


class BuiltIn(NamedTuple):
    """An environment in JAX; one of the paper comes with the paper's policy."""

    environment: Environment
    policy: Callable[[], Policy] | None


BUILT_IN: dict[str, Callable[[], BuiltIn]] = {
    "lqr": lambda: BuiltIn(environments.LQR(), lambda: policies.LinearGaussian(-0.2, 1.0)),
    "mountain-car": lambda: BuiltIn(environments.MountainCar(), policies.mountain_car_softmax),
    "ship-steering": lambda: BuiltIn(environments.ShipSteering(), policies.ship_steering_cmac),
    **{
        f"jax/{name}": lambda kind=kind: BuiltIn(kind(), None)
        for name, kind in classic.NAMES.items()
    },
}
"""The paper's, and Gymnasium's classic control in pure JAX."""


def known(kind: str, name: str, names: Sequence[str]) -> ValueError:
    """The complaint that there is no such name, with the closest one."""
    return ValueError(f"{kind}: nothing is called '{name}'; {checks.suggestion(name, names)}")


def built_in(name: str) -> BuiltIn | None:
    found = BUILT_IN.get(name)
    return found() if found else None


PAPER = "paper"
"""The policy that comes with an environment of the paper."""


def estimator(choice: Any, features: Features) -> Chosen:
    """An estimator and the targets it takes."""
    if isinstance(choice, NetworkEstimator):
        return choice, "advantages"
    if isinstance(choice, Estimator):
        return choice, "returns"
    if not isinstance(choice, str):
        raise ValueError(f"estimator: expected a name or an estimator, found {choice!r}")
    if choice not in ESTIMATORS:
        raise known("estimator", choice, list(ESTIMATORS))
    return ESTIMATORS[choice](features)


def refuse_steps(choice: Any, found: Estimator | NetworkEstimator, policy: MemoryPolicy) -> None:
    """ValueError for an estimator that takes what a policy with memory sees for its state."""
    if isinstance(found, NetworkEstimator | estimators.BAC | estimators.FittedValues):
        name = choice if isinstance(choice, str) else type(choice).__name__
        raise ValueError(
            f"estimator: {name} looks at single steps, and {type(policy).__name__} has a memory, "
            f"so what it sees is no state; those of whole paths can: {', '.join(OF_PATHS)}"
        )


def update(choice: Any, limit: float, rate: float) -> optax.GradientTransformationExtraArgs:
    """The same object for the same choice, so that agents of a kind share compiled programs."""
    if isinstance(choice, optax.GradientTransformation):
        return optax.with_extra_args_support(choice)
    if not isinstance(choice, str):
        raise ValueError(f"update: expected a name or an optax transformation, found {choice!r}")
    return _update(choice, limit, rate)


@functools.lru_cache(64)
def _update(choice: str, limit: float, rate: float) -> optax.GradientTransformationExtraArgs:
    match choice:
        case "natural":
            return updates.trust_region(limit)
        case "plain":
            return updates.trust_region(limit, natural=False)
        case "conjugate-gradients":
            return line_search.searching(limit)
        case "variance-scaled":
            return updates.variance_scaled(rate)
    if not _is_optimiser(choice):
        raise known("update", choice, list(UPDATES))
    return updates.ascending(getattr(optax, choice)(rate))


def _is_optimiser(name: str) -> bool:
    """Whether optax has an optimiser of that name that asks for a rate and nothing else, neither
    when it is made nor, as line searches do, when it is used."""
    found = getattr(optax, name, None)
    if not inspect.isfunction(found) or name.startswith(("_", "scale_by_")):
        return False
    asked = [p.name for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    if asked not in (["learning_rate"], ["learning_rate", "kwargs"]):
        return False
    theta, optimiser = jnp.zeros(1), optax.with_extra_args_support(found(1e-3))
    try:
        jax.eval_shape(lambda: optimiser.update(theta, optimiser.init(theta), theta))
    except TypeError:
        return False
    return True
