"""Pictures of label maps, samples, results and explanations. Most need matplotlib."""

__all__ = [
    "Comparison",
    "Curves",
    "causal_explanation",
    "colors_of",
    "comparisons",
    "dots",
    "explanation",
    "learning_curves",
    "map_grids",
    "pair_histograms",
    "share_of_half",
    "sheet",
]

from ddf.viz.explanations import causal_explanation, explanation, share_of_half
from ddf.viz.plots import Comparison, Curves, comparisons, dots, learning_curves, pair_histograms
from ddf.viz.sheets import colors_of, map_grids, sheet
