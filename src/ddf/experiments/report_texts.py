"""The prose of the report."""

__all__ = [
    "AUTHORS",
    "CATEGORIES",
    "CLAIM",
    "FAITHFUL_FLOWS",
    "HEAD",
    "MEASURED_TIMES",
    "NOTES",
    "PREDICTIONS",
    "PREDICTIONS_HEAD",
    "RUN_TIMES",
    "UNTRAINED",
]

HEAD = """# Results

This page reproduces Table 1 of [Discrete Denoising Flows](https://arxiv.org/abs/2107.11625) (Lindt & Hoogeboom, 2021)
with this package and measures the effect of each of our changes. Scores are in bits per dimension; lower is better.
Unless a table states otherwise, scores are measured on the test set, and ± denotes the standard deviation over seeds
(n − 1). All seeds share the same test set.

Differences between test scores are given with a 95 % confidence interval, which accounts for the choice of seeds and of
test samples. Scores are paired by test sample where those of individual samples were recorded; otherwise, the interval
is wider. The Cityscapes test maps come from only three cities, which no interval accounts for."""

FAITHFUL_FLOWS = """\
"Faithful" flows follow the paper's appendices to the letter, and we chose only what the appendices leave open, with one
exception: split priors factor out the part that the coupling has transformed, as in the authors' code. Only the rows
"in the order of appendix C" factor out the part that appendix C names. On MNIST, faithful nets are trained for at most
8 epochs and would improve further with longer training; the authors' commands train for 100 epochs. "Ours" are our own
presets: their nets have the same depth and width, but those of flows without split priors have more inputs and
therefore up to a third more parameters. Scores are averaged over three seeds unless a different number of seeds is
given in parentheses.

"Base alone" models all symbols as independent. (Our Cityscapes presets are also trained on mirrored maps, which worsens
its score.)"""

UNTRAINED = """\
The following Discrete Flows have learned nothing: their scores are at most 1 % better than those of the base alone."""

AUTHORS = """\
The authors' repository, alex-lindt/Discrete-Denoising-Flows (we read the fork inouye-lab/Discrete-Denoising-Flows,
commit 3079f5c), does not report any scores. The commands in its README train every net for images for 100 epochs. On
our hardware, this would take hours for each row with split priors, so we did not run them. The code differs from the
paper as follows:

- Its split priors factor out the part that the coupling has transformed; appendix C factors out the other part. With
  the order of appendix C, the scores of denoising flows are worse than the published ones.
- It evaluates 8 Gaussians on the training points, randomly mirrors and crops the test maps of Cityscapes, and drops the
  last, incomplete batch of MNIST's test images, which it binarizes again on every pass.
- Its nets turn one-hot vectors into channels with `.view`, without first moving the class axis, which scrambles classes
  and pixels.
- On Cityscapes, it has four levels instead of three, and all couplings from the third level onward rank all classes;
  in the paper, only the last coupling does.
- Its default learning rate is 0.0005, and the commands in its README use nets with 10 blocks for MNIST. We took the
  width of 512 planes, which the paper does not state, from the same commands."""

PREDICTIONS = """\
## What denoising is for

A prediction can be used to *rank* symbols, whose ranks stay in the flow (a denoising coupling), to *code* them (a split
prior), or to do both: a *denoising split* ranks the symbols and codes the ranks with the same prediction, corrected by
counts. Given the same context, ranks are no easier to predict than the symbols themselves, so a coupling before a
split prior gains nothing that the split prior could not gain on its own. Denoising couplings pay off in flows without
split priors. The last rows show such a flow, "five steps": first with its five couplings, then with denoising splits in
their place, which code the ranks according to the net's confidence instead of leaving them to a base of independent
symbols.

The flows of denoising splits have the same trained nets as the flows of split priors, with the same seeds. Only the
coding differs: counts on validation data correct the probabilities of the split priors. The test maps of Cityscapes
show other cities than the validation maps, and whether the corrections apply to them is part of the comparison."""

PREDICTIONS_HEAD = """\
| data | model | nets | parameters | test | difference from the first row | from split priors only | training time \
| time per sample |
|---|---|---|---|---|---|---|---|---|"""

MEASURED_TIMES = """\
Times are measured with one flow alone on one {device}: those of training consist of the optimizer steps only; those of
sampling are for batches of 32."""

RUN_TIMES = """\
Times are minima over seeds, because runs may have shared a device; samples are drawn in batches of 32."""

CLAIM = """\
The paper's claim is that denoising flows have lower scores than Discrete Flows. Negative differences support it."""

CATEGORIES = """\
## Tables of categories

This section follows the protocol of [Discrete Tree Flows](https://proceedings.mlr.press/v162/elkady22a.html) (Elkady,
Lim and Inouye, 2022): five contiguous folds; scores in nats per sample, mean ± standard deviation over folds.
8 Gaussians has 12,800 samples; Mushroom is used without the column `stalk-root`, which leaves 22 columns. All nets are
MLPs with 256 hidden units. Discrete Flows and denoising flows have four couplings; the flows of split priors or
denoising splits have one for each column except the first, and therefore more nets on wider tables. Discrete Flows and
denoising flows use the same number of classes for all columns; the other models use each column's own number of
classes. A joint table is the table of the relative frequencies of all combinations. The folds are contiguous, and
Mushroom is sorted, so that parts of it are unlike the training data: a column of two classes can cost more than
ln 2 = 0.693 nats."""

NOTES = """\
All runs use Adam (with a learning rate of 0.001 unless noted) and nets of the depth in the paper's appendices. Split
priors factor out the transformed part, as in the authors' code, unless a row states otherwise. The published score for
8 Gaussians is below {optimum:.4f}, the best that one coupling can achieve on unseen data. Cityscapes has 2,500 training
maps, 475 validation maps (the last of the official training maps, sorted by path) and 500 test maps (the official
validation maps, which show other cities; hence the gap between validation and test). The corrections of denoising
splits are fitted on validation data, so their validation scores are optimistic; test scores are unaffected.

All choices were made on validation data, with one exception: a first version of denoising splits, which coded ranks by
counts alone, without the net's probabilities, was replaced after we had seen its test scores. For each net, the epoch
with the best validation score is used. The number of epochs, the batch size, the moving average and the channel order
of the denoising flows were chosen in runs with seed 0, which are among those above. The inputs of later couplings were
chosen with smaller nets on part of MNIST's training images, and the bins of the denoising splits with smaller nets on
half of the Cityscapes validation maps. The relaxation, temperature, learning rates and activation of the Discrete Flows
were chosen as follows: for 8 Gaussians, on samples other than those of the runs; for MNIST and Cityscapes, with smaller
nets on part of the training data and then in runs of 2 and 8 epochs with seed 0. The Cityscapes license does not allow
us to show its maps next to the samples."""
