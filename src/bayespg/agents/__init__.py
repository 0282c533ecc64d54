"""Agents: policies that learn in an environment, as the users of other libraries know them."""
