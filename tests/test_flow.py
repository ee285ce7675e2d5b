"""Scores, samples, encoding and decoding of a flow agree."""

import math

import numpy as np
import pytest
import torch

from ddf import architectures
from ddf.base import FactorizedCategorical
from ddf.flow import Flow, Latents
from ddf.layers import DenoisingCoupling, ModularCoupling, Shuffle, SplitPrior, Squeeze
from ddf.nets import MLP
from ddf.training import relaxed_log_prob
from tests.zoo import (
    ARCHITECTURES,
    LAYERS,
    SMALL_NET,
    dense,
    everything,
    layer_flow,
    mlp,
    modular_outputs,
    randomize,
    with_classes,
)


def mixed_flow(k: int) -> Flow:
    """Return a flow with every type of layer, for 2 × 2 maps."""
    layers = [
        Squeeze(),
        Shuffle(4, seed=1),
        DenoisingCoupling(dense(k, 2, 2), top=max(1, k - 1)),
        SplitPrior(dense(k, 2, 2), factor_out="a"),
        Shuffle(2, permutation=[1, 0]),
        ModularCoupling(dense(k, 1, modular_outputs(k))),
        SplitPrior(dense(k, 1, 1), factor_out="b"),
    ]
    return Flow(layers, randomize(FactorizedCategorical(k, (1, 1, 1))), (1, 2, 2))


def vector_flow(k: int) -> Flow:
    layers = [
        ModularCoupling(mlp(k, 1, modular_outputs(k))),
        Shuffle(2, permutation=[1, 0]),
        DenoisingCoupling(mlp(k, 1, 1), top=k),
    ]
    return Flow(layers, randomize(FactorizedCategorical(k, (2,))), (2,))


SMALL_FLOWS = {
    **{f"{name}, K = 3": lambda name=name: layer_flow(name, 3) for name in LAYERS},
    "mixed, K = 2": lambda: mixed_flow(2),
    "mixed, K = 3": lambda: mixed_flow(3),
    "mixed, K = 8": lambda: mixed_flow(8),
    "vector, K = 8": lambda: vector_flow(8),
    "vector, K = 91": lambda: vector_flow(91),
}


@pytest.mark.parametrize("name", SMALL_FLOWS)
def test_probabilities_sum_to_one(name: str) -> None:
    flow = SMALL_FLOWS[name]()
    x = everything(flow.num_classes, flow.shape)
    with torch.no_grad():
        assert flow.log_prob(x, batch_size=2000).exp().sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["mixed, K = 2", "mixed, K = 3", "vector, K = 8", "split prior, a of 1 : 3, K = 3"])
def test_samples_match_log_prob(name: str) -> None:
    flow = SMALL_FLOWS[name]()
    n, k = 200_000, flow.num_classes
    x = flow.sample(n, generator=torch.Generator().manual_seed(1), batch_size=20_000).flatten(1)
    digits = k ** torch.arange(x.shape[1] - 1, -1, -1)
    seen = (x * digits).sum(1).bincount(minlength=k ** x.shape[1]).double()
    with torch.no_grad():
        expected = n * flow.log_prob(everything(k, flow.shape), batch_size=2000).exp()
    # The test needs common cells, so rare ones are merged.
    rare = expected < 5
    seen = torch.cat([seen[~rare], seen[rare].sum().view(1)])
    expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    chi_square = ((seen - expected) ** 2 / expected.clamp(min=1e-9)).sum()
    p_value = torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2, dtype=torch.float64), chi_square / 2)
    assert p_value > 1e-3


@pytest.mark.parametrize("name", SMALL_FLOWS)
def test_log_prob_is_the_sum_of_the_emitted_symbols(name: str) -> None:
    flow = SMALL_FLOWS[name]()
    x = torch.randint(flow.num_classes, (20, *flow.shape))
    parts, total = [], torch.zeros(20, dtype=torch.float64)

    def emit(symbols: torch.Tensor, logits: torch.Tensor) -> None:
        nonlocal total
        chances = logits.double().log_softmax(1).gather(1, symbols.long().unsqueeze(1))
        total = total + chances.flatten(1).sum(1)
        parts.append(symbols)

    flow.to_latents(x, emit)
    torch.testing.assert_close(flow.log_prob(x), total, rtol=1e-5, atol=1e-5)
    size = torch.Size(flow.shape).numel()
    torch.testing.assert_close(flow.bits_per_dim(x), -total.detach() / math.log(2) / size, rtol=1e-5, atol=1e-5)
    latents = flow.encode(x)
    assert sum(part[0].numel() for part in latents.parts) == size
    assert all(torch.equal(a, b) for a, b in zip(parts, latents.parts, strict=True))


@pytest.mark.parametrize("k", [2, 3, 8, 91])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_papers_architectures_decode_what_they_encode(name: str, k: int) -> None:
    spec = with_classes(ARCHITECTURES[name](), k)
    flow = randomize(spec.build())
    x = torch.randint(k, (3, *flow.shape))
    latents = flow.encode(x)
    assert torch.equal(flow.decode(latents), x)
    assert not torch.equal(torch.cat([part.flatten(1) for part in latents.parts], 1), x.flatten(1))
    one_by_one = flow.encode(x, batch_size=1)
    assert all(torch.equal(a, b) for a, b in zip(latents.parts, one_by_one.parts, strict=True))
    assert torch.equal(flow.decode(latents, batch_size=2), x)
    assert flow.spec == spec.build().spec


@pytest.mark.parametrize("coupling", ["denoising", "modular"])
def test_a_full_size_net_decodes_what_it_encodes(coupling: str, device: str) -> None:
    flow = randomize(architectures.binary_mnist(coupling).build()).to(device)
    x = torch.randint(2, (2, 1, 28, 28), device=device)
    assert torch.equal(flow.decode(flow.encode(x)), x)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "modular" in name])
def test_relaxed_log_prob_has_the_value_of_log_prob_and_reaches_all_weights(name: str) -> None:
    flow = randomize(ARCHITECTURES[name]().build())
    x = torch.randint(flow.num_classes, (4, *flow.shape))
    relaxed = relaxed_log_prob(flow, x)
    torch.testing.assert_close(relaxed.double(), flow.log_prob(x), rtol=1e-3, atol=1e-2)
    relaxed.sum().backward()
    for parameter_name, parameter in flow.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.any(), parameter_name


def test_a_constant_shift_has_no_gradient_at_power_one() -> None:
    """For independent symbols under their own distribution, no constant shift helps."""
    k = 3
    p = torch.tensor([0.7, 0.2, 0.1])
    slopes = {}
    for power in (0.0, 0.5, 1.0):
        net = MLP(k, 1, 1, hidden=8)
        base = FactorizedCategorical(k, (2,))
        with torch.no_grad():
            base.logits.copy_(p.log().view(k, 1).expand(k, 2))
        flow = Flow([ModularCoupling(net, scale=False)], base, (2,))
        x = everything(k, (2,))
        (relaxed_log_prob(flow, x, power) * p[x].prod(1)).sum().backward()
        slopes[power] = net.stack[-1].bias.grad[:k].abs().max()
    assert slopes[1.0] < 1e-6
    assert slopes[0.0] > slopes[0.5] > 0.1


def test_a_flow_can_support_any_size() -> None:
    layers = [Squeeze(), DenoisingCoupling(dense(3, 2, 2), top=3), SplitPrior(dense(3, 2, 2))]
    flow = Flow(layers, randomize(FactorizedCategorical(3, (2, None, None), shared=True)), (1, None, None))
    for size in ((2, 2), (6, 4), (10, 12)):
        x = torch.randint(3, (5, 1, *size))
        assert torch.equal(flow.decode(flow.encode(x)), x)
        assert flow.log_prob(x).shape == (5,)
        assert flow.sample(2, size=size).shape == (2, 1, *size)
    assert "1 × any × any" in repr(flow)
    with pytest.raises(ValueError, match="layer 0: Squeeze needs an even height"):
        flow.log_prob(torch.zeros(1, 1, 3, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="pass size="):
        flow.sample(1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_dtype_is_preserved(dtype: torch.dtype) -> None:
    flow = mixed_flow(3)
    x = torch.randint(3, (4, 1, 2, 2), dtype=dtype)
    assert flow.decode(flow.encode(x)).dtype == dtype


def test_boolean_masks_are_symbols() -> None:
    flow = mixed_flow(2)
    x = torch.randint(2, (4, 1, 2, 2)).bool()
    assert torch.equal(flow.decode(flow.encode(x)).bool(), x)


def test_empty_batches_are_supported() -> None:
    flow = mixed_flow(3)
    x = torch.zeros(0, 1, 2, 2, dtype=torch.long)
    assert flow.log_prob(x).shape == (0,)
    assert flow.decode(flow.encode(x)).shape == x.shape
    assert flow.sample(0).shape == x.shape


def test_the_generator_determines_the_samples() -> None:
    flow = mixed_flow(8)

    def draw(seed: int) -> torch.Tensor:
        return flow.sample(50, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_latents_can_be_indexed() -> None:
    flow = mixed_flow(8)
    x = torch.randint(8, (10, 1, 2, 2))
    latents = flow.encode(x)
    assert len(latents) == 10
    assert torch.equal(flow.decode(latents[3:6]), x[3:6])
    assert torch.equal(flow.decode(latents[torch.tensor([7, 1])]), x[[7, 1]])
    assert torch.equal(flow.decode(latents[-1]), x[-1:])
    assert torch.equal(flow.decode(latents.to("cpu")), x)
    assert latents == latents


def test_devices_agree_on_latents(device: str) -> None:
    flow = randomize(architectures.cityscapes(net=SMALL_NET).build())
    x = torch.randint(8, (2, 1, 32, 64))
    latents = flow.encode(x)
    flow.to(device)
    again = flow.encode(x)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(latents.parts, again.parts, strict=True))


def test_gradients_reach_split_priors_and_base_until_they_are_frozen() -> None:
    flow = mixed_flow(3)
    x = torch.randint(3, (4, 1, 2, 2))
    flow.log_prob(x).sum().backward()
    assert flow.base.logits.grad is not None
    assert all(p.grad is not None for layer in flow.layers if isinstance(layer, SplitPrior) for p in layer.parameters())
    assert not flow.freeze().log_prob(x).requires_grad
    assert flow.thaw().log_prob(x).requires_grad


def test_repr_shows_every_layer_with_its_shape() -> None:
    flow = mixed_flow(3)
    flow.layers[2].freeze()
    lines = repr(flow).splitlines()
    assert len(lines) == 1 + len(flow.layers) + 1
    assert lines[0].startswith("Flow of 3 classes, shape 1 × 2 × 2, ")
    assert "Squeeze() → 4 × 1 × 1" in lines[1]
    assert lines[3].endswith("→ 4 × 1 × 1, frozen")


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda f: f.encode(torch.full((1, 1, 2, 2), 3)), ValueError, r"x contains the symbol 3, .* 3 classes \(0…2\)"),
        (lambda f: f.log_prob(torch.full((1, 1, 2, 2), -1)), ValueError, r"x contains the symbol -1"),
        (lambda f: f.log_prob(torch.zeros(1, 1, 2, 2)), TypeError, r"x must hold integers 0…2, .* torch.float32"),
        (
            lambda f: f.log_prob(torch.zeros(1, 1, 2, 4, dtype=torch.long)),
            ValueError,
            "the flow models samples of shape 1 × 2 × 2, not 1 × 2 × 4",
        ),
        (lambda f: f.encode(torch.zeros(2, 2, dtype=torch.long)), ValueError, "shape 1 × 2 × 2, not 2"),
        (lambda f: f.encode(torch.tensor(1)), ValueError, "x is a single symbol"),
        (lambda f: f.encode(np.zeros((1, 1, 2, 2), int)), TypeError, "x must be a tensor, not a ndarray"),
        (lambda f: f.decode(f.encode(torch.zeros(1, 1, 2, 2).long()).parts), TypeError, "decode takes the Latents"),
        (lambda f: f.sample(1, generator=0), TypeError, "generator=0 must be a torch.Generator"),
        (lambda f: f.sample(-1), ValueError, "n=-1"),
        (lambda f: f.sample(1, size=(3, 3)), ValueError, "shape 1 × 2 × 2, not 1 × 3 × 3"),
        (lambda f: f.sample(1, batch_size=0), ValueError, "batch_size=0"),
        (lambda f: f.decode(Latents(())), ValueError, "the latents are empty"),
        (
            lambda f: f.decode(Latents(f.encode(torch.zeros(1, 1, 2, 2, dtype=torch.long)).parts[1:])),
            ValueError,
            r"the latents are not from this flow: it needs \(2, 1, 1\), but they have nothing",
        ),
        (
            lambda f: f.decode(Latents((torch.zeros(1, 3).long(), *f.encode(torch.zeros(1, 1, 2, 2).long()).parts))),
            ValueError,
            "the latents are not from this flow: 1 of their 4 parts are not needed",
        ),
        (
            lambda f: f.decode(Latents((torch.zeros(1, 2, 1, 1, dtype=torch.long), torch.zeros(2, 1, 1, 1).long()))),
            ValueError,
            r"different numbers of samples: \[1, 2\]",
        ),
        (
            lambda f: f.decode(Latents(tuple(part + 3 for part in f.encode(torch.zeros(1, 1, 2, 2).long()).parts))),
            ValueError,
            "latents contains the symbol",
        ),
        (
            lambda f: relaxed_log_prob(f, torch.zeros(1, 1, 2, 2, dtype=torch.long)),
            TypeError,
            "layer 2: DenoisingCoupling does not pass gradients",
        ),
    ],
)
def test_bad_input_is_rejected(use: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use(mixed_flow(3))  # type: ignore[operator]


def test_an_error_names_the_layer_with_weights_that_are_not_finite() -> None:
    flow = mixed_flow(3)
    with torch.no_grad():
        list(flow.layers[3].parameters())[-1].fill_(math.nan)
    with pytest.raises(ValueError, match="layer 3: the logits contain nan"):
        flow.log_prob(torch.zeros(1, 1, 2, 2, dtype=torch.long))
    flow = vector_flow(3)
    with torch.no_grad():
        flow.base.logits.fill_(math.nan)
    with pytest.raises(ValueError, match="the logits contain nan"):
        flow.sample(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Flow([Squeeze()], FactorizedCategorical(2, (4, 2, 2)), (1, 4, 5)),
            "layer 0: Squeeze needs an even width",
        ),
        (
            lambda: Flow([DenoisingCoupling(dense(2, 1, 1), 2)], FactorizedCategorical(2, (1, 4, 4)), (1, 4, 4)),
            "layer 0: DenoisingCoupling: symbols of shape .* have too few channels",
        ),
        (
            lambda: Flow([DenoisingCoupling(mlp(3, 1, 1), 3)], FactorizedCategorical(2, (2,)), (2,)),
            "layer 0: DenoisingCoupling has 3 classes, but the base has 2",
        ),
        (
            lambda: Flow([], FactorizedCategorical(2, (1, 4)), (1, 4.0)),
            r"Flow: shape\[1\]=4.0 must be a positive integer",
        ),
        (
            lambda: Flow([Squeeze()], FactorizedCategorical(2, (1, 4, 4)), (1, 4, 4)),
            r"FactorizedCategorical has the shape \(1, 4, 4\), but the symbols have \(4, 2, 2\)",
        ),
    ],
)
def test_impossible_flows_are_rejected(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_layers_of_other_types_are_rejected() -> None:
    with pytest.raises(TypeError, match="layer 0 must be a Layer, not a Linear"):
        Flow([torch.nn.Linear(1, 1)], FactorizedCategorical(2, (2,)), (2,))
