"""Shapes in annotations, checked at run time.

`Array` is a JAX array inside a transformation and a NumPy array outside. Functions that take anything
like an array check it themselves and say what is wrong in their own words.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

TAKES_ANYTHING = {
    "bayes_hermite",
    "checked",
    "choose_model1",
    "choose_model2",
    "gpomdp",
    "integral",
    "model1",
    "model2",
    "reinforce",
    "vector_integral",
}
WRONG = {"Constant.observations"}

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(function, "__qualname__", "")
    return function if name in TAKES_ANYTHING | WRONG else _checked(function)
