"""A flow and its spec describe the same architecture."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from ddf import architectures
from ddf.base import FactorizedCategorical
from ddf.flow import Flow
from ddf.layers import ChannelSplit, Rearrangement, Shuffle
from ddf.plain import register
from ddf.shapes import Shape
from ddf.spec import (
    DenoisingCouplingSpec,
    DenseNetSpec,
    FactorizedCategoricalSpec,
    FlowSpec,
    MLPSpec,
    ModularCouplingSpec,
    NetSpec,
    ShuffleSpec,
    SplitPriorSpec,
    SqueezeSpec,
    describe,
)
from tests.zoo import ARCHITECTURES, LAYERS, layer_flow

NET = DenseNetSpec(blocks=1, hidden=8)

EVERYTHING = FlowSpec(
    num_classes=5,
    shape=(1, None, None),
    layers=(
        SqueezeSpec(),
        DenoisingCouplingSpec(NET, top=3, partition=ChannelSplit(1)),
        ShuffleSpec(seed=4),
        ModularCouplingSpec(NET, scale=False, temperature=0.5),
        SplitPriorSpec(NET, factor_out="a", partition=ChannelSplit(3)),
    ),
    base=FactorizedCategoricalSpec(shared=True),
)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_survives_json_and_building(name: str) -> None:
    spec = ARCHITECTURES[name]()
    assert FlowSpec.from_json(spec.to_json()) == spec
    built = spec.build(seed=1).spec
    assert built.build(seed=1).spec == built
    layers = [
        ShuffleSpec() if given == ShuffleSpec() else layer
        for given, layer in zip(spec.layers, built.layers, strict=True)
    ]
    assert replace(built, layers=layers) == spec, "apart from the seeds of its shuffles"


def test_shuffles_follow_the_seed_of_the_flow_and_are_never_the_identity() -> None:
    for channels in (2, 3, 4):
        spec = FlowSpec(2, (channels,), (ShuffleSpec(),) * 4)
        orders = [[layer.order.tolist() for layer in spec.build(seed).layers] for seed in range(100)]
        assert sorted(orders[0][0]) == list(range(channels))
        assert all(order != list(range(channels)) for flow in orders for order in flow)
        assert len({str(order) for flow in orders for order in flow}) == {2: 1, 3: 5, 4: 23}[channels]
    assert [layer.order.tolist() for layer in spec.build(3).layers] == orders[3]
    assert FlowSpec(2, (1,), (ShuffleSpec(),)).build().layers[0].order.tolist() == [0]


def test_a_shuffle_with_its_own_seed_does_not_change() -> None:
    text = (
        '{"kind": "Flow", "num_classes": 2, "shape": [4], "layers": [{"kind": "Shuffle", "seed": 1}], "base": {"kind": '
    )
    spec = FlowSpec.from_json(text + '"FactorizedCategorical"}}')
    assert torch.equal(spec.build(seed=5).layers[0].order, Shuffle(4, seed=1).order)
    assert spec.build(seed=5).spec == spec


@pytest.mark.parametrize("name", LAYERS)
def test_a_flow_built_by_hand_has_a_spec_that_rebuilds_it(name: str) -> None:
    flow = layer_flow(name, 8)
    again = FlowSpec.from_json(flow.spec.to_json(indent=2)).build()
    again.load_state_dict(flow.state_dict())
    x = torch.randint(8, (10, *flow.shape))
    assert torch.equal(again.log_prob(x), flow.log_prob(x))


def test_every_option_survives_json() -> None:
    assert FlowSpec.from_json(EVERYTHING.to_json()) == EVERYTHING
    assert EVERYTHING.build().spec == EVERYTHING


def test_json_is_plain() -> None:
    plain = json.loads(EVERYTHING.to_json())
    assert plain["kind"] == "Flow"
    assert plain["shape"] == [1, None, None]
    assert plain["layers"][1] == {
        "kind": "DenoisingCoupling",
        "net": {"kind": "DenseNet", "blocks": 1, "hidden": 8},
        "top": 3,
        "partition": {"kind": "ChannelSplit", "index": 1},
    }


def test_the_seed_determines_the_weights() -> None:
    spec = architectures.eight_gaussians()

    def weights(seed: int) -> torch.Tensor:
        return torch.cat([parameter.flatten() for parameter in spec.build(seed).parameters()])

    state = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), state)


def replaced(**changes: object) -> str:
    return json.dumps(json.loads(EVERYTHING.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the spec of a flow is not JSON"),
        ('{"kind": "Squeeze"}', "begins with kind 'Flow', but this one is a SqueezeSpec"),
        ("3", "begins with kind 'Flow', but this one is a int"),
        ('{"shape": [1]}', "unknown kind None"),
        ('{"kind": ["Flow"]}', r"unknown kind \['Flow'\]"),
        (replaced(layers=[{"kind": "Sqeeze"}]), "unknown kind 'Sqeeze'; first import"),
        (replaced(layers=[{"kind": "Squeeze", "by": 2}]), "Squeeze has no option 'by'; it has none"),
        (replaced(layers=[{"kind": "DenoisingCoupling", "top": 2}]), "DenoisingCoupling is missing the option 'net'"),
        (replaced(num_classes="5"), "Flow: num_classes='5' is not of the type"),
        (replaced(num_classes=True), "Flow: num_classes=True is not of the type"),
        (replaced(shape=[1, "x"]), r"Flow: shape=\[1, 'x'\] is not of the type"),
        (replaced(base={"kind": "Squeeze"}), "Flow: base=.* is not of the type"),
    ],
)
def test_invalid_specs_are_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlowSpec.from_json(text)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FlowSpec(2, (1, 7, 8), (SqueezeSpec(),)), r"layer 0: Squeeze needs an even height"),
        (FlowSpec(8, (4, 2, 2), (DenoisingCouplingSpec(NET, 9),)), r"layer 0: .*top=9"),
        (FlowSpec(8, (1, 2, 2), (SplitPriorSpec(NET),)), r"layer 0: .* too few channels"),
        (
            FlowSpec(8, (2,), (ShuffleSpec(), DenoisingCouplingSpec(NET, 8))),
            r"layer 1: .*DenseNet",
        ),
        (FlowSpec(8, (4, 2, 2), (DenoisingCouplingSpec(MLPSpec(), 8),)), r"layer 0: .*MLP"),
        (FlowSpec(8, (3,), (ShuffleSpec(permutation=(1, 0)),)), r"layer 0: .* not a permutation of 3"),
        (FlowSpec(0, (3,), ()), "num_classes=0"),
        (FlowSpec(2, (1, None, None), ()), "needs a fixed size"),
    ],
)
def test_impossible_specs_are_rejected_when_built(spec: FlowSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec.build()


def test_an_error_names_layers_without_a_spec() -> None:
    class Flip(Rearrangement):
        def output_shape(self, shape: Shape) -> Shape:
            return shape

        def arrange(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(1)

        def restore(self, z: torch.Tensor) -> torch.Tensor:
            return z.flip(1)

    flow = Flow([Flip()], FactorizedCategorical(2, (3,)), (3,))
    assert torch.equal(flow.encode(torch.tensor([[0, 0, 1]])).parts[0], torch.tensor([[1, 0, 0]]))
    with pytest.raises(TypeError, match=r"Flip has no spec, .* class FlipSpec\(LayerSpec or NetSpec, builds=Flip\)"):
        describe(flow)


@pytest.mark.parametrize(
    ("spec", "couplings", "priors", "latent"),
    [
        (architectures.eight_gaussians(), [91], 0, (2,)),
        (architectures.binary_mnist(split_priors=False), [2] * 4, 0, (16, 7, 7)),
        (architectures.binary_mnist(), [2] * 4, 4, (1, 7, 7)),
        (architectures.cityscapes(split_priors=False), [4, 4, 4, 4, 8], 0, (64, 4, 8)),
        (architectures.cityscapes(), [4, 4, 4, 4, 4, 8], 6, (1, 4, 8)),
    ],
)
def test_architectures_match_the_paper(
    spec: FlowSpec, couplings: list[int], priors: int, latent: tuple[int, ...]
) -> None:
    assert [layer.top for layer in spec.layers if isinstance(layer, DenoisingCouplingSpec)] == couplings
    assert sum(isinstance(layer, SplitPriorSpec) for layer in spec.layers) == priors
    small = FlowSpec.from_json(spec.to_json().replace('"hidden": 512', '"hidden": 8'))
    flow = small.build()
    assert flow.latent_shape(flow.shape) == latent


def test_unknown_couplings_are_rejected() -> None:
    with pytest.raises(ValueError, match="coupling='additive' must be 'denoising', 'modular', 'split', 'none'"):
        architectures.eight_gaussians("additive")
    with pytest.raises(ValueError, match="couplings=0 must be at least 1"):
        architectures.eight_gaussians(couplings=0)
    with pytest.raises(ValueError, match="factor_out='' must be 'a' or 'b'"):
        architectures.binary_mnist(factor_out="").build()


def test_only_frozen_dataclasses_are_registered() -> None:
    for cls in (type("Plain", (), {}), dataclass(type("Thawed", (), {"__annotations__": {"a": int}}))):
        with pytest.raises(TypeError, match="must be a frozen dataclass"):
            register(cls)


def test_a_module_without_an_attribute_of_its_spec_is_named() -> None:
    class Forgetful(nn.Module):
        pass

    @dataclass(frozen=True)
    class ForgetfulSpec(NetSpec, builds=Forgetful):
        hidden: int = 8

        def build(self, num_classes: int, given: Shape, predicted: Shape) -> Forgetful:
            return Forgetful()

    with pytest.raises(TypeError, match="Forgetful has no attribute 'hidden', which ForgetfulSpec has as a field"):
        describe(Forgetful())
