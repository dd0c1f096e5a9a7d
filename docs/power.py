"""Draw power.svg and print the rates of verdicts.md, by simulation: `python docs/power.py` (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from paperbench.compare.power import Target, verdicts

CELLS, RUNS, TOLERANCE = 10, 5, 0.5
SHARED = (True, "-"), (False, "--")


def rates(shared: bool, std: float, shift: float, spread: float = 0.0, tables: int = 20_000) -> np.ndarray:
    """Return the percentages reproduced, worse and better, after 5 runs and with the extension, of shape (2, 3).

    Args:
        shared: Whether the cells are those of one table, which share their noise; else each is judged alone.
        std: Root mean square over cells of the true standard deviations, in points.
        shift: True difference in points.
        spread: Standard deviation of their logarithms.
    """
    random = np.random.default_rng(1603)
    stds = std * np.exp(spread * random.standard_normal((CELLS, tables)) - spread**2)
    samples = [one[:, None] * random.standard_normal((tables, 2 * RUNS)) + shift for one in stds]
    published = [one * np.median(random.standard_normal((tables, RUNS)), axis=-1) for one in stds]
    tables_of = [slice(0, CELLS)] if shared else [slice(i, i + 1) for i in range(CELLS)]
    found = [verdicts(samples[s], published[s], [Target(tolerance=TOLERANCE)] * len(samples[s])) for s in tables_of]
    return 100 * np.concatenate(found, axis=2).mean(axis=(2, 3))


def main() -> None:
    """Print the table and draw the figure."""
    print("| noise | difference | per cell: 5 runs | extended | table: 5 runs | extended |")
    for std, spread in ((0.16, 0.0), (0.25, 0.0), (0.25, 0.3), (0.40, 0.0)):
        for shift in (0.0, 0.5, 1.0):
            found = [rates(shared, std, shift, spread, 100_000) for shared in (False, True)]
            cells = [f"{one[0]:.1f} / {one[1]:.1f}" for by_rule in found for one in by_rule]
            print(f"| {std:.2f}{' unequal' if spread else ''} | {shift:g} | " + " | ".join(cells) + " |", flush=True)

    figure, (right, wrong) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    stds = np.linspace(0.08, 0.5, 15)
    for shared, line in SHARED:
        name = "noise of the table" if shared else "noise per cell"
        right.plot(stds, [rates(shared, s, 0)[0, 0] for s in stds], f"C0{line}", label=f"a match is reproduced, {name}")
        right.plot(
            stds, [rates(shared, s, 1)[0, 1] for s in stds], f"C1{line}", label=f"one point worse is seen, {name}"
        )
        for spread, colour in ((0.0, "C2"), (0.5, "C3")):
            which = "unequal cells" if spread else "equal cells"
            found = [rates(shared, s, TOLERANCE, spread)[1, 0] for s in stds]
            wrong.plot(stds, found, colour + line, label=f"{which}, {name}")
    wrong.axhline(5, color="grey", linewidth=0.8)
    right.set(title="Right verdicts after 5 runs", ylabel="% of cells", ylim=(0, 102))
    wrong.set(title="A difference of 0.5 called reproduced", ylim=(0, 6))
    for axes in (right, wrong):
        axes.set_xlabel("standard deviation between runs, points")
        axes.legend(fontsize=7, loc="lower left")
    plt.rcParams |= {"svg.hashsalt": "paperbench", "svg.fonttype": "none"}
    figure.savefig(Path(__file__).with_name("power.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
