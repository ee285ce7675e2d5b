"""Orders, and the net of ordered splits."""

import numpy as np
import pytest
import torch

from ddf.layers import LatticeOrder
from ddf.nets import UNet
from tests.zoo import randomize

K = 3


# ---- The order


@pytest.mark.parametrize(("stride", "cell"), [(1, 1), (2, 1), (4, 4), (8, 2), (16, 16), (32, 4)])
def test_an_order_refines_a_lattice(stride: int, cell: int) -> None:
    order = LatticeOrder(stride, cell)
    steps = order.steps(64, 64)
    assert sorted(set(steps.flatten().tolist())) == list(range(order.count))
    assert torch.equal(steps == 0, ((torch.arange(64) % stride)[:, None] + torch.arange(64) % stride) == 0)
    known = steps == 0
    distance = stride
    while distance > 1:
        after = known | ((torch.arange(64) % (distance // 2))[:, None] + torch.arange(64) % (distance // 2) == 0)
        of_level = steps[after & ~known]
        assert known.any()
        assert of_level.min() > steps[known].max()  # the levels follow one another
        for step in set(of_level.tolist()):
            rows, columns = (steps == step).nonzero().numpy().T
            apart = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
            assert apart[apart > 0].min() >= min(stride, max(2 * distance, cell))
        known, distance = after, distance // 2
    assert known.all()


def test_an_order_does_not_depend_on_the_size() -> None:
    order = LatticeOrder(8)
    assert torch.equal(order.steps(5, 23), order.steps(64, 64)[:5, :23])


@pytest.mark.parametrize("options", [{"stride": 3}, {"stride": 0}, {"stride": 512}, {"stride": 2, "cell": 4}])
def test_impossible_orders_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="LatticeOrder: "):
        LatticeOrder(**options)


# ---- The net


def unet(size: tuple[int, int] | None = (8, 12), **options: object) -> UNet:
    return randomize(UNet(K, 2, 9, size, planes=(64, 64), blocks=(1, 1), **options)).eval()  # type: ignore[arg-type]


def inputs(n: int = 3, height: int = 8, width: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(K, (n, 2, height, width), generator=generator)
    known = torch.rand(n, height, width, generator=generator) < 0.5
    return x, known, torch.randint(9, (n,), generator=generator)


def test_unknown_pixels_have_no_effect_on_a_net() -> None:
    x, known, step = inputs()
    net = unet()
    other = torch.where(known.unsqueeze(1), x, (x + 1) % K)
    assert torch.equal(net(x, known, step), net(other, known, step))
    assert not torch.allclose(net(x, known, step), net((x + 1) % K, known, step), atol=0.1)
    assert not torch.allclose(net(x, known, step), net(x, ~known, step), atol=0.1)


def test_a_net_distinguishes_steps_and_positions() -> None:
    x, known, step = inputs()
    assert not torch.allclose(unet()(x, known, step), unet()(x, known, (step + 1) % 9), atol=0.1)
    net = unet()
    before = net(x, known, step)
    assert net.position is not None
    torch.nn.init.zeros_(net.position)
    assert not torch.allclose(net(x, known, step), before, atol=0.01)
    assert unet(None).position is None


def test_a_net_treats_samples_independently() -> None:
    x, known, step = inputs(5)
    together = unet()(x, known, step)
    alone = torch.cat([unet()(x[i : i + 1], known[i : i + 1], step[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("size", [(8, 12), (5, 7), (1, 1)])
def test_a_net_takes_maps_of_any_size(size: tuple[int, int]) -> None:
    x, known, step = inputs(2, *size)
    assert unet(None)(x, known, step).shape == (2, K, 2, *size)
    assert unet(size)(x, known, step).shape == (2, K, 2, *size)


def test_dropout_is_for_training_only() -> None:
    net = unet(dropout=0.5)
    assert torch.equal(net(*inputs()), net(*inputs()))
    net.train()
    assert not torch.equal(net(*inputs()), net(*inputs()))


@pytest.mark.parametrize(
    "options",
    [{"planes": (60,), "blocks": (1,)}, {"planes": (64,), "blocks": (1, 1)}, {"planes": (), "blocks": ()},
     {"planes": (64,), "blocks": (0,)}, {"dropout": 1.0}, {"patch": 0}, {"planes": (64,) * 9, "blocks": (1,) * 9}],
)  # fmt: skip
def test_impossible_nets_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="UNet: "):
        UNet(K, 1, 9, None, **options)  # type: ignore[arg-type]
