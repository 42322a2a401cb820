"""How binary the gates became while training, from the lines of metrics.jsonl."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from g2lstm.look.pictures.style import COLOURS, DASHES, GATE_NAMES, MARKERS, new_figure, plain, styled
from g2lstm.look.places import title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def has_saturation(metrics: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any line tells how binary the gates were."""
    return any(name.startswith("saturation/") for line in metrics for name in line)


def draw_saturation(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """The share of gates below 0.1 or above 0.9 at each validation: a colour for each layer, dashes for each run.

    Args:
        runs: by name, the lines of metrics.jsonl.
    """
    keys = dict.fromkeys(name for lines in runs.values() for line in lines for name in line)
    layers = list(dict.fromkeys(key.split("/")[1] for key in keys if key.startswith("saturation/")))
    with styled():
        figure = new_figure(10.0, 4.8 + 0.25 * (len(layers) if len(runs) > 1 else len(layers) // 4))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, gate in zip(panels, ("input", "forget"), strict=True):
            for run, (name, lines) in enumerate(runs.items()):
                for place, layer in enumerate(layers):
                    key = f"saturation/{layer}/{gate}"
                    points = [(line["tokens"] / 1e6, 100 * line[key]) for line in lines if key in line]
                    title = plain(title_of(layer))
                    axes.plot(
                        [x for x, _ in points],
                        [y for _, y in points],
                        label=f"{plain(name)}: {title}" if len(runs) > 1 else title,
                        color=COLOURS[place % len(COLOURS)],
                        marker=MARKERS[place % len(MARKERS)],
                        ls=DASHES[run % len(DASHES)],
                        markersize=4.5,
                        linewidth=1.5,
                    )
            axes.set_title(GATE_NAMES[gate])
            axes.set_xlabel("million training tokens")
            axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel("% of values below 0.1 or above 0.9")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside lower center", ncols=len(runs) if 1 < len(runs) <= 3 else 4, frameon=False
        )
        figure.suptitle("at each validation; evaluation mode", fontsize=10)
    return figure
