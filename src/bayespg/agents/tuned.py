r"""Settings tuned for a task, by name.

    agent = bayespg.tuned("Swimmer-v5", seed=0)
    bayespg train Swimmer-v5 --tuned

Each was the best of a few combinations of settings, the defaults among them, in a sweep such as

    bayespg sweep Swimmer-v5 --steps 40000 --set policy=fourier,mlp --set discount=0.99,0.999 \
        --set lambda=0.9,0.98 --seeds 3 --seed 100

by the mean return at the end over its seeds, and was better than the defaults on other seeds too
(docs/scale.md). Results on the seeds that chose the settings are optimistic: report others.
"""

from typing import Any, NamedTuple

from bayespg.agents.agent import BAC


class Tuned(NamedTuple):
    """Settings of `Agent`, and how they were chosen."""

    settings: dict[str, Any]
    steps: int
    """Environment steps after which the settings were compared."""
    seeds: tuple[int, int]
    """The first and the last seed that chose them."""


TUNED = {
    "Swimmer-v5": Tuned(
        {"policy": "fourier", "discount": 0.999, "lambda_": 0.98, "episodes": 2},
        40_000,
        (100, 102),
    )
}
"""By task."""


def settings(environment: Any) -> Tuned:
    """The settings tuned for a task; ValueError if there are none."""
    if not isinstance(environment, str) or environment not in TUNED:
        raise ValueError(
            f"tuned: there are no tuned settings for {environment!r}; there are for "
            f"{', '.join(TUNED)}. Leave it out for the defaults, or choose settings with "
            "'bayespg sweep'"
        )
    return TUNED[environment]


def tuned(environment: str, **changes: Any) -> BAC:
    """An agent with the settings tuned for its task (`bayespg.agents.tuned`), and `changes` to
    them: ``tuned("Swimmer-v5", seed=3)``. ValueError names the tasks that have some."""
    return BAC(environment, **settings(environment).settings | changes)
