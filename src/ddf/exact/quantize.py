"""Convert trained nets to nets with exact arithmetic."""

__all__ = ["outline_net", "quantize_net"]

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ddf.exact.integer import ACTIVATION_BITS, ONE, ExactAffine, InexactNetError, Scale
from ddf.nets import MLP, DenseNet, Net

_PEAK = 0.9  # what the largest activation seen in calibration becomes
_BITS = 1.4426950408889634  # of a nat

Affine = nn.Linear | nn.Conv2d


def quantize_net(net: Net, given: Iterable[Tensor]) -> Net:
    """Return a copy of a net whose layers are exact, to be fine-tuned.

    Arguments:
        net: A trained net.
        given: Batches of typical symbols, to measure how large its activations become.
    """
    layers = [module for module in net.modules() if isinstance(module, Affine)]
    peaks = [peak.cpu() / _PEAK for peak in _peaks(net, layers[:-1], given)]
    # The real value of an input or output, divided by its value in the exact net.
    incoming, outgoing = [torch.ones(1), *peaks], [*peaks, torch.full((1,), 1 / _BITS)]
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

    return _convert(copy.deepcopy(net), convert).to(next(net.parameters()).device)


def outline_net(net: Net) -> Net:
    """Make the layers of a net on PyTorch's meta device exact, with integers that are set later."""

    def convert(layer: Affine, *arguments: Any) -> ExactAffine:
        assert layer.bias is not None
        return ExactAffine(layer.weight, layer.bias, *arguments)

    return _convert(net, convert)


def _convert(net: Net, convert: Callable[[Affine, int, bool, int | None], ExactAffine]) -> Net:
    """Replace the layers of a net, in order: `convert` is given the last four arguments of `ExactAffine`."""
    modules: list[Any] = list(getattr(net, "stack", []))
    if type(net) is MLP and net.activation == "relu":  # the first layer takes one-hot vectors
        linear = [layer for layer in modules if isinstance(layer, nn.Linear)]
        first = convert(linear[0], 0, False, net.in_channels)
        others = [convert(layer, ACTIVATION_BITS, layer is linear[-1], None) for layer in linear[1:]]
        net.stack = nn.Sequential(first, *others, Scale(1 / _BITS))
    elif type(net) is DenseNet:  # blocks of two convolutions whose outputs are appended to their inputs
        *blocks, readout = modules
        for block in blocks:
            block.mix = convert(block.mix, ACTIVATION_BITS, False, None)
            block.grow = convert(block.grow, ACTIVATION_BITS, False, None)
        last = convert(readout, ACTIVATION_BITS, True, None)
        net.stack = nn.Sequential(Scale(ONE), *blocks, last, Scale(1 / _BITS))
    else:
        raise InexactNetError(f"{net} has no integer form: use a DenseNet, or an MLP with ReLU")
    return net


def _peaks(net: Net, modules: list[Affine], given: Iterable[Tensor]) -> list[Tensor]:
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
