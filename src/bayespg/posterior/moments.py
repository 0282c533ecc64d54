"""What is stored of a posterior; `bayespg.posterior.statistics` computes from it."""

from typing import Any

import equinox as eqx
from jaxtyping import Float

from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.posterior.operators import Covariance, Influence


class Moments(eqx.Module):
    """Mean, covariance and contributions of paths of a policy gradient's posterior."""

    mean: Float[Array, " n"]
    covariance: Float[Array, "n n"] | Covariance
    """The covariance according to the model; an operator where n is large."""
    fisher: Fisher | None
    influence: Float[Array, "M n"] | Influence
    """Row i is the mean minus the mean without path i; an operator where n is large."""
    explained: Float[Array, ""] | Float[Array, " n"]
    """The fraction of the prior variance that the paths explain, by about which the prior shrinks
    the mean."""
    freedom: Float[Array, ""] | Float[Array, " n"]
    """The number of paths minus the effective number of parameters fitted to them."""
    info: dict[str, Any]
    """Diagnostics: evidence (log marginal likelihood), condition, rank of G, dictionary size."""
    prior: Covariance | None = None
    """B_0, the covariance before any path was seen; None where there is no prior."""
    added: Float[Array, "rows n"] | Influence | None = None
    """Row i is what path i adds to the mean; further rows belong to no path. None where `influence`
    alone tells."""
    unbiased: Float[Array, "M n"] | None = None
    """Row i is the gradient that path i alone shows, up to a common factor; they judge the mean.
    Together with `added` where the mean has a bias that all paths share, as with lambda < 1 and in
    Model 1, whose quadratic kernel can fit noise; without it in Model 2, where paths that fit every
    return say little by what they add."""
    retained: Float[Array, ""] | None = None
    """The fraction of the gradient that is left in the mean, in the directions that paths inform:
    tr(A^2) / tr(A) with A = B C B' B_0^-1, as the mean of many batches is A times the gradient.
    Intervals are then centred on the mean divided by it instead of by `explained`, and what A
    leaves of the prior is part of their width."""
    scale_freedom: Float[Array, ""] | None = None
    """The degrees of freedom of the covariance's scale, where it was estimated from the paths and
    is the same for all components; the model's region then has quantiles of F."""
    influence_judges: bool = eqx.field(static=True, default=False)
    """Whether `influence` judges the mean too and the smaller probability counts: where paths may
    be those of other policies, `unbiased` has a bias, and the influences of few paths are bold."""
    bias_shows: bool = eqx.field(static=True, default=False)
    """Whether the mean of `unbiased` is the gradient itself and not a multiple of it. It then shows
    the bias of the mean, which is part of its intervals."""

    @property
    def biased(self) -> bool:
        """Whether the mean may have a bias that all paths share, such as that of fitted values."""
        return self.unbiased is not None and self.added is not None

    @property
    def paths(self) -> int:
        """M, the number of paths."""
        I = self.influence
        if isinstance(I, Influence):
            return eqx.filter_eval_shape(type(I).along, I, self.mean).shape[0]
        return I.shape[0]
