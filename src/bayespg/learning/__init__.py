"""From a batch of paths to a parameter update, and everything around that loop."""
