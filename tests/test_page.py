"""Pages hold together: every link lands, nothing is fetched, nothing breaks out of its text."""

import dataclasses
import json
import re

import numpy as np
import pytest

from bayespg.reproduce import claims, report
from bayespg.reproduce import page as paper
from bayespg.reproduce.report import Curve, Experiment, Report, Settings
from bayespg.runs import overview, page
from bayespg.runs.store import Run


def test_text_is_escaped_once():
    link = page.fill('<a href="#x">{}</a>', '"d"')
    said = page.fill('<p class="{}">{}{}</p>', '"e"', "a < b & c", [link])
    assert said == ('<p class="&quot;e&quot;">a &lt; b &amp; c<a href="#x">&quot;d&quot;</a></p>')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two experiments leave, one of them with a claim of each verdict."""
    out = tmp_path_factory.mktemp("results")
    rng = np.random.default_rng(0)
    samples = {m: (rng.normal(1, 1, 50), rng.normal(1 + m, 1, 50)) for m in (3, 0, -3)}
    judged = [
        claims.Claim(
            f"claim-{i}", "walk-bpg-improves" if i else "", f"says <{i}> & so on", "difference",
            claims.differences({"M = 5": pair, "M = 10": pair}),
        )
        for i, pair in enumerate(samples.values())
    ]  # fmt: skip
    curves = [Curve("panel", "label", "MC", [1.0, 2.0], [1.0, 2.0], [0.1, 0.1])]
    for name, found in (("bandit", judged), ("lengths", [])):
        experiment = Experiment(
            name, "Table 2", f"Title of {name}", 1, 1, 1, lambda *_: None, lambda _, of=found: of
        )
        outcome = Report(["a", "b"], [["1", "2\n3"]], curves, _figure, notes=["a note"])
        report.write(experiment, Settings(50), outcome, out, 1.0)
    paper.write(out, ["bandit", "absent", "lengths"])
    return out


def _figure():
    from bayespg.runs import plots

    figure, axes = plots.sheet(1, 1)
    axes[0, 0].plot([1, 2])
    return figure


def lands(html):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"', html)
    assert targets
    assert set(targets) <= set(ids)
    assert not re.search(r'(href|src)="(?!#|data:)', html)


def test_the_paper_s_page_shows_every_claim_with_its_verdict(folder):
    html = (folder / "report.html").read_text()
    lands(html)
    for i in range(3):
        assert f'id="claim-{i}"' in html
    for verdict in ("holds", "does not hold", "not decided"):
        assert f">{verdict}</span>" in html
    assert '<b class="fails">1</b>do not hold under any reading tried' in html
    assert html.count('<img class="figure"') == 2
    assert "says &lt;1&gt; &amp; so on" in html
    assert "says <1>" not in html
    assert "bayespg reproduce bandit --runs 50 --seed 0" in html


def test_finished_experiments_are_known_by_their_settings(folder):
    experiment = Experiment("bandit", "", "", 1, 1, 1, lambda *_: None)
    assert report.done(experiment, Settings(50), folder)
    assert not report.done(experiment, Settings(51), folder)
    assert not report.done(dataclasses.replace(experiment, name="absent"), Settings(50), folder)


def test_the_same_picture_is_the_same_file(folder):
    from bayespg.runs import plots

    assert plots.svg(_figure()) == plots.svg(_figure())
    assert json.loads((folder / "bandit.json").read_text())["claims"][0]["verdict"] == "holds"


def test_training_runs_have_a_page(tmp_path):
    names = ("update", "steps", "return", "slope", "slope_error", "sure", "divergence", "seconds")
    for seed in range(2):
        with Run.create(tmp_path / "task" / f"seed-{seed}", {"environment": "A<B"}) as run:
            for i in range(1, 6):
                run.log(dict.fromkeys(names, float(i)))
    path = overview.write([tmp_path / "task"], tmp_path / "page.html")
    html = path.read_text()
    assert "A&lt;B" in html
    assert "A<B" not in html
    assert html.count('<img class="figure"') == 1
    assert "seed-1" in html
