"""The demonstration, small."""

import numpy as np

from bayespg import demo


def test_the_demo_learns_draws_and_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "UPDATES", 8)
    fractions = []
    found = demo.run(runs=6, seed=0, progress=lambda fraction, what: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert len(found.rows) == len(demo.METHODS)
    ours = found.costs["Model 2 + baseline"]
    assert ours[:, -1].mean() < ours[:, 0].mean()
    lower, upper = found.visited[1:3]
    assert np.all(lower < upper)
    assert demo.picture(found, tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
