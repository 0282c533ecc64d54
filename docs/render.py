"""Write docs/results.md from the JSON files that `bayespg reproduce --out docs/results` leaves.

python docs/render.py
"""

import json
from pathlib import Path

from bayespg.reproduce import EXPERIMENTS

HERE = Path(__file__).parent
ORDER = (
    "bandit",
    "lqr-gradient",
    "lqr-noise",
    "lqr-optimisation",
    "lqr-fisher",
    "lqr-variance",
    "random-walk-gradient",
    "random-walk-rates",
    "random-walk-learning",
    "mountain-car",
    "ship-steering-rates",
    "ship-steering",
    "partial-observation",
    "calibration",
)


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("\n", "<br>") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def section(name):
    content = json.loads((HERE / "results" / f"{name}.json").read_text())
    configuration = content["configuration"]
    flags = " --paper" if configuration["paper"] else ""
    if configuration["runs"] != (EXPERIMENTS[name].paper_runs if flags else None):
        flags += f" --runs {configuration['runs']}"
    claims = [
        [
            "paper" if claim["place"] else "ours",
            claim["says"],
            claim["measured"],
            claim["verdict"] if claim["verdict"] == "holds" else f"**{claim['verdict']}**",
        ]
        for claim in content["claims"]
    ]
    judged = table(["", "claim", "measured", "verdict"], claims) if claims else ""
    return f"""## {content["item"]}: {content["title"]}

`bayespg reproduce {name}{flags} --seed {configuration["seed"]}`: {configuration["runs"]:,} runs,
{content["seconds"]:.0f} s on {content["device"]}, JAX {content["versions"]["jax"]}.

![{content["title"]}](results/{name}.png)

{judged}

{table(content["table"]["columns"], content["table"]["rows"])}

{chr(10).join("- " + note for note in content["notes"])}
"""


def main():
    head = (
        "# Results\n\nMade by `python docs/render.py` from `docs/results/*.json`. "
        "Claims marked ours are not the paper's.\n"
    )
    (HERE / "results.md").write_text("\n".join([head, *map(section, ORDER)]).rstrip() + "\n")


if __name__ == "__main__":
    main()
