"""The ordered split: how it codes, how it is trained, and how it completes maps."""

from dataclasses import replace
from math import log, log2
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ddf
from ddf import architectures
from ddf.analysis import bits_of
from ddf.flow import Flow
from ddf.layers import LatticeOrder, Order, OrderedSplit
from ddf.nets import LatticeNet
from ddf.spec import DenseNetSpec, FlowSpec, LatticeNetSpec, OrderedSplitSpec
from ddf.training import TrainingConfig, fit
from ddf.training.muon import Muon, orthogonal
from ddf.training.steps import _is_hidden
from tests.zoo import as_flow, everything, randomize

K = 3
ORDER = LatticeOrder(stride=4)
NET = LatticeNetSpec(levels=2, planes=(64, 64), blocks=(1, 1), width=8, depth=1)
SPEC = FlowSpec(K, (1, 8, 12), (OrderedSplitSpec(NET, ORDER),))
HINTS = replace(SPEC, layers=(OrderedSplitSpec(replace(NET, hints=True), ORDER, given=0.5),))


def layer_of(flow: Flow) -> OrderedSplit:
    (layer,) = flow.layers
    assert isinstance(layer, OrderedSplit)
    return layer


def net_of(size: tuple[int, int] | None = None, levels: int = 2, cell: int = 4) -> LatticeNet:
    return LatticeNet(K, 1, levels, cell, size, planes=(64,), blocks=(1,), width=8, depth=1)


def maps(n: int, seed: int = 0) -> torch.Tensor:
    """Draw maps of vertical stripes, shifted at random, which are easy to predict from a few pixels."""
    shift = torch.randint(K, (n, 1, 1, 1), generator=torch.Generator().manual_seed(seed))
    return ((torch.arange(12) // 4 + shift) % K).expand(n, 1, 8, 12).contiguous()


# ---- The layer


def test_probabilities_of_maps_with_several_steps_sum_to_one() -> None:
    spec = FlowSpec(2, (1, 3, 4), (OrderedSplitSpec(replace(NET, planes=(64,), blocks=(1,)), ORDER),))
    flow = randomize(spec.build())
    assert len(layer_of(flow).steps(torch.zeros(1, 1, 3, 4)).places) == 11
    total = flow.log_prob(everything(2, (1, 3, 4)), batch_size=1024).exp().sum().detach()
    assert float(total) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("ranks", [False, True])
def test_maps_survive_a_round_trip(ranks: bool) -> None:
    flow = randomize(replace(SPEC, layers=(OrderedSplitSpec(NET, ORDER, ranks=ranks),)).build())
    x = torch.randint(K, (5, 1, 8, 12), generator=torch.Generator().manual_seed(0))
    latents = flow.encode(x)
    assert len(latents.parts) == ORDER.count
    assert torch.equal(flow.decode(latents), x)
    assert flow.sample(2, torch.Generator().manual_seed(0)).shape == (2, 1, 8, 12)


def test_ranks_are_coded_as_well_as_symbols() -> None:
    x = maps(20)
    symbols = randomize(SPEC.build())
    ranks = replace(SPEC, layers=(OrderedSplitSpec(NET, ORDER, ranks=True),)).build()
    layer_of(ranks).net = layer_of(symbols).net
    ranks.base = symbols.base
    torch.testing.assert_close(
        symbols.log_prob(x), ranks.log_prob(x), atol=0.2, rtol=0
    )  # logits are multiples of 1/1024
    layer = layer_of(ranks)
    layer.set_counts(layer.count([x]))
    assert ranks.log_prob(x).mean() > symbols.log_prob(x).mean()


def test_a_pixel_is_predicted_from_earlier_steps_only() -> None:
    flow = randomize(SPEC.build())
    x = maps(1)
    steps = ORDER.steps(8, 12)
    for step in (1, 14, 24):
        later = torch.where(steps >= step, (x + 1) % K, x)
        known = bits_of(flow, x.numpy()).by_symbol[0, 0]
        changed = bits_of(flow, later.numpy()).by_symbol[0, 0]
        np.testing.assert_array_equal(known[steps < step], changed[steps < step])
        if step < 24:
            assert (known[steps > step] != changed[steps > step]).any()


def test_the_bits_of_pixels_add_up() -> None:
    flow = randomize(SPEC.build())
    x = maps(4)
    found = bits_of(flow, x.numpy())
    np.testing.assert_allclose(found.by_symbol.reshape(4, -1).sum(1), flow.log_prob(x).detach() / -log(2), rtol=1e-5)
    assert [(name, count) for name, count, _ in found.by_layer] == [("0 OrderedSplit", 4 * 90), ("base", 4 * 6)]


def test_a_flow_without_positions_takes_maps_of_any_size() -> None:
    spec = FlowSpec(
        K, (1, None, None), (OrderedSplitSpec(NET, ORDER),), ddf.spec.FactorizedCategoricalSpec(shared=True)
    )
    flow = randomize(spec.build())
    for size in ((4, 8), (12, 4)):
        x = flow.sample(2, torch.Generator().manual_seed(0), size=size)
        assert torch.equal(flow.decode(flow.encode(x)), x)
    with pytest.raises(ValueError, match=r"the height of symbols of shape .* must be a multiple of 4"):
        flow.log_prob(torch.zeros(1, 1, 6, 8, dtype=torch.long))


def test_it_can_follow_other_layers() -> None:
    layers = (ddf.spec.SqueezeSpec(), OrderedSplitSpec(NET, ORDER))
    flow = randomize(FlowSpec(K, (1, 16, 8), layers).build())
    x = torch.randint(K, (3, 1, 16, 8), generator=torch.Generator().manual_seed(0))
    assert torch.equal(flow.decode(flow.encode(x)), x)
    assert bits_of(flow, x.numpy()).by_symbol.shape == (3, 1, 16, 8)


def test_a_flow_is_saved_with_its_order(tmp_path: Path) -> None:
    net = replace(NET, levels=3, cell=8, hints=True)
    spec = replace(SPEC, layers=(OrderedSplitSpec(net, LatticeOrder(8, 8), ranks=True, given=0.25),))
    flow = randomize(spec.build())
    flow.save(tmp_path / "flow.safetensors")
    loaded = ddf.load(tmp_path / "flow.safetensors")
    assert isinstance(loaded, Flow)
    assert loaded.spec == spec == FlowSpec.from_json(spec.to_json())
    assert torch.equal(loaded.log_prob(maps(3)), flow.log_prob(maps(3)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": 3}, TypeError, "the order must be an Order"),
        ({"given": 1.5}, ValueError, "given=1.5 must be a number between 0 and 1"),
        ({"given": 0.5}, ValueError, "given=0.5 needs a net with hints=True"),
        (
            {"order": LatticeOrder(8)},
            ValueError,
            r"the net was built for LatticeOrder\(stride=4, cell=4\), not for LatticeOrder\(stride=8, cell=4\)",
        ),
    ],
)
def test_impossible_layers_are_rejected(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        OrderedSplit(net_of(), **{"order": ORDER, **options})  # type: ignore[arg-type]


def test_shapes_other_than_maps_are_rejected() -> None:
    split = OrderedSplit(net_of((8, 12)), ORDER, size=(8, 12))
    with pytest.raises(ValueError, match="OrderedSplit takes maps"):
        split.output_shape((3,))
    with pytest.raises(ValueError, match=r"was built for maps of \(8, 12\)"):
        split.output_shape((1, 12, 8))
    assert split.output_shape((1, 8, 12)) == (1, 2, 3)


# ---- Training


def test_the_loss_is_the_likelihood_of_all_pixels_but_those_of_step_0() -> None:
    flow = randomize(replace(SPEC, shape=(1, 5, 12)).build())
    layer, x = layer_of(flow), maps(6)[:, :, :5]
    exact = bits_of(flow, x.numpy()).by_layer[0]
    for found in (layer.loss(layer.net, x).bits, layer.loss(layer.net, x).objective, layer.score(layer.net, x)):
        assert found.item() == pytest.approx(exact[2] / exact[1], rel=1e-4)


def test_pixels_given_in_advance_change_the_loss_but_not_the_score() -> None:
    layer, x = layer_of(randomize(HINTS.build())), maps(40)
    torch.manual_seed(0)
    with torch.no_grad():
        loss, score = layer.loss(layer.net, x), layer.score(layer.net, x)
    exact = bits_of(as_flow(layer, (1, 8, 12), K), x.numpy()).by_layer[0]
    assert float(score) == pytest.approx(exact[2] / exact[1], rel=1e-4)
    assert float(loss.bits) == pytest.approx(float(score), rel=0.3)  # of the samples without given pixels
    assert float(loss.bits) != float(loss.objective)


CONFIG = TrainingConfig(batch_size=16, learning_rate=2e-3, max_epochs=12, patience=12, ema=0.9, cosine=True, clip=1.0)


@pytest.mark.parametrize("ranks", [False, True])
def test_fit_learns_maps(ranks: bool) -> None:
    flow = replace(SPEC, layers=(OrderedSplitSpec(NET, ORDER, ranks=ranks),)).build(seed=0)
    config = replace(CONFIG, optimizer="muon", weight_decay=0.01, validate_every=6)
    fitted = fit(flow, maps(160), maps(32, seed=1), config, device="cpu", progress=False)
    assert fitted.validation_bits < 0.2  # at best 0.099: the base codes 6 of 96 pixels independently
    assert layer_of(flow).frozen


def check_interrupted(spec: FlowSpec, config: TrainingConfig, run: Path, whole: Flow) -> None:
    """Check that a run that is interrupted once and then resumed ends with the weights of an uninterrupted one."""
    with pytest.raises(KeyboardInterrupt):
        fit(spec.build(seed=0), maps(80), maps(16), config, run, device="cpu", progress=False)
    resumed = spec.build(seed=0)
    fit(resumed, maps(80), maps(16), config, run, device="cpu", progress=False)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random steps and dropout included."""
    spec = replace(SPEC, layers=(OrderedSplitSpec(replace(NET, dropout=0.1, hints=True), ORDER, given=0.3),))
    config = replace(CONFIG, max_epochs=2, optimizer="muon")
    whole = spec.build(seed=0)
    fit(whole, maps(80), maps(16), config, device="cpu", progress=False)
    step, taken = ddf.training.steps.Stepper.step, 0

    def interrupted(self: object, index: torch.Tensor) -> None:
        nonlocal taken
        taken += 1
        if taken == 8:
            raise KeyboardInterrupt
        step(self, index)  # type: ignore[arg-type]

    monkeypatch.setattr(ddf.training.steps.Stepper, "step", interrupted)
    check_interrupted(spec, config, tmp_path / "run", whole)


def test_patience_counts_from_validations() -> None:
    """An epoch without validation does not end the training, however small the patience."""
    flow = SPEC.build(seed=0)
    config = replace(CONFIG, max_epochs=4, patience=1, validate_every=3)
    fitted = fit(flow, maps(32), maps(8), config, device="cpu", progress=False)
    assert fitted.parts[0]["epochs"] == 4


def test_updates_of_muon_are_orthogonal() -> None:
    x = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(x))
    assert values.min() > 0.5
    assert values.max() < 1.5
    torch.testing.assert_close(orthogonal(x.mT), orthogonal(x).mT, atol=0.05, rtol=0)


def test_muon_updates_hidden_layers_only() -> None:
    net = LatticeNet(K, 1, planes=(64,), blocks=(1,), width=8)
    hidden = {
        name
        for name, part in net.named_modules()
        for weight in part.parameters(recurse=False)
        if _is_hidden(part, weight)
    }
    assert {"unet.before.0.first", "stack.0.second"} <= hidden
    assert not {"enter", "embedding", "leave"} & hidden


def test_muon_descends() -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(8, 4, 3, 3, generator=generator)
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = torch.nn.Parameter(torch.zeros(8, 4, 3, 3).to(memory_format=layout))
        muon = Muon([weight], lr=0.1)
        for _ in range(100):
            weight.grad = (weight - target).detach()
            muon.step()
        assert F.mse_loss(weight, target) < 0.05 * target.square().mean()


def test_weight_decay_and_clipping_have_an_effect() -> None:
    x = maps(32)
    sizes = {}
    for name, options in {"plain": {}, "decay": {"weight_decay": 50.0}, "clip": {"clip": 1e-9}}.items():
        flow = SPEC.build(seed=0)
        config = TrainingConfig(batch_size=16, max_epochs=2, **options)  # type: ignore[arg-type]
        fit(flow, x, x[:8], config, device="cpu", progress=False)
        sizes[name] = float(layer_of(flow).net.enter.weight.norm()), float(layer_of(flow).net.leave.weight.norm())
    assert sizes["decay"][0] < 0.9 * sizes["plain"][0]
    assert 0 < sizes["clip"][1] < 0.5 * sizes["plain"][1]  # Adam divides by the gradient's size, but adds 1e-8


# ---- Completion


def test_completed_maps_keep_the_known_pixels() -> None:
    flow = randomize(HINTS.build())
    x = torch.randint(K, (4, 1, 8, 12), generator=torch.Generator().manual_seed(0))
    known = torch.rand(8, 12, generator=torch.Generator().manual_seed(1)) < 0.4
    found = flow.complete(x, known, torch.Generator().manual_seed(2))
    assert torch.equal(found[..., known], x[..., known])
    assert (found != x).any()
    other = torch.where(known, x, (x + 1) % K)  # what is unknown has no effect
    assert torch.equal(flow.complete(other, known, torch.Generator().manual_seed(2)), found)
    changed = torch.where(known, (x + 1) % K, x)
    assert not torch.equal(
        flow.complete(changed, known, torch.Generator().manual_seed(2))[..., ~known], found[..., ~known]
    )
    each = known.expand(4, -1, -1)
    assert torch.equal(flow.complete(x, each, torch.Generator().manual_seed(2)), found)
    assert torch.equal(flow.complete(x, torch.ones(8, 12, dtype=torch.bool)), x)


def test_completed_maps_are_likely() -> None:
    flow = HINTS.build(seed=0)
    config = replace(CONFIG, max_epochs=40, patience=40, optimizer="muon")
    fit(flow, maps(160), maps(32, seed=1), config, device="cpu", progress=False)
    known = torch.zeros(8, 12, dtype=torch.bool)
    known[2:4, 6:8] = True
    x = maps(20, seed=3)
    assert (flow.complete(x, known, torch.Generator().manual_seed(0)) == x).float().mean() > 0.9


@pytest.mark.parametrize(
    ("flow", "known", "error", "message"),
    [
        (SPEC, torch.ones(8, 12, dtype=torch.bool), ValueError, "train a layer with given > 0"),
        (FlowSpec(K, (1, 8, 12), ()), torch.ones(8, 12, dtype=torch.bool), TypeError, "consists of one OrderedSplit"),
        (SPEC, torch.ones(8, 12), ValueError, r"known must be booleans of shape \(8, 12\)"),
        (SPEC, torch.ones(8, 8, dtype=torch.bool), ValueError, r"known must be booleans of shape \(8, 12\)"),
    ],
)
def test_impossible_completions_are_rejected(
    flow: FlowSpec, known: torch.Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        flow.build().complete(maps(2), known)


def test_small_maps_have_fewer_steps() -> None:
    split = OrderedSplit(randomize(net_of((3, 5), levels=5)), LatticeOrder(), size=(3, 5))
    flow = as_flow(split, (1, 3, 5), K)
    x = torch.randint(K, (4, 1, 3, 5), generator=torch.Generator().manual_seed(0))
    assert len(flow.encode(x).parts) == 14
    assert torch.equal(flow.decode(flow.encode(x)), x)
    assert float(flow.bits_per_dim(x).mean()) > log2(K) / 4


# ---- Mistakes of users


class Wrong(Order):
    """An order whose steps are given."""

    count, stride = 25, 4

    def __init__(self, steps: torch.Tensor) -> None:
        self.given = steps

    def steps(self, height: int, width: int) -> torch.Tensor:
        return self.given


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (ORDER.steps(12, 8), r"must be int64 of this shape, not torch.int64 of shape \(12, 8\)"),
        (ORDER.steps(8, 12).int(), "not torch.int32"),
        (ORDER.steps(8, 12) + 1, r"have steps 1 … 25, but with count=25, steps are 0 … 24"),
        (ORDER.steps(8, 12) - 1, r"have steps -1 … 23"),
        (ORDER.steps(8, 12).clamp(min=1), "step 0 must consist of the pixels whose row and column are multiples"),
        (ORDER.steps(8, 12).clamp(min=1) - 1, "step 0 must consist"),
    ],
)
def test_orders_that_would_lose_pixels_are_rejected(steps: torch.Tensor, message: str) -> None:
    split = OrderedSplit(Peeking(), Wrong(steps), size=(8, 12), num_classes=K)
    with pytest.raises(ValueError, match=message):
        as_flow(split, (1, 8, 12), K).log_prob(maps(2))


class Peeking(torch.nn.Module):
    """A net that sees the pixel that it predicts, or returns logits of the wrong shape."""

    def __init__(self, classes: int = K) -> None:
        super().__init__()
        self.classes = classes
        self.embedding = torch.nn.Embedding(K, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embedding(x.long()).movedim(-1, 1)


def test_nets_that_look_at_later_pixels_are_rejected() -> None:
    split = OrderedSplit(Peeking(), ORDER, size=(8, 12), num_classes=K)
    flow = as_flow(split, (1, 8, 12), K)
    with pytest.raises(ValueError, match="depend on pixels of the same step or of later ones"):
        fit(flow, maps(8), maps(8), CONFIG, device="cpu", progress=False)


class RowOrder(Order):
    """From top to bottom."""

    count, stride = 9, 16

    def steps(self, height: int, width: int) -> torch.Tensor:
        steps = 1 + torch.arange(height).view(-1, 1).repeat(1, width)
        steps[0, 0] = 0
        return steps


class RowNet(torch.nn.Module):
    """Predicts each row from the one above."""

    num_classes = K

    def __init__(self) -> None:
        super().__init__()
        self.next = torch.nn.Conv2d(K, K, (1, 3), padding=(0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planes = F.one_hot(x[:, 0].long(), K).to(self.next.weight.dtype).movedim(-1, 1)
        return self.next(F.pad(planes, [0, 0, 1, 0])[:, :, :-1]).unsqueeze(2)


@pytest.mark.parametrize("ranks", [False, True])
def test_other_orders_have_nets_of_their_own(ranks: bool) -> None:
    flow = as_flow(OrderedSplit(RowNet(), RowOrder(), ranks=ranks, size=(8, 12)), (1, 8, 12), K)
    fitted = fit(flow, maps(160), maps(8), replace(CONFIG, learning_rate=0.05), device="cpu", progress=False)
    assert fitted.validation_bits < 0.3
    x = flow.sample(3, torch.Generator().manual_seed(0))
    assert torch.equal(flow.decode(flow.encode(x)), x)


def test_nets_of_another_shape_are_rejected() -> None:
    flow = as_flow(OrderedSplit(Peeking(K - 1), ORDER, size=(8, 12), num_classes=K), (1, 8, 12), K)
    with pytest.raises(ValueError, match=r"must return logits \(2, 3, 1, 8, 12\), but returned \(2, 2, 1, 8, 12\)"):
        flow.log_prob(maps(2))
    with pytest.raises(ValueError, match="LatticeNet was built for channels=1"):
        as_flow(OrderedSplit(net_of(), ORDER), (2, 8, 12), K).log_prob(maps(2).repeat(1, 2, 1, 1))
    with pytest.raises(TypeError, match="the net must be a LatticeNetSpec"):
        architectures.ordered(K, (1, 8, 12), DenseNetSpec())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no integer form"):
        ddf.export(as_flow(OrderedSplit(RowNet(), RowOrder(), size=(8, 12)), (1, 8, 12), K), maps(4))


def test_maps_without_steps_cannot_be_trained() -> None:
    split = OrderedSplit(net_of((1, 1)), ORDER, size=(1, 1))
    with pytest.raises(ValueError, match=r"maps of \(1, 1\) have only pixels of step 0"):
        fit(as_flow(split, (1, 1, 1), K), maps(8)[..., :1, :1], maps(8)[..., :1, :1], CONFIG, device="cpu")
    x = torch.zeros(2, 1, 1, 1, dtype=torch.long)
    flow = as_flow(split, (1, 1, 1), K)
    assert torch.equal(flow.decode(flow.encode(x)), x)


def test_empty_batches_are_supported() -> None:
    flow = HINTS.build()
    assert flow.log_prob(maps(2)[:0]).shape == (0,)
    assert flow.sample(0).shape == (0, 1, 8, 12)
    assert torch.equal(flow.decode(flow.encode(maps(2)[:0])), maps(2)[:0])


def test_unknown_pixels_may_have_any_value() -> None:
    flow = randomize(HINTS.build())
    x = maps(2)
    known = torch.zeros(8, 12, dtype=torch.bool)
    known[:4] = True
    marked = torch.where(known, x, -1)
    found = flow.complete(marked, known, torch.Generator().manual_seed(0))
    assert torch.equal(found, flow.complete(x, known, torch.Generator().manual_seed(0)))
    with pytest.raises(TypeError, match="known must be a tensor, not a ndarray"):
        flow.complete(x, known.numpy())  # type: ignore[arg-type]


def test_few_sizes_are_kept_in_memory() -> None:
    split = OrderedSplit(net_of(), ORDER)
    for height in range(4, 80, 4):
        split.steps(torch.zeros(1, 1, height, 4))
    assert len(split._known_steps) == 4


def test_a_step_that_is_interrupted_halfway_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam has already updated its weights when Muon is interrupted."""
    config = replace(CONFIG, max_epochs=2, optimizer="muon")
    whole = SPEC.build(seed=0)
    fit(whole, maps(80), maps(16), config, device="cpu", progress=False)
    monkeypatch.setattr(ddf.training.loop, "_SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.setattr(ddf.training.loop, "_TIMES_LONGER", 0)
    update, taken = Muon.step, 0

    def interrupted(self: Muon, closure: object = None) -> None:
        nonlocal taken
        taken += 1
        if taken == 7:
            raise KeyboardInterrupt
        update(self)

    monkeypatch.setattr(Muon, "step", interrupted)
    check_interrupted(SPEC, config, tmp_path / "run", whole)
