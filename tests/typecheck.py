"""Shapes in annotations, checked at run time.

`Array` is a JAX array inside a transformation and a NumPy array outside. Functions that take
anything like an array check it themselves and say what is wrong in their own words.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

TAKES_ANYTHING = {
    f"bayespg.{name}"
    for name in (
        "actor_critic.gradient_posterior",
        "agents.agent.Agent.__init__",
        "agents.base.BaseAgent.evaluate",
        "agents.base.BaseAgent.learn",
        "agents.base.BaseAgent.predict",
        "environments.host.Host.__init__",
        "evidence.choose_model1",
        "evidence.choose_model2",
        "evidence.model1",
        "evidence.model2",
        "fisher.inputs.checked",
        "fisher.distributions.of_gaussian",
        "fisher.distributions.of_softmax",
        "fisher.estimates.g_est",
        "fisher.estimates.monte_carlo",
        "fisher.estimates.of_step_scores",
        "fisher.estimates.recursive",
        "fisher.estimates.recursive_inverse",
        "fisher.structured.Isotropic.__init__",
        "fisher.structured.LowRank.__init__",
        "learning.line_search.conjugate_gradients",
        "monte_carlo.enac",
        "monte_carlo.gpomdp",
        "monte_carlo.reinforce",
        "posterior.gradient.GradientPosterior.contains",
        "posterior.gradient.GradientPosterior.certain",
        "posterior.gradient.GradientPosterior.episodes_needed",
        "posterior.gradient.GradientPosterior.interval",
        "posterior.gradient.GradientPosterior.probability_uphill",
        "posterior.gradient.GradientPosterior.sample",
        "gptd.critic.Critic.covariance",
        "gptd.critic.Critic.mean",
        "gptd.critic.Critic.variance",
        "gptd.online.Online.begin",
        "gptd.online.Online.observe",
        "gptd.online.Online.terminate",
        "gptd.online.online",
        "gptd.critic.posterior",
        "gptd.critic.targets",
        "quadrature.coupled.coupled",
        "quadrature.hessian.hessian",
        "quadrature.hessian.newton",
        "quadrature.integrals.bayes_hermite",
        "quadrature.integrals.integral",
        "quadrature.models.model1",
        "quadrature.models.model2",
        "quadrature.online.Online.__init__",
        "quadrature.online.Online.observe",
        "quadrature.models.expected_return",
        "quadrature.models.model2_with_prior",
        "quadrature.integrals.vector_integral",
        "search.smoothed.gradient_posterior",
        "search.search.Search.__init__",
        "search.search.Search.rescale",
        "search.search.Search.tell",
        "search.smoothed.scores",
        "agents.settings.Settings.__init__",
        "algebra.sparsification.Sparsify.__init__",
        "learning.training.train",
        "paths.worlds.world",
    )
}
_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its arguments checked. One inside another function is made anew by every
    call, and its checks would take longer to write than the call."""
    name = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
    return function if "<locals>" in name or name in TAKES_ANYTHING else _checked(function)
