"""The page in a real browser, as wide as a screen and as narrow as a telephone."""

import json
import re
import shutil
import subprocess

import pytest
from test_page import folder  # noqa: F401

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--virtual-time-budget=5000",
)  # fmt: skip
ASK = """
<script>addEventListener("load", () => {
  const all = (what) => [...document.querySelectorAll(what)];
  const head = document.querySelector("table.sortable th button");
  const rows = () => [...head.closest("table").tBodies[0].rows];
  const column = () => rows().map((row) => row.cells[0].textContent);
  head.click();
  const up = column();
  head.click();
  const found = {
    figures: all("img").map((i) => i.complete && i.naturalWidth > 100 && i.width <= innerWidth),
    links: all('a[href^="#"]').map((a) => document.getElementById(a.hash.slice(1)) !== null),
    overflow: document.documentElement.scrollWidth - innerWidth,
    sorted: JSON.stringify(up) === JSON.stringify([...up].sort()),
    reversed: JSON.stringify(column()) === JSON.stringify([...up].sort().reverse()),
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
  };
  document.body.replaceChildren(JSON.stringify(found));
})</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium here; install it to see the page in it")
@pytest.mark.parametrize("width", [390, 1280])
def test_every_figure_shows_and_every_link_lands(folder, width, tmp_path):  # noqa: F811
    html = (folder / "report.html").read_text()
    page = tmp_path / "page.html"
    page.write_text(html.replace("</body>", f"{ASK}</body>"))
    shown = subprocess.run(
        [BROWSER, *QUIET, f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    found = json.loads(re.search(r"<body>(.*)</body>", shown, re.S).group(1))
    assert found["figures"] == [True, True]
    assert all(found["links"])
    assert len(found["links"]) >= 6
    assert found["overflow"] <= 0
    assert found["sorted"]
    assert found["reversed"]
