"""Settings tuned for a task, by name.

    agent = bayespg.tuned("CartPole-v1", seed=0)
    bayespg train CartPole-v1 --tuned

Each was the best of a few combinations of settings, the defaults among them, in a sweep such as

    bayespg sweep TASK --steps STEPS --set episodes=2,4 --set limit=0.02,0.05 --seeds 5 --seed 100

by the mean return at the end over its seeds. The sweeps are in docs/results/tuned. Results on the
seeds that chose the settings are optimistic: report others.
"""

from typing import Any, NamedTuple

from bayespg.learning.agents import Agent


class Tuned(NamedTuple):
    """Settings of `Agent`, and how they were chosen."""

    settings: dict[str, Any]
    steps: int
    """Environment steps after which the settings were compared."""
    seeds: tuple[int, int] = (100, 104)
    """The first and the last seed that chose them."""


TUNED = {
    "CartPole-v1": Tuned({"episodes": 2, "limit": 0.02}, 5000),
    "Pendulum-v1": Tuned({"discount": 0.97}, 40_000),
    "Swimmer-v5": Tuned({"discount": 0.999, "smoothing": 0.98}, 40_000, (100, 102)),
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


def tuned(environment: str, **changes: Any) -> Agent:
    """An agent with the settings tuned for its task (`bayespg.learning.tuned`), and `changes` to
    them: ``tuned("CartPole-v1", seed=3)``. ValueError names the tasks that have some."""
    return Agent(environment, **settings(environment).settings | changes)
