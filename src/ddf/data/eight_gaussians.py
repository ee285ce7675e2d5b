"""Eight Gaussians on a circle, in 91 bins: the toy data set of the paper, with its exact optima."""

__all__ = ["EightGaussians"]

from math import erf, sqrt
from typing import ClassVar

import torch
from torch import Tensor

from ddf.classes import Classes
from ddf.data.dataset import DataSet
from ddf.permutation import argsort_top


class EightGaussians:
    """A mixture of eight Gaussians around a circle, discretized: pairs of symbols of 91 classes.

    Means at radius 2, standard deviation 0.1, clipped to ±2.25 and rounded to the grid: round(20 · x) + 45.

    References:
        | Discrete Flows: Invertible Generative Models of Discrete Data (Tran et al., 2019)
        | Discrete Denoising Flows (Lindt & Hoogeboom, 2021)

    Examples:
        >>> x = EightGaussians.sample(1000, seed=0)
        >>> x.shape, x.dtype, int(x.max())
        (torch.Size([1000, 2]), torch.uint8, 90)
        >>> round(EightGaussians.entropy(), 4)
        4.5589
    """

    num_classes: ClassVar[int] = 91
    shape: ClassVar[tuple[int]] = (2,)

    _RADIUS, _DEVIATION, _EDGE, _BINS_PER_UNIT = 2.0, 0.1, 2.25, 20

    @classmethod
    def _means(cls) -> Tensor:
        angle = torch.arange(8, dtype=torch.float64) * torch.pi / 4
        return cls._RADIUS * torch.stack([angle.cos(), angle.sin()], dim=1)

    @classmethod
    def sample(cls, n: int, seed: int) -> Tensor:
        """Draw `n` pairs. Different seeds give independent draws."""
        generator = torch.Generator().manual_seed(seed)
        which = torch.randint(8, (n,), generator=generator)
        noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        points = (cls._means()[which] + cls._DEVIATION * noise).clamp(-cls._EDGE, cls._EDGE)
        return ((points * cls._BINS_PER_UNIT).round() + 45).to(torch.uint8)

    @classmethod
    def data_set(cls, train: int = 200_000, validation: int = 20_000, test: int = 100_000, seed: int = 0) -> DataSet:
        """Return disjoint draws for training, validation and testing; the test set is the same for every seed.

        Arguments:
            train: The number of training pairs.
            validation: The number of validation pairs.
            test: The number of test pairs.
            seed: The seed of the training and validation pairs.
        """
        splits = {
            "train": cls.sample(train, seed=1_000 + 2 * seed),
            "validation": cls.sample(validation, seed=1_001 + 2 * seed),
            "test": cls.sample(test, seed=999_983),
        }
        return DataSet("eight Gaussians", Classes.plain(cls.num_classes), splits)

    @classmethod
    def probabilities(cls) -> Tensor:
        """Return the exact probability of every pair: (91, 91), float64."""
        # A bin holds what is rounded to it; the first and last bins also hold what is clipped.
        edges = [(i - 45 - 0.5) / cls._BINS_PER_UNIT for i in range(1, cls.num_classes)]

        def bins(mean: float) -> Tensor:
            below = [0.5 * (1 + erf((edge - mean) / (cls._DEVIATION * sqrt(2)))) for edge in edges]
            return torch.tensor([0.0, *below, 1.0], dtype=torch.float64).diff()

        return torch.stack([torch.outer(bins(float(a)), bins(float(b))) for a, b in cls._means()]).mean(0)

    @classmethod
    def entropy(cls) -> float:
        """Return the bits per dimension of the true distribution, a lower bound for every model."""
        return _entropy(cls.probabilities()) / 2

    @classmethod
    def factorized_optimum(cls) -> float:
        """Return the bits per dimension of the best model without couplings."""
        return _factorized(cls.probabilities())

    @classmethod
    def coupling_optimum(cls, couplings: int = 1, top: int = 91) -> float:
        """Return the bits per dimension of the ideal DDF, whose couplings use the true conditionals.

        Each coupling transforms the second symbol given the first; the symbols are swapped between couplings.
        """
        p = cls.probabilities()
        for i in range(couplings):
            p = _ideal_coupling(p.t() if i else p, top)
        return _factorized(p)


def _entropy(p: Tensor) -> float:
    return float(torch.special.entr(p).sum()) / float(torch.log(torch.tensor(2.0, dtype=torch.float64)))


def _factorized(p: Tensor) -> float:
    return (_entropy(p.sum(0)) + _entropy(p.sum(1))) / 2


def _ideal_coupling(p: Tensor, top: int) -> Tensor:
    """Return the distribution of (x_a, rank(x_b | x_a)) for (x_a, x_b) distributed as `p`."""
    # In single precision, so that ties that follow from the symmetry of the data are exact.
    conditional = (p / p.sum(1, keepdim=True).clamp(min=1e-300)).float()
    return p.gather(1, argsort_top(conditional, top))
