"""A user's program, which pyright checks and nobody runs (tests/test_types.py).

The end of a line states the revealed type in angle brackets, or that the line must be an error.
"""

import numpy as np

import bayespg
from bayespg import evidence, fisher

agent = bayespg.BAC("CartPole-v1", policy="linear", seed=0, hidden=(32, 32), episodes="auto")
reveal_type(agent)  # <BAC>
reveal_type(agent.learn(1_000, keep="best"))  # <BAC>
reveal_type(agent.evaluate(episodes=10))  # <Evaluation>
reveal_type(agent.parameter_count)  # <int>
reveal_type(bayespg.BPG("CartPole-v1"))  # <BPG>
reveal_type(bayespg.PGPE("CartPole-v1", max_episodes=100))  # <PGPE>
reveal_type(bayespg.PGPE("CartPole-v1", hidden=[8], workers="ray").learn(episodes=4))  # <PGPE>
reveal_type(bayespg.MBAC("Pendulum-v1", horizon=200, discount=0.9))  # <MBAC>
reveal_type(bayespg.load("cartpole"))  # <BaseAgent>
reveal_type(bayespg.BAC.load("cartpole"))  # <BAC>
reveal_type(bayespg.resume("run"))  # <tuple[BaseAgent, Run]>
reveal_type(bayespg.tuned("Swimmer-v5"))  # <BAC>
posterior = evidence.model2(np.ones((3, 2)), np.ones(3), fisher.Isotropic(2, 1.0))
reveal_type(posterior)  # <GradientPosterior>
reveal_type(posterior.probability_uphill())  # <float>
bayespg.BAC("CartPole-v1", bounds="clop")  # wrong
bayespg.BAC("CartPole-v1", seed="first")  # wrong
bayespg.PGPE("CartPole-v1", max_episodes="many")  # wrong
bayespg.PGPE("CartPole-v1", hidden="8x8x")  # wrong
bayespg.PGPE("CartPole-v1", limit=0.1)  # wrong
bayespg.MBAC("Pendulum-v1", persistence="long")  # wrong
bayespg.MBAC("Pendulum-v1", hidden=(8, 8))  # wrong
bayespg.BCA("CartPole-v1")  # wrong
agent.learn("forever")  # wrong
