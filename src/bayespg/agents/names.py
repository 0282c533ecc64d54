"""Estimators, updates and environments in JAX by name."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bayespg import environments, policies
from bayespg._support import checks
from bayespg.agents import settings
from bayespg.environments import Environment, classic
from bayespg.learning import estimators, line_search, updates
from bayespg.learning.batch import Lambda
from bayespg.learning.estimators import Estimator
from bayespg.policies import Policy


def _bac(lambda_: Lambda, damping: float | None) -> Estimator:
    return estimators.BAC(lambda_=lambda_, metric=estimators.Metric(damping))


def _weighed(baseline: Any, lambda_: Lambda | None, damping: float | None) -> Estimator:
    """Monte Carlo as usual in practice: a mean over steps, and a metric of recent states."""
    return estimators.MonteCarlo(
        baseline, lambda_, "uniform", estimators.stationary_integrated_out,
        estimators.Metric(damping),
    )  # fmt: skip


ESTIMATORS: dict[str, Callable[[Lambda, float | None], Estimator]] = {
    "bac": lambda lambda_, damping: _bac(lambda_, damping),
    "bac-returns": lambda _, damping: _bac(1.0, damping),
    "bac-paper": lambda *_: estimators.BACPaper(noise=None),
    "rebase": lambda lambda_, damping: _weighed("states", lambda_, damping),
    "gae": lambda lambda_, damping: _weighed("mean", lambda_, damping),
    "fitted": lambda _, damping: _weighed("states", None, damping),
    "gpomdp": lambda _, damping: _weighed("none", None, damping),
    "mcpg": lambda *_: estimators.GPOMDP(estimators.steps_integrated_out),
    "mc": lambda *_: estimators.Reinforce("none", estimators.actions_integrated_out),
    "mc-baseline": lambda *_: estimators.Reinforce("best", estimators.actions_integrated_out),
    "enac": lambda *_: estimators.ENAC(),
    "model1": lambda *_: estimators.Model1(noise=None),
    "model2": lambda *_: estimators.Model2(noise=None, baseline=float("inf")),
}
"""Functions of lambda and the damping. bac: values and advantages in one regression; bac-returns:
with lambda 1; bac-paper: Algorithm 4, with scales and noise chosen by evidence; rebase: advantages
(GAE) less a regression on states; gae: advantages less their mean; fitted: returns less a
regression on states; gpomdp: returns; mcpg: the same with steps weighted by the discount, as in the
paper; mc, mc-baseline: whole paths (REINFORCE); enac: episodic natural actor-critic; model1,
model2: Bayesian quadrature of whole paths."""

LIMITED = ("natural", "plain", "conjugate-gradients")
"""Updates that go as far as a limit allows; all others have a rate."""
UPDATES = ("natural", "plain", "conjugate-gradients", "adam", "sgd", "variance-scaled")
"""natural, plain: along G^-1 g or g, as far as the Kullback-Leibler limit allows;
conjugate-gradients: line searches along conjugate natural gradients, guided by error bars; adam,
sgd, and any other optimiser of optax: with a rate; variance-scaled: BPG-var of the paper, for
model1."""


class BuiltIn(NamedTuple):
    """An environment in JAX, with the paper's policy if it is one of the paper's."""

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


def unknown(kind: str, name: str, names: Sequence[str]) -> ValueError:
    """The error for an unknown name, with the closest known one."""
    return ValueError(f"{kind}: unknown name '{name}'; {checks.suggestion(name, names)}")


LIBRARIES: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "gymnax": ("gymnax", lambda module, name: environments.adapt(*module.make(name))),
    "brax": ("brax.envs", lambda module, name: environments.adapt(module.get_environment(name))),
    "jumanji": ("jumanji", lambda module, name: environments.adapt(module.make(name))),
    "navix": ("navix", lambda module, name: environments.adapt(module.make(name))),
}
"""Other libraries in JAX whose environments have names here, such as gymnax/CartPole-v1: a module,
and how it makes an environment."""


def built_in(name: str) -> BuiltIn | None:
    task, (library, _, of) = BUILT_IN.get(name), name.partition("/")
    if task is None and of and library in LIBRARIES:
        return BuiltIn(_made(library, of), None)
    return task() if task else None


@functools.lru_cache(16)
def _made(library: str, name: str) -> Environment:
    """An environment of another library. The same name gives the same object, so that agents share
    compiled programs."""
    module, make = LIBRARIES[library]
    try:
        made = importlib.import_module(module)
    except ImportError as problem:
        raise ValueError(
            f"environment: {library}/{name} needs {library}, which is not installed ({problem}); "
            f"pip install {library}"
        ) from problem
    try:
        return make(made, name)
    except (ValueError, KeyError) as problem:
        raise ValueError(f"environment: {library}/{name}: {problem}") from problem


PAPER = "paper"
"""The policy that comes with an environment of the paper."""


def estimator(choice: Any, lambda_: Lambda, damping: float | None) -> Estimator:
    """An estimator by name, or the one given."""
    if isinstance(choice, Estimator):
        return choice
    if not isinstance(choice, str):
        raise ValueError(f"estimator: expected a name or an estimator, found {choice!r}")
    if choice not in ESTIMATORS:
        raise unknown("estimator", choice, list(ESTIMATORS))
    return ESTIMATORS[choice](lambda_, damping)


def update(choice: Any, limit: float, rate: float) -> optax.GradientTransformationExtraArgs:
    """An update by name, or the one given. A name always gives the same object, so that agents
    share compiled programs."""
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
            return line_search.conjugate_gradients(limit)
        case "variance-scaled":
            return updates.variance_scaled(rate)
    if not _is_optimiser(choice):
        raise unknown("update", choice, list(UPDATES))
    return updates.ascending(getattr(optax, choice)(rate))


def _is_optimiser(name: str) -> bool:
    """Whether optax has an optimiser of that name that needs a learning rate and no other argument,
    neither when it is made nor, as line searches do, when it is used."""
    make = getattr(optax, name, None)
    if not inspect.isfunction(make) or name.startswith(("_", "scale_by_")):
        return False
    asked = [p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    if asked not in (["learning_rate"], ["learning_rate", "kwargs"]):
        return False
    theta, optimiser = jnp.zeros(1), optax.with_extra_args_support(make(1e-3))
    try:
        jax.eval_shape(lambda: optimiser.update(theta, optimiser.init(theta), theta))
    except TypeError:
        return False
    return True


def options(given: Any, environment: Any) -> dict[str, Any]:
    """Arguments of `gymnasium.make`."""
    if not isinstance(given, Mapping | None):
        raise ValueError(f"options: expected a dictionary for gymnasium.make, make {given!r}")
    if given and (not isinstance(environment, str) or built_in(environment)):
        reason = "they go to gymnasium.make, and the environment is no Gymnasium id"
        raise settings.no_effect("options", given, reason)
    return dict(given or {})
