"""The prose of the report."""

__all__ = [
    "AUTHORS",
    "CATEGORIES",
    "CLAIM",
    "FAITHFUL_FLOWS",
    "HEAD",
    "MEASURED_TIMES",
    "NOTES",
    "ORDERED_FLOWS",
    "PREDICTIONS",
    "PREDICTIONS_HEAD",
    "PUBLISHED",
    "RANKED",
    "RUN_TIMES",
    "UNTRAINED",
]

HEAD = """# Results

This page reproduces Table 1 of [Discrete Denoising Flows](https://arxiv.org/abs/2107.11625) (Lindt & Hoogeboom, 2021)
with this package and measures the effect of each of our changes. Scores are in bits per dimension; lower is better.
Unless a table states otherwise, scores are measured on the test set, and ± denotes the standard deviation over seeds
(n − 1). All seeds share the same test set.

Differences between test scores are given with a 95 % confidence interval, which accounts for the choice of seeds
(Student's t distribution) and of test samples. Runs are paired by seed, which determines the shuffles and the
binarizations of both models; seeds that only one model was run with are left out. Where the score of every test sample
was recorded, scores are also paired by sample; elsewhere, the interval is wider. The Cityscapes test maps come from
only three cities, which no interval accounts for."""

FAITHFUL_FLOWS = """\
"Faithful" flows follow the paper's appendices to the letter, and we chose only what the appendices leave open, with two
exceptions. Split priors factor out the part that the coupling has transformed, as in the authors' code; only the rows
"in the order of appendix C" factor out the part that appendix C names. And on MNIST, nets are trained for at most 8
epochs, not until they converge as in the paper's algorithm, and would improve further with longer training; the
authors' commands train for 100 epochs.

"Ours" are our own presets: their nets have the same depth and width, but those of flows without split priors have more
inputs and therefore up to a third more parameters. Nets that predict a scale as well as a location have twice as many
outputs, so Discrete Flows can have more parameters than denoising flows. Scores are averaged over three seeds unless a
different number of seeds is given in parentheses.

"Base alone" models all symbols as independent. (In our presets, it is fitted to mirrored maps as well, and therefore
scores worse on Cityscapes.)"""

UNTRAINED = """\
The following Discrete Flows learned nothing: their scores are worse than that of the base alone or at most 1 %
better."""

AUTHORS = """\
The authors' repository, alex-lindt/Discrete-Denoising-Flows (we read the fork inouye-lab/Discrete-Denoising-Flows,
commit 3079f5c), does not report any scores and contains no Discrete Flow. The commands in its README train every net
for images for 100 epochs. On our hardware, this would take hours for each row with split priors, so we did not run
them. The commands for flows without split priors train flows with split priors, because `--with_splitprior False`
converts the text "False" to a boolean, which is true. The code differs from the paper as follows:

- Its split priors factor out the part that the coupling has transformed; appendix C factors out the other part.
- It evaluates 8 Gaussians on the training points, randomly mirrors and crops the test maps of Cityscapes, and drops the
  last, incomplete batch of MNIST's test images, which it binarizes again on every pass.
- Its nets turn one-hot vectors into channels with `.view`, without first moving the class axis, which scrambles classes
  and pixels. Its MLPs use batch normalization.
- On Cityscapes, it has four levels instead of three, and all couplings from the third level onward rank all classes;
  in the paper, only the last coupling does.
- Its default learning rate is 0.0005, and the commands in its README use nets with 10 blocks for MNIST. We took the
  width of 512 planes, which the paper does not state, from the same commands.

Any of these could explain differences between the published scores and ours. We have not tested which."""

PREDICTIONS = """\
## What denoising is for

A prediction can be used to *rank* symbols, whose ranks stay in the flow (a denoising coupling), to *code* them (a split
prior), or to do both: a *denoising split* ranks the symbols and codes the ranks with the same prediction, corrected by
counts. Given the same context, ranks are no easier to predict than the symbols themselves, so a coupling before a
split prior gains nothing that the split prior could not gain on its own. Denoising couplings are meant for flows
without split priors, in which a base of independent symbols codes everything. The last rows show such flows, and a flow
with denoising splits in place of the couplings, which codes ranks according to the confidence of its nets. These nets
are smaller, because ranks leave the flow and are not among their inputs.

In the rows with split priors, the flows of denoising splits have the same trained nets as the flows of split priors,
with the same seeds. Only the coding differs: counts on validation data correct the probabilities of the split priors.
The test maps of Cityscapes show different cities from the validation maps, so the comparison also covers whether the
corrections carry over to other cities.

Discrete Flows are trained jointly and all other flows net by net, with the same batches, epochs, learning rate
schedules and moving averages."""

PREDICTIONS_HEAD = """\
| data | model | nets | parameters | epochs | test | difference from the first row \
| difference from split priors only | {training} | time per sample |
|---|---|---|---|---|---|---|---|---|---|"""

MEASURED_TIMES = """\
Times were measured with one flow alone on one {device}: the total time of the optimizer steps of a run, without
validation, and the time per sample in batches of 32 (flows with random weights, the median of five batches)."""

RUN_TIMES = """\
Times are minima over seeds, because runs may have shared a device; samples are drawn in batches of 32."""

RANKED = """\
h, the number of classes that a coupling ranks. The last coupling
always ranks all classes. (The paper states h = 4 for all couplings in its main text, and for all but the last in its
appendices, where a grid search finds it to be the best of these values. We kept it.)"""

CLAIM = """\
The paper's claim is that denoising flows have lower scores than Discrete Flows. Negative differences support it. The
intervals of the paper's differences are derived from its standard deviations, assuming three independent runs."""

ORDERED_FLOWS = """\
[Ordered flows](../ordered.md) code pixels in many steps from coarse to fine, and one net predicts all of them. Our
scores are exact likelihoods of test maps without augmentation. Published bounds on the likelihood are marked as such;
the one on Cityscapes was measured on test maps that were mirrored and shifted at random. Published scores on binary
MNIST are in nats per image and were converted. "Training" is the time of the optimizer steps, measured with a single
flow on the device. If it was not measured, it is the training time of the fastest run, which may have shared its
device. "Causal flow" is the label-map codec (preset `best`), trained on the same maps; its score is the actual size
of the compressed test set, in bits per dimension."""

PUBLISHED = {
    "mnist": {"LMConv, 8 orders": 0.1427, "NVAE (bound)": 0.1436},
    "static-mnist": {"VLAE (bound)": 0.1454, "PixelRNN": 0.1457},
    "cityscapes": {"multinomial diffusion (bound)": 0.304},
}
"""Published scores in bits per dimension, by data set."""

CATEGORIES = """\
## Tables of categories

This section follows the protocol of [Discrete Tree Flows](https://proceedings.mlr.press/v162/elkady22a.html) (Elkady,
Lim and Inouye, 2022): five contiguous folds; scores in nats per sample, mean ± standard deviation over folds.
8 Gaussians has 12,800 samples; Mushroom is used without the column `stalk-root`, which leaves 22 columns. All nets are
MLPs with 256 hidden units. Discrete Flows and denoising flows have four couplings; the flows of split priors or
denoising splits have one for each column except the first, and therefore more nets on wider tables. Discrete Flows and
denoising flows use the same number of classes for all columns; the other models use each column's own number of
classes. Discrete Flows use tanh instead of ReLU and shifts without scaling. A joint table is the table of the counts of
all combinations, with 1/2 added to each. The folds are contiguous, and Mushroom is sorted, so that parts of it are
unlike the training data: a column of two classes can cost more than ln 2 = 0.693 nats."""

NOTES = """\
Except for ordered flows, all runs use Adam (with a learning rate of 0.001 unless noted) and nets of the depth in the
paper's appendices; on GPUs, nets are trained in bfloat16. Split priors factor out the transformed part, as in the
authors' code, unless a row states otherwise. 8 Gaussians are generated as in the authors' code; the published score is
below {optimum:.4f}, the best that one coupling can achieve on unseen data. MNIST is binarized by sampling, with pixel
intensities as probabilities: training images repeatedly, test images once. The last 10,000 training images are the
validation set. Cityscapes has 2,500 training maps, 475 validation maps (the last of the official training maps, sorted
by path) and 500 test maps (the official validation maps, which show other cities; hence the gap between validation and
test). The corrections of denoising splits are fitted on validation data, so their validation scores are optimistic;
test scores are unaffected.

All choices were made on validation data, with one exception: a first version of denoising splits, which coded ranks by
counts alone, without the net's probabilities, was replaced after we had seen its test scores. For each net, the epoch
with the best validation score is used. The number of epochs, the batch size, the moving average and the channel order
of the denoising flows were chosen in runs with seed 0, which are among those above. The inputs of later couplings were
chosen with smaller nets on part of MNIST's training images, and the bins of the denoising splits with smaller nets on
half of the Cityscapes validation maps. The relaxation, temperature, learning rates and activation of the Discrete Flows
were chosen as follows: for 8 Gaussians, on samples other than those of the runs; for MNIST and Cityscapes, with smaller
nets on part of the training data and then in runs of 2 and 8 epochs with seed 0; the temperature, by the validation
scores of the runs above. The Cityscapes license does not allow us to show its maps next to the samples."""
