"""The commands of `ddf`: thin wrappers of the public API that import heavy modules only when they run."""
