"""Nets map symbols to logits, without mixing up space, channels and classes."""

import pytest
import torch
import torch.nn.functional as F

from ddf.nets import MLP, DenseNet
from ddf.nets.convolution import Convolution
from ddf.nets.dense_blocks import dense_blocks
from ddf.symbols import one_hot
from tests.zoo import dense, mlp, randomize

NETS = {
    "MLP": (mlp, (5,), (3,)),
    "DenseNet": (dense, (5, 6, 4), (3, 6, 4)),
}


@pytest.mark.parametrize("k", [1, 2, 3, 8, 91])
@pytest.mark.parametrize("name", NETS)
def test_logits_have_the_layout_of_cross_entropy(name: str, k: int, device: str) -> None:
    make, given, predicted = NETS[name]
    net = make(k, 5, 3).to(device)
    x = torch.randint(k, (7, *given), device=device)
    logits = net(x)
    assert logits.shape == (7, k, *predicted)
    assert net.output_shape(given) == predicted
    F.cross_entropy(logits, torch.randint(k, (7, *predicted), device=device)).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    torch.testing.assert_close(net(one_hot(x, k)), logits)


def test_a_pixel_affects_only_its_neighborhood() -> None:
    """Symbols in the wrong memory order (a view instead of a permutation) would affect the entire map."""
    net = randomize(DenseNet(3, 4, 2, blocks=1, hidden=8))  # two 3 × 3 convolutions reach 2 pixels
    x = torch.randint(3, (1, 4, 12, 12))
    for channel in range(4):
        changed = x.clone()
        changed[0, channel, 5, 6] = (changed[0, channel, 5, 6] + 1) % 3
        different = (net(changed) != net(x)).any(dim=1).any(dim=1)[0]
        rows, columns = different.nonzero(as_tuple=True)
        assert different[5, 6]
        assert (rows - 5).abs().max() <= 2
        assert (columns - 6).abs().max() <= 2


def test_predictions_are_translation_equivariant() -> None:
    net = randomize(DenseNet(3, 2, 2, blocks=1, hidden=8))
    x = torch.randint(3, (1, 2, 16, 16))
    moved = x.roll((3, 5), dims=(2, 3))
    torch.testing.assert_close(net(moved)[..., 5:-2, 7:-2], net(x).roll((3, 5), dims=(3, 4))[..., 5:-2, 7:-2])


def test_dense_blocks_in_one_tensor_equal_the_modules_and_their_gradients() -> None:
    blocks = DenseNet(3, 2, 2, blocks=3, hidden=40).double().stack[:-1]
    weights = list(blocks.parameters())
    planes = torch.randn(2, 8, 5, 4, dtype=torch.float64, requires_grad=True)
    slow, fast = blocks(planes), dense_blocks(planes, weights, torch.float64)
    torch.testing.assert_close(fast, slow)
    above = torch.randn_like(slow).to(memory_format=torch.channels_last)
    expected = torch.autograd.grad(slow, [planes, *weights], above)
    copy = above.clone()
    torch.testing.assert_close(torch.autograd.grad(fast, [planes, *weights], above), expected)
    torch.testing.assert_close(above, copy)  # it may belong to others


def test_autocast_changes_a_net_and_its_gradients_only_by_rounding() -> None:
    net = randomize(DenseNet(3, 2, 2, blocks=3, hidden=40))
    x, target = torch.randint(3, (2, 8, 2, 6, 5), generator=torch.Generator().manual_seed(0))
    gradients, losses = [], []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = F.cross_entropy(net(x).float(), target)
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, list(net.parameters())))
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0)
    for plain, rounded in zip(*gradients, strict=True):
        assert (rounded - plain).norm() < 0.1 * plain.norm()


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.tensor([[1, 2, 3]]), ValueError, r"MLP takes symbols \(batch, 2, …\) .*, not \(1, 3\)"),
        (torch.tensor([[1]]), ValueError, r"MLP takes symbols \(batch, 2, …\) .*, not \(1, 1\)"),
        (torch.zeros(1, 7, 2), ValueError, r"one-hot vectors \(batch, 8, 2, …\), not \(1, 7, 2\)"),
    ],
)
def test_invalid_inputs_of_nets_are_rejected(x: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MLP(8, 2, 1)(x)


@pytest.mark.parametrize("name", NETS)
def test_a_net_distinguishes_every_class_of_every_channel(name: str) -> None:
    """Each class of each input channel leads to different logits."""
    make, given, _ = NETS[name]
    net = make(3, 5, 3)
    x = torch.zeros(1, *given, dtype=torch.long)
    seen = set()
    for channel in range(5):
        for value in range(3):
            changed = x.clone()
            changed[0, channel] = value
            seen.add(tuple(net(changed).flatten().tolist()))
    assert len(seen) == 1 + 5 * 2


@pytest.mark.parametrize("net", [MLP(8, 2, 3), DenseNet(8, 2, 3, blocks=2, hidden=16)])
def test_a_new_net_predicts_a_uniform_distribution(net: MLP | DenseNet) -> None:
    x = torch.randint(8, (4, 2, *([] if isinstance(net, MLP) else [5, 5])))
    assert (net(x) == 0).all()


@pytest.mark.parametrize("net", [mlp(91, 3, 1), dense(3, 1, 1), DenseNet(8, 1, 3, blocks=15, hidden=500)])
def test_widths_suit_matrix_hardware(net: torch.nn.Module) -> None:
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            assert all(width % 8 == 0 for width in parameter.shape[:2]), name


def test_width_is_shared_by_the_blocks() -> None:
    net = DenseNet(8, 2, 2, blocks=15, hidden=512)
    growths = [block.grow.out_channels for block in net.stack[:-1]]
    assert len(growths) == 15
    assert sum(growths) == 512
    assert max(growths) - min(growths) <= 8


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize("size", [(1, 1), (2, 7), (8, 5)])
def test_convolution_is_the_same_in_double_precision(kernel_size: int, size: tuple[int, int]) -> None:
    convolution = Convolution(8, 16, kernel_size).double()
    x = torch.randn(3, 8, *size, dtype=torch.float64)
    expected = F.conv2d(x, convolution.weight, convolution.bias, padding=kernel_size // 2)
    torch.testing.assert_close(convolution(x), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(0, 1, 1), "MLP: num_classes=0 must be a positive integer"),
        (lambda: MLP(2, 1, 1, hidden=0), "MLP: hidden=0"),
        (lambda: MLP(2, 1, 1, layers=1), "MLP: layers=1, but at least 2 are needed"),
        (lambda: DenseNet(2, 1, 0), "DenseNet: out_channels=0"),
        (lambda: DenseNet(2, 1, 1, blocks=-1), "DenseNet: blocks=-1"),
        (lambda: DenseNet(2, 1, 1, hidden=1.5), "DenseNet: hidden=1.5"),  # type: ignore[arg-type]
        (lambda: MLP(2, 1, 1).output_shape((2,)), r"MLP takes vectors \(1,\), not symbols of shape \(2,\)"),
        (lambda: DenseNet(2, 1, 1, 1, 8).output_shape((3, 4, 4)), r"DenseNet takes maps \(1, height, width\)"),
    ],
)
def test_impossible_nets_are_rejected(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_features_of_an_untrained_tanh_net_are_centered() -> None:
    """Without a component common to all inputs, training first learns to tell them apart."""
    shares = {}
    for activation in ("relu", "tanh"):
        torch.manual_seed(0)
        net = MLP(91, 1, 1, activation=activation)
        features = net.stack[:-1](torch.eye(net.in_planes)[:91]).detach()
        shares[activation] = float(features.mean(0).square().sum() / features.square().sum(1).mean())
        assert not net(torch.tensor([[3], [90]])).any()  # an untrained coupling is the identity
    assert shares["tanh"] < 0.05
    assert shares["relu"] > 0.5
    with pytest.raises(ValueError, match="activation='gelu' must be one of relu, tanh"):
        MLP(91, 1, 1, activation="gelu")


@pytest.mark.parametrize("name", NETS)
def test_nets_can_be_compiled_and_vectorized(name: str) -> None:
    make, given, _ = NETS[name]
    net = make(3, 5, 3)
    x = torch.randint(3, (4, *given))
    expected = net(x)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)  # raises an error at graph breaks
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(torch.func.vmap(lambda one: net(one[None])[0])(x), expected)
    ensemble = [make(3, 5, 3), randomize(make(3, 5, 3), seed=1)]
    parameters, buffers = torch.func.stack_module_state(ensemble)
    together = torch.func.vmap(lambda *state: torch.func.functional_call(net, state, (x,)))(parameters, buffers)
    for one, found in zip(ensemble, together, strict=True):
        torch.testing.assert_close(found, one(x))
