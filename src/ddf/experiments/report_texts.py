"""The texts of the report."""

__all__ = ["AUTHORS", "CATEGORIES", "CHANGES", "FAITHFUL_FLOWS", "HEAD", "NOTES", "PREDICTIONS"]

HEAD = """# Results

Table 1 of [Discrete Denoising Flows](https://arxiv.org/abs/2107.11625) (Lindt & Hoogeboom, 2021), reproduced with this
software, and the effect of each change. Scores are in bits per dimension; lower is better. Unless a table states
otherwise, they are measured on the test set. ± denotes the standard deviation over seeds (n − 1); all seeds share the
same test set."""

FAITHFUL_FLOWS = """\
"Faithful" flows follow the paper's appendices to the letter; we chose only what the appendices leave open. There is
one exception: split priors factor out the part that the coupling has transformed, as in the authors' code. Only the
rows "in the order of appendix C" factor out the part that appendix C names. On MNIST, faithful nets are trained for at
most 8 epochs and would still improve after that; the authors' commands train for 100 epochs. "Ours" are our own
presets, with nets of the same size. Scores are over three seeds unless another number is given in parentheses.

"Base alone" is a distribution of independent symbols. Where a Discrete Flow has the same score, its couplings learned
nothing. This is the case for the faithful flows without split priors and for two of our three on Cityscapes. (Our
Cityscapes presets also train on mirrored maps, which puts the base alone at a disadvantage.)"""

AUTHORS = """\
The repository of the authors, alex-lindt/Discrete-Denoising-Flows (read in the fork
inouye-lab/Discrete-Denoising-Flows, commit 3079f5c), does not publish any scores. The commands in its README train
every net for 100 epochs, which would take hours here for each row with split priors, so we did not run them. The
repository differs from the paper as follows:

- Its split priors factor out the part that the coupling has transformed; appendix C factors out the other part. With
  the order of appendix C, the scores of denoising flows are worse than the published ones.
- It tests 8 Gaussians on the training points, mirrors and crops the test maps of Cityscapes at random, and drops the
  last incomplete batch of MNIST's test images, which it binarizes anew on every pass.
- Its nets turn one-hot vectors into channels by `.view`, without first moving the class axis, which mixes up classes
  and pixels.
- On Cityscapes, it has four levels instead of three, and all couplings from the third level onward rank all classes;
  in the paper, only the last coupling does.
- Its default learning rate is 0.0005, and the commands in its README use nets of 10 blocks for MNIST. The width of
  512 planes, which the paper does not state, is taken from the same commands."""

PREDICTIONS = """\
## What denoising is for

A prediction can be used to *rank* symbols, whose ranks stay in the flow (a denoising coupling), to *code* them (a split
prior), or to do both: a *denoising split* ranks the symbols and codes the ranks with the same prediction, corrected by
counts. Given the same context, ranks are no easier to predict than the symbols themselves, so a coupling before a
split prior gains nothing that the split prior could not gain on its own. Denoising couplings pay off in flows without
split priors. The last rows are such a flow, "five steps": its five couplings, and denoising splits in their place,
which code the ranks by the margins instead of leaving them to a base of independent symbols.

Differences are from the first flow for the same data, paired by test sample (averaged over seeds) and given with a
95 % confidence interval. The interval accounts for the choice of the test samples but not for that of the seeds; the
Cityscapes test maps come from only three cities. Times are the shortest of all seeds, because some runs shared a
device; one sample is a 32nd of the time of 32 samples.

| data | model | nets | parameters | test | difference | training | one sample |
|---|---|---|---|---|---|---|---|"""

CHANGES = """\
Differences of test scores are paired by test sample and given with a 95 % confidence interval, or without one if the
scores of the samples were not recorded."""

CATEGORIES = """\
## Tables of categories

This section follows the protocol of [Discrete Tree Flows](https://proceedings.mlr.press/v162/elkady22a.html) (Elkady,
Lim and Inouye, 2022): five contiguous folds; scores in nats per sample, mean ± standard deviation over folds.
8 Gaussians has 12,800 samples; Mushroom has 22 columns, without `stalk-root`. The flows use MLPs with 256 units. They
consist of four couplings, or of a split prior or a denoising split for each column except the first, and thus of more
nets for wider tables. Discrete and denoising flows use the same number of classes for all columns; the other models use
each column's own number of classes."""

NOTES = """\
All runs use Adam (with a learning rate of 0.001 unless noted) and nets of the sizes in the paper's appendices. Split
priors factor out the transformed part, as in the authors' code, unless a row states otherwise. The published score for
8 Gaussians is below {optimum:.4f}, the best that one coupling can achieve on unseen data. Cityscapes has 2500 training
maps, 475 validation maps (the last of the official training maps, sorted by path) and 500 test maps (the official
validation maps, which show other cities; hence the gap between validation and test). The corrections of denoising
splits are counted on validation data, so their validation scores are slightly optimistic; test scores are unaffected.

All choices were made on validation data, with one exception: denoising splits without the probabilities of the net,
which coded ranks by counts alone, were replaced after their test scores were seen. The best epoch of each net is the
one with the best validation score. Epochs, batch sizes and moving averages of the denoising flows were chosen in runs
with seed 0, which are among those above; so was the order of the channels. The inputs of later couplings were chosen
with smaller nets on part of MNIST's training images; the bins of the denoising splits, with smaller nets on half of the
Cityscapes validation maps. The relaxation, temperature, learning rates and activation of the Discrete Flows were chosen
as follows: for 8 Gaussians, on draws other than those of the runs; for MNIST and Cityscapes, with smaller nets on part
of the training data and then in runs of 2 and 8 epochs with seed 0. The Cityscapes license does not allow its maps to
be shown next to the samples."""
