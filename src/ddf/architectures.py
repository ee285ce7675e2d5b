"""The paper's architectures (appendices C and D), each a few lines of plain data."""

__all__ = ["binary_mnist", "cityscapes", "eight_gaussians"]

from collections.abc import Sequence

from ddf.spec import (
    DenoisingCouplingSpec,
    DenseNetSpec,
    FlowSpec,
    LayerSpec,
    MLPSpec,
    ModularCouplingSpec,
    NetSpec,
    ShuffleSpec,
    SplitPriorSpec,
    SqueezeSpec,
)


def eight_gaussians(coupling: str = "denoising", couplings: int = 1, net: NetSpec | None = None) -> FlowSpec:
    """Vectors of two symbols of 91 classes, one coupling: the toy of the paper.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        couplings: The number of couplings; the paper has one. Each next one transforms the other symbol.
        net: Another net than the paper's MLP.

    Example:
        >>> eight_gaussians(couplings=2).build()
        Flow of 91 classes, shape 2, 362,358 parameters
             0  DenoisingCoupling(MLP(hidden=256, layers=4), ChannelSplit(index=None), top=91) → 2
             1  Shuffle(permutation=(1, 0)) → 2
             2  DenoisingCoupling(MLP(hidden=256, layers=4), ChannelSplit(index=None), top=91) → 2
          base  FactorizedCategorical(shared=False) → 2
    """
    if couplings < 1:
        raise ValueError(f"couplings={couplings}, but it takes at least 1")
    layers: list[LayerSpec] = []
    for i in range(couplings):
        layers += [ShuffleSpec(permutation=(1, 0))] if i else []
        layers += [_coupling(coupling, net or MLPSpec(), top=91)]
    return FlowSpec(num_classes=91, shape=(2,), layers=tuple(layers))


def binary_mnist(
    coupling: str = "denoising", split_priors: bool = True, factor_out: str = "b", net: NetSpec | None = None
) -> FlowSpec:
    """Maps of 28 × 28 binary symbols, four couplings.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        split_priors: Whether a split prior follows each coupling (appendix C) or not (appendix D).
        factor_out: Which part the split priors factor out; see `SplitPrior`.
        net: Another net than the paper's DenseNet of 8 blocks.
    """
    return _multiscale(
        num_classes=2,
        shape=(1, 28, 28),
        couplings=(2, 2),
        top=2,
        coupling=coupling,
        factor_out=factor_out if split_priors else None,
        net=net or DenseNetSpec(blocks=8),
    )


def cityscapes(
    coupling: str = "denoising",
    split_priors: bool = True,
    factor_out: str = "b",
    net: NetSpec | None = None,
    top: int = 4,
) -> FlowSpec:
    """Maps of 32 × 64 symbols of 8 classes: six couplings with split priors, five without.

    Arguments:
        coupling: `"denoising"` for a Discrete Denoising Flow, `"modular"` for a Discrete Flow.
        split_priors: Whether a split prior follows each coupling (appendix C) or not (appendix D).
        factor_out: Which part the split priors factor out; see `SplitPrior`.
        net: Another net than the paper's DenseNet of 15 blocks.
        top: How many classes each coupling sorts, but for the last, which sorts all: the paper's h.
    """
    return _multiscale(
        num_classes=8,
        shape=(1, 32, 64),
        couplings=(2, 2, 2) if split_priors else (1, 2, 2),
        top=top,
        coupling=coupling,
        factor_out=factor_out if split_priors else None,
        net=net or DenseNetSpec(blocks=15),
    )


def _multiscale(
    num_classes: int,
    shape: tuple[int, ...],
    couplings: Sequence[int],
    top: int,
    coupling: str,
    factor_out: str | None,
    net: NetSpec,
) -> FlowSpec:
    """For each number in `couplings`: a squeeze, then so many times {shuffle, coupling, split prior if any}."""
    layers: list[LayerSpec] = []
    number, last = 0, sum(couplings) - 1
    for count in couplings:
        layers += [SqueezeSpec()]
        for _ in range(count):
            layers += [ShuffleSpec(seed=number)]
            layers += [_coupling(coupling, net, top=num_classes if number == last else top)]
            layers += [] if factor_out is None else [SplitPriorSpec(net, factor_out)]
            number += 1
    return FlowSpec(num_classes, shape, tuple(layers))


def _coupling(kind: str, net: NetSpec, top: int) -> LayerSpec:
    if kind == "denoising":
        return DenoisingCouplingSpec(net, top)
    if kind == "modular":
        return ModularCouplingSpec(net)
    raise ValueError(f"coupling={kind!r}, but it must be 'denoising' or 'modular'")
