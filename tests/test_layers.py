"""Every layer satisfies the contract of `Layer`."""

import numpy as np
import pytest
import torch

from ddf.layers import (
    ChannelSplit,
    DenoisingCoupling,
    Layer,
    ModularCoupling,
    Shuffle,
    SplitPrior,
    Squeeze,
)
from ddf.nets import MLP, DenseNet
from ddf.permutation import argsort_top
from ddf.symbols import one_hot
from tests.zoo import LAYERS, LOCALLY_TRAINED, PlainNet, dense, everything, layer_flow, mlp, nothing, randomize

CLASSES = [2, 3, 8, 91]


@pytest.mark.parametrize("k", CLASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_inverse_undoes_forward(name: str, k: int, device: str) -> None:
    layer, shape = LAYERS[name](k)
    layer.to(device)
    x = torch.randint(k, (200, *shape), device=device)
    emitted: list[torch.Tensor] = []
    z = layer(x, lambda symbols, logits: emitted.append(symbols))
    assert tuple(z.shape[1:]) == layer.output_shape(shape)
    assert z.dtype == x.dtype
    assert torch.equal(layer.inverse(z, lambda logits: emitted.pop()), x)
    assert not emitted


@pytest.mark.parametrize("k", CLASSES)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_a_bijection(name: str, k: int) -> None:
    flow = layer_flow(name, k)
    size = torch.Size(flow.shape).numel()
    if k**size > 10_000:  # too many to enumerate; tested with fewer classes
        assert k == 91
        return
    x = everything(k, flow.shape)
    z = torch.cat([part.flatten(1) for part in flow.encode(x, batch_size=5000).parts], dim=1)
    assert z.shape == (k**size, size)
    assert len(z.unique(dim=0)) == k**size
    assert z.min() >= 0
    assert z.max() < k


@pytest.mark.parametrize("name", LAYERS)
def test_a_sample_does_not_depend_on_its_batch(name: str) -> None:
    flow = layer_flow(name, 8)
    x = torch.randint(8, (300, *flow.shape))
    complete = flow.encode(x, batch_size=300)
    for batch_size in (1, 7, 64):
        parts = flow.encode(x, batch_size=batch_size).parts
        assert all(torch.equal(a, b) for a, b in zip(parts, complete.parts, strict=True))


@pytest.mark.parametrize("kind", ["dense", "mlp"])
def test_near_ties_do_not_depend_on_the_batch(kind: str) -> None:
    # Of 91 logits for each of thousands of symbols, some are close enough to swap in single precision.
    if kind == "dense":
        coupling = DenoisingCoupling(randomize(DenseNet(91, 2, 2, blocks=2, hidden=32)), top=91)
        given = torch.randint(91, (64, 2, 8, 8))
    else:
        coupling = DenoisingCoupling(randomize(MLP(91, 4, 4, hidden=256)), top=91)
        given = torch.randint(91, (3000, 4))
    complete = argsort_top(coupling.decide(given), 91, dim=1)
    alone = torch.cat([argsort_top(coupling.decide(one), 91, dim=1) for one in given.split(1)])
    assert torch.equal(alone, complete)


@pytest.mark.parametrize("k", [8, 91, 256])
@pytest.mark.parametrize("layers", [2, 4])
def test_exact_ties_do_not_depend_on_the_batch(k: int, layers: int) -> None:
    """Classes that never occur get equal gradients, so their weights and logits stay equal, except for rounding.

    A matrix product may add up equal columns in different orders.
    """
    coupling = DenoisingCoupling(randomize(MLP(k, 1, 2, hidden=256, layers=layers)), top=k, partition=ChannelSplit(1))
    with torch.no_grad():
        for parameter in (coupling.net.stack[-1].weight, coupling.net.stack[-1].bias):
            by_class = parameter[: 2 * k].unflatten(0, (k, 2))
            by_class[k // 2 :] = by_class[k // 2]
    x = torch.randint(k, (500, 3))
    z = coupling(x, nothing)
    for size in (1, 3, 64):
        assert torch.equal(torch.cat([coupling.inverse(part, nothing) for part in z.split(size)]), x)


def test_decisions_do_not_change_the_modes_of_a_net() -> None:
    coupling = DenoisingCoupling(mlp(8, 1, 1), top=8).train()
    coupling.net.stack[0].eval()
    coupling(torch.zeros(1, 2, dtype=torch.long), nothing)
    assert [module.training for module in coupling.net.stack] == [False, True, True, True, True]


@pytest.mark.parametrize("name", LAYERS)
def test_carry_returns_what_forward_returns(name: str) -> None:
    layer, shape = LAYERS[name](8)
    x = torch.randint(8, (300, *shape))
    with torch.no_grad():
        carried = layer.carry(x)
    assert (carried == layer(x, lambda symbols, logits: None)).float().mean() > 0.999


@pytest.mark.parametrize("name", LAYERS)
def test_a_frozen_layer_keeps_its_mode_and_gets_no_gradients(name: str) -> None:
    layer, shape = LAYERS[name](3)
    x = torch.randint(3, (10, *shape))

    def run() -> tuple[torch.Tensor, list[torch.Tensor]]:
        emitted: list[torch.Tensor] = []
        return layer(x, lambda symbols, logits: emitted.extend([symbols, logits])), emitted

    before, emitted_before = run()
    layer.freeze()
    layer.train()
    torch.nn.Sequential(layer).train().requires_grad_(True)  # what the caller sets has no effect
    after, emitted_after = run()
    assert layer.frozen
    assert not any(module.training for module in layer.modules())
    assert torch.equal(before, after)
    for a, b in zip(emitted_before, emitted_after, strict=True):
        assert torch.equal(a, b)
        assert not b.requires_grad
    if name not in LOCALLY_TRAINED:
        vectors = one_hot(x, 3).requires_grad_(True)
        relaxed = layer.relax(vectors, lambda symbols, logits: emitted_after.append(logits))
        (relaxed.sum() + sum(logits.sum() for logits in emitted_after if logits.is_floating_point())).backward()
        assert vectors.grad is not None
        assert all(parameter.grad is None for parameter in layer.parameters())
    assert layer.thaw().train().training


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in LOCALLY_TRAINED])
@pytest.mark.parametrize("k", [2, 3, 8])
def test_relaxed_step_is_the_forward_step_on_vectors(name: str, k: int) -> None:
    layer, shape = LAYERS[name](k)
    x = torch.randint(k, (50, *shape))
    hard: list[torch.Tensor] = []
    soft: list[torch.Tensor] = []
    z = layer(x, lambda symbols, logits: hard.extend([one_hot(symbols, k), logits]))
    vectors = layer.relax(one_hot(x, k), lambda symbols, logits: soft.extend([symbols, logits]))
    torch.testing.assert_close(vectors, one_hot(z, k))
    for a, b in zip(hard, soft, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", LOCALLY_TRAINED)
def test_locally_trained_layers_pass_no_gradients(name: str) -> None:
    layer, shape = LAYERS[name](3)
    with pytest.raises(TypeError, match="does not pass gradients: it is trained locally"):
        layer.relax(one_hot(torch.zeros(1, *shape), 3), nothing)


@pytest.mark.parametrize("name", LAYERS)
def test_repr_is_one_line_that_names_the_layer(name: str) -> None:
    layer, _ = LAYERS[name](3)
    assert repr(layer).startswith(type(layer).__name__ + "(")
    assert "\n" not in repr(layer)


# ---- Individual layers -----------------------------------------------------------------------------------------------


def test_squeeze_turns_cells_into_channels() -> None:
    x = torch.arange(2 * 4 * 6).view(1, 2, 4, 6)
    z = Squeeze().arrange(x)
    for channel in range(2):
        for i in range(2):
            for j in range(2):
                assert torch.equal(z[0, 4 * channel + 2 * i + j], x[0, channel, i::2, j::2])
    assert torch.equal(z, torch.nn.functional.pixel_unshuffle(x, 2))


def test_the_seed_determines_a_shuffle() -> None:
    assert torch.equal(Shuffle(64, seed=1).order, Shuffle(64, seed=1).order)
    assert not torch.equal(Shuffle(64, seed=1).order, Shuffle(64, seed=2).order)
    assert "order" in Shuffle(4).state_dict()


def test_shuffles_accept_any_sequence() -> None:
    for permutation in (torch.tensor([1, 0]), np.array([1, 0]), range(1, -1, -1)):
        assert Shuffle(2, permutation=permutation).permutation == (1, 0)
    with pytest.raises(TypeError):
        Shuffle(2, permutation=[1.0, 0.0])


def test_only_modules_are_accepted_as_nets() -> None:
    with pytest.raises(TypeError, match=r"SplitPrior: the net must be a torch.nn.Module, not a function"):
        SplitPrior(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the partition must be a Partition, such as ChannelSplit\(\), not 'channels'"):
        SplitPrior(mlp(8, 1, 1), partition="channels")  # type: ignore[arg-type]


def test_shuffle_permutes_channels() -> None:
    x = torch.arange(6).view(1, 3, 2)
    assert Shuffle(3, permutation=[2, 0, 1]).arrange(x).tolist() == [[[4, 5], [0, 1], [2, 3]]]


def test_coupling_changes_only_part_b() -> None:
    for name in LAYERS:
        layer, shape = LAYERS[name](8)
        if isinstance(layer, DenoisingCoupling | ModularCoupling):
            x = torch.randint(8, (100, *shape))
            z = layer(x, nothing)
            x_a, x_b = layer.partition.split(x)
            z_a, z_b = layer.partition.split(z)
            assert torch.equal(x_a, z_a)
            assert not torch.equal(x_b, z_b), f"{name} has no effect"


def test_correct_predictions_become_zero() -> None:
    net = mlp(8, 1, 1)
    x_a = torch.randint(8, (100, 1))
    predicted = net(x_a).argmax(1)
    z = DenoisingCoupling(net, top=1)(torch.cat([x_a, predicted], 1), nothing)
    assert (z[:, 1] == 0).all()


def test_untrained_couplings_are_the_identity() -> None:
    x = torch.randint(8, (20, 4, 6, 6))
    for coupling in (
        DenoisingCoupling(DenseNet(8, 2, 2, blocks=2, hidden=16), top=4),
        DenoisingCoupling(DenseNet(8, 2, 2, blocks=2, hidden=16), top=8),
        ModularCoupling(DenseNet(8, 2, 4, blocks=2, hidden=16)),
    ):
        assert torch.equal(coupling(x, nothing), x)


@pytest.mark.parametrize(("factor_out", "kept"), [("a", 1), ("b", 0)])
def test_split_prior_factors_out_the_selected_part(factor_out: str, kept: int) -> None:
    prior = SplitPrior(dense(8, 2, 2), factor_out=factor_out)
    x = torch.randint(8, (5, 4, 3, 3))
    parts = x[:, :2], x[:, 2:]
    emitted: list[torch.Tensor] = []
    goes_on = prior(x, lambda symbols, logits: emitted.extend([symbols, logits]))
    assert torch.equal(goes_on, parts[kept])
    assert torch.equal(emitted[0], parts[1 - kept])
    torch.testing.assert_close(emitted[1], prior.net(parts[kept]))


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Squeeze().output_shape((1, 7, 8)), r"Squeeze needs an even height, not .* \(1, 7, 8\)"),
        (lambda: Squeeze()(torch.zeros(1, 1, 8, 7, dtype=torch.long), nothing), r"Squeeze needs an even width"),
        (lambda: Squeeze().output_shape((4,)), r"Squeeze needs maps .* \(4,\)"),
        (lambda: Shuffle(3).output_shape((4, 2, 2)), r"Shuffle permutes 3 channels, .* \(4, 2, 2\)"),
        (lambda: Shuffle(3, permutation=[0, 1, 1]), r"Shuffle: \[0, 1, 1\] is not a permutation of 3 channels"),
        (lambda: Shuffle(2, seed=1, permutation=[0, 1]), r"Shuffle takes a seed or a permutation, not both"),
        (
            lambda: DenoisingCoupling(mlp(8, 1, 1), top=9),
            r"DenoisingCoupling: top=9 is out of range: the data has 8 classes \(0…7\), so pass 1…8",
        ),
        (lambda: DenoisingCoupling(mlp(8, 1, 1), top=0), r"DenoisingCoupling: top=0"),
        (lambda: DenoisingCoupling(mlp(8, 1, 1), top=4.0), r"DenoisingCoupling: top=4.0"),
        (
            lambda: DenoisingCoupling(dense(8, 1, 1), top=8).output_shape((1, 2, 2)),
            r"DenoisingCoupling: symbols of shape \(1, 2, 2\) have too few channels",
        ),
        (
            lambda: DenoisingCoupling(dense(8, 1, 1), 8, ChannelSplit(4)).output_shape((4, 2, 2)),
            r"DenoisingCoupling: the split index 4 leaves one part .* pass 1…3",
        ),
        (
            lambda: DenoisingCoupling(dense(8, 1, 1), top=8).output_shape((4, 2, 2)),
            r"DenoisingCoupling: DenseNet takes maps \(1, height, width\), .* \(2, 2, 2\)",
        ),
        (
            lambda: SplitPrior(dense(8, 1, 2), partition=ChannelSplit(1)).output_shape((4, 2, 2)),
            r"SplitPrior: the net predicts symbols of shape \(2, 2, 2\), .* must predict \(3, 2, 2\)",
        ),
        (
            lambda: ModularCoupling(mlp(8, 1, 1)).output_shape((2,)),
            r"ModularCoupling: the net predicts symbols of shape \(1,\), .* must predict \(2,\)",
        ),
        (lambda: ModularCoupling(mlp(8, 1, 2), temperature=0), r"ModularCoupling: temperature=0"),
        (lambda: SplitPrior(mlp(8, 1, 1), factor_out="c"), r"SplitPrior: factor_out='c' must be 'a' or 'b'"),
        (lambda: DenoisingCoupling(PlainNet(8), top=8), r"DenoisingCoupling: num_classes=None, but the net has no"),
        (lambda: DenoisingCoupling(mlp(8, 1, 1), 8, num_classes=9), r"num_classes=9, but the net has 8"),
        (
            lambda: DenoisingCoupling(PlainNet(8), top=8, num_classes=9).output_shape((2,)),
            r"the net returns \(1, 8, 1\) for symbols \(1, 1\), but logits are \(batch, 9, channels",
        ),
        (
            lambda: DenoisingCoupling(PlainNet(8), 8, ChannelSplit(1), 8).output_shape((4, None, 2)),
            r"the net predicts symbols of shape \(1, None, 2\), .* must predict \(3, None, 2\)",
        ),
    ],
)
def test_impossible_layers_are_rejected(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith(("squeeze", "shuffle"))])
def test_a_flow_rejects_symbols_out_of_range(name: str) -> None:
    flow = layer_flow(name, 8)
    x = torch.zeros(2, *flow.shape, dtype=torch.long)
    x[1].view(-1)[0] = 8
    for verb in (flow, flow.encode):
        with pytest.raises(ValueError, match=r"x contains the symbol 8, but the data has 8 classes \(0…7\)"):
            verb(x)
    latents = flow.encode(x.clamp(max=7))
    latents.parts[-1].view(-1)[0] = 8
    with pytest.raises(ValueError, match=r"latents contains the symbol 8"):
        flow.decode(latents)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [name for name in LAYERS if not name.startswith(("squeeze", "shuffle"))])
def test_a_flow_rejects_weights_that_are_not_finite(name: str, bad: float) -> None:
    flow = layer_flow(name, 8)
    with torch.no_grad():
        list(flow.layers.parameters())[-1].fill_(bad)
    with pytest.raises(ValueError, match=rf"layer 0: .*the logits contain {bad}"):
        flow(torch.zeros(2, *flow.shape, dtype=torch.long))


def test_layer_contract_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Layer()  # type: ignore[abstract]
