"""Convert trained nets to nets with exact arithmetic."""

__all__ = ["quantize_net"]

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ddf.exact.integer import ACTIVATION_BITS, ONE, ExactAffine, InexactNetError, Scale
from ddf.nets import MLP, DenseNet, Net

_PEAK = 0.9  # what the largest activation seen in calibration becomes
_BITS = 1.4426950408889634  # of a nat


def quantize_net(net: Net, given: Iterable[Tensor]) -> Net:
    """Return a copy of a net whose layers are exact, to be fine-tuned.

    Of a net on PyTorch's meta device it returns an outline: exact layers without their integers.

    Arguments:
        net: A trained net.
        given: Batches of typical symbols, to measure how large its activations become.
    """
    handlers: dict[type[Net], Callable[[Net, Iterable[Tensor]], Net]] = {
        MLP: _quantize_stack,
        DenseNet: _quantize_dense,
    }
    if type(net) not in handlers or getattr(net, "activation", "relu") != "relu":
        raise InexactNetError(f"{net} has no integer form: use a DenseNet, or an MLP with ReLU")
    return handlers[type(net)](net, given)


def _peaks(net: Net, modules: list[nn.Linear | nn.Conv2d], given: Iterable[Tensor]) -> list[Tensor]:
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


def _quantize_stack(net: Net, given: Iterable[Tensor]) -> Net:
    """Convert a stack of linear layers, the first of which takes one-hot vectors."""
    assert isinstance(net, MLP)
    linear = [layer for layer in net.stack if isinstance(layer, nn.Linear)]
    peaks = _peaks(net, list(linear[:-1]), given)
    exact = copy.deepcopy(net)
    exact.stack = nn.Sequential()
    incoming = torch.ones(1)  # real value of an input / its value here
    for i, layer in enumerate(linear):
        last = i == len(linear) - 1
        outgoing = torch.full((1,), 1 / _BITS) if last else _on_cpu(peaks[i]) / _PEAK
        weight = _on_cpu(layer.weight) * incoming / outgoing.view(-1, 1)
        terms = net.in_channels if i == 0 else None
        exact.stack.append(
            ExactAffine(weight, _on_cpu(layer.bias) / outgoing, 0 if i == 0 else ACTIVATION_BITS, last, terms)
        )
        incoming = outgoing
    exact.stack.append(Scale(1 / _BITS))
    return exact.to(next(net.parameters()).device)


def _quantize_dense(net: Net, given: Iterable[Tensor]) -> Net:
    """Convert blocks of two convolutions whose outputs are appended to their inputs."""
    assert isinstance(net, DenseNet)
    modules: list[Any] = [module for block in list(net.stack)[:-1] for module in (block.mix, block.grow)]
    peaks = [_on_cpu(peak) / _PEAK for peak in _peaks(net, modules, given)]
    exact = copy.deepcopy(net)
    incoming = torch.full((net.in_planes,), 1 / ONE)
    *blocks, readout = list[Any](exact.stack)
    for i, block in enumerate(blocks):
        mix, grow = peaks[2 * i : 2 * i + 2]
        block.mix = _exact_convolution(block.mix, incoming, mix)
        block.grow = _exact_convolution(block.grow, mix, grow)
        incoming = torch.cat([incoming, grow])
    last = _exact_convolution(readout, incoming, torch.full((net.out_planes,), 1 / _BITS), reads_out=True)
    exact.stack = nn.Sequential(Scale(ONE), *blocks, last, Scale(1 / _BITS))
    return exact.to(next(net.parameters()).device)


def _exact_convolution(layer: nn.Conv2d, incoming: Tensor, outgoing: Tensor, reads_out: bool = False) -> ExactAffine:
    assert layer.bias is not None
    weight = _on_cpu(layer.weight) * incoming.view(1, -1, 1, 1) / outgoing.view(-1, 1, 1, 1)
    return ExactAffine(weight, _on_cpu(layer.bias) / outgoing, ACTIVATION_BITS, reads_out)


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.is_meta else tensor.detach().cpu()
