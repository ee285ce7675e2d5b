"""Pictures of label maps, samples, results and explanations. Most need matplotlib."""

__all__ = [
    "Curves",
    "causal_explanation",
    "colors_of",
    "dots",
    "explanation",
    "learning_curves",
    "map_grids",
    "pair_histograms",
    "share_of_half",
    "sheet",
]

from ddf.viz.explanations import causal_explanation, explanation, share_of_half
from ddf.viz.plots import Curves, dots, learning_curves, pair_histograms
from ddf.viz.sheets import colors_of, map_grids, sheet
