"""Convert trained nets to nets with exact arithmetic."""

__all__ = ["outline_net", "quantize_net"]

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ddf.exact.affine import ONE, ExactAffine
from ddf.exact.exact_lattice_net import ExactLatticeNet, exact_lattice_net
from ddf.exact.exact_nets import BITS_PER_NAT, Affine, ExactNet, check_net, exact_net
from ddf.nets import DenseNet, LatticeNet
from ddf.nets.stable import evaluation_mode

_PEAK = 0.9  # the value to which the largest activation in calibration is scaled


def quantize_net(net: nn.Module, given: Iterable[Any]) -> ExactNet | ExactLatticeNet:
    """Return the exact form of a copy of a net, to be fine-tuned if it is `trainable`.

    Arguments:
        net: A trained net.
        given: Batches of typical symbols, with which the range of its activations is measured; for a `LatticeNet`,
            tuples (see `exact_lattice_net`).
    """
    if type(net) is LatticeNet:
        with evaluation_mode(net):
            return exact_lattice_net(net, given)
    check_net(net)
    layers = [module for module in net.modules() if isinstance(module, Affine)]
    peaks = [peak.cpu() / _PEAK for peak in _peaks(net, layers[:-1], given)]
    # The real value of an input or output, divided by its value in the exact net.
    incoming, outgoing = [torch.ones(1), *peaks], [*peaks, torch.full((1,), 1 / BITS_PER_NAT)]
    if isinstance(net, DenseNet):
        planes = torch.full((net.in_planes,), 1 / ONE)
        for i in range(0, len(peaks), 2):
            incoming[i], planes = planes, torch.cat([planes, peaks[i + 1]])
        incoming[-1] = planes
    scales = zip(incoming, outgoing, strict=True)

    def convert(layer: Affine, input_bits: int, reads_out: bool, terms: int | None) -> ExactAffine:
        before, after = (scale.view(-1, *[1] * (layer.weight.ndim - 2)) for scale in next(scales))
        weight = layer.weight.detach().cpu() * before / after.unsqueeze(1)
        assert layer.bias is not None
        return ExactAffine(weight, layer.bias.detach().cpu() / after.flatten(), input_bits, reads_out, terms)

    return exact_net(copy.deepcopy(net), convert).to(next(net.parameters()).device)


def outline_net(net: nn.Module) -> ExactNet | ExactLatticeNet:
    """Return the exact form of a net on PyTorch's meta device, with integers that are set later."""
    if type(net) is LatticeNet:
        return ExactLatticeNet(net)

    def convert(layer: Affine, *arguments: Any) -> ExactAffine:
        assert layer.bias is not None
        return ExactAffine(layer.weight, layer.bias, *arguments)

    return exact_net(net, convert)


def _peaks(net: nn.Module, modules: list[Affine], given: Iterable[Tensor]) -> list[Tensor]:
    """Return the largest output of each channel of each module."""
    peaks: dict[int, Tensor] = {}

    def watch(number: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.numel():
                return
            moved = output.detach().float().movedim(1, -1) if output.ndim == 4 else output.detach().float()
            peak = moved.flatten(0, -2).amax(dim=0)
            peaks[number] = torch.maximum(peaks[number], peak) if number in peaks else peak

        return hook

    hooks = [module.register_forward_hook(watch(i)) for i, module in enumerate(modules)]
    try:
        with torch.no_grad():
            for batch in given:
                net(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return [peaks.get(i, torch.ones(len(module.weight))).clamp(min=1e-3) for i, module in enumerate(modules)]
