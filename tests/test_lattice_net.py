"""Orders, and the net of ordered splits."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ddf.layers import LatticeOrder
from ddf.nets import LatticeNet
from tests.zoo import randomize

K = 3


# ---- The order


@pytest.mark.parametrize(("stride", "cell"), [(2, 2), (4, 4), (8, 2), (16, 16), (32, 4)])
def test_an_order_refines_a_lattice(stride: int, cell: int) -> None:
    order = LatticeOrder(stride, cell)
    steps = order.steps(64, 64)
    known = steps == 0
    assert torch.equal(known, ((torch.arange(64) % stride)[:, None] + torch.arange(64) % stride) == 0)
    found = {0}
    distance = stride
    while distance > 1:
        distance //= 2
        after = known | ((torch.arange(64) % distance)[:, None] + torch.arange(64) % distance == 0)
        of_level = steps[after & ~known]
        assert of_level.min() > steps[known].max()  # the levels follow one another
        for step in set(of_level.tolist()):
            rows, columns = (steps == step).nonzero().numpy().T
            apart = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
            assert apart[apart > 0].size == 0 or apart[apart > 0].min() == cell * distance
            found.add(step)
        known = after
    assert known.all()
    assert found <= set(range(order.count))
    assert len(found) == order.count or cell * stride > 2 * 64  # maps smaller than a cell have fewer steps


def test_an_order_does_not_depend_on_the_size() -> None:
    order = LatticeOrder(8)
    assert torch.equal(order.steps(5, 23), order.steps(64, 64)[:5, :23])


@pytest.mark.parametrize("options", [{"stride": 3}, {"stride": 1}, {"stride": 512}, {"stride": 2, "cell": 4}])
def test_impossible_orders_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="LatticeOrder: "):
        LatticeOrder(**options)


# ---- The net


def lattice_net(size: tuple[int, int] | None = (8, 12), **options: Any) -> LatticeNet:
    more = {"levels": 3, "cell": 4, "planes": (64, 64), "blocks": (1, 1), "width": 8, "depth": 1, **options}
    return randomize(LatticeNet(K, 2, size=size, **more)).eval()


def maps(n: int = 3, height: int = 8, width: int = 12) -> Tensor:
    return torch.randint(K, (n, 2, height, width), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("size", "levels", "cell", "planes"),
    [((8, 12), 3, 4, (64, 64)), ((9, 14), 2, 2, (64,)), ((5, 7), 3, 8, (64, 64, 64)), ((1, 3), 1, 2, (64,))],
)
@torch.no_grad()
def test_a_pixel_is_predicted_from_earlier_steps_only(
    size: tuple[int, int], levels: int, cell: int, planes: tuple[int, ...]
) -> None:
    net = lattice_net(size, levels=levels, cell=cell, planes=planes, blocks=(1,) * len(planes))
    steps, x = LatticeOrder(1 << levels, cell).steps(*size), maps(1, *size)
    logits = net(x)
    before = 0
    for step in sorted(set(steps.flatten().tolist()) - {0}):
        here = steps == step
        assert torch.equal(net(torch.where(steps >= step, (x + 1) % K, x))[..., here], logits[..., here])
        # Every step has an effect on the next one.
        assert not torch.equal(net(torch.where(steps == before, (x + 1) % K, x))[..., here], logits[..., here])
        before = step


@pytest.mark.parametrize("size", [(8, 12), (9, 6)])
@torch.no_grad()
def test_step_by_step_gives_the_same_logits_as_a_single_pass(size: tuple[int, int]) -> None:
    net = lattice_net(size, hints=True)
    x = maps(2, *size)
    given = torch.rand(2, *size, generator=torch.Generator().manual_seed(0)) < 0.2
    steps = LatticeOrder(8).steps(*size).flatten()
    for mask in (None, given):
        logits, memory = net(x, mask).flatten(3), {}
        for step in sorted(set(steps.tolist()) - ({0} if mask is None else set())):
            found = net(x, mask, step, memory)
            torch.testing.assert_close(found, logits[..., steps == step], atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_pixels_given_in_advance_have_an_effect_on_all_others() -> None:
    net = lattice_net(hints=True)
    x = maps(1)
    steps = LatticeOrder(8).steps(8, 12)
    given = torch.zeros(1, 8, 12, dtype=torch.bool)
    given[0, 5, 7] = True
    for step in set(steps.flatten().tolist()) - {int(steps[5, 7])}:
        here = steps == step
        assert not torch.allclose(net(x, given)[..., here], net(x, given & False)[..., here], atol=1e-4)
    changed = torch.where(given.unsqueeze(1), (x + 1) % K, x)
    assert not torch.allclose(net(x, given)[..., 0, 0], net(changed, given)[..., 0, 0], atol=1e-3)
    later = torch.where(given.unsqueeze(1) | (steps == 0), x, (x + 1) % K)
    assert torch.equal(net(x, given)[..., steps <= 1], net(later, given)[..., steps <= 1])


@torch.no_grad()
def test_a_net_distinguishes_levels_and_positions() -> None:
    net = lattice_net()
    x = torch.zeros(1, 2, 8, 12, dtype=torch.long)
    before = net(x)
    torch.nn.init.ones_(net.embedding.weight)
    assert not torch.allclose(net(x), before, atol=0.01)
    before = net(x)
    assert net.position is not None
    torch.nn.init.zeros_(net.position)
    assert not torch.allclose(net(x), before, atol=0.01)
    assert lattice_net(None).position is None


@torch.no_grad()
def test_a_net_treats_samples_independently() -> None:
    x, net = maps(5), lattice_net()
    alone = torch.cat([net(x[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(net(x), alone, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("size", [(8, 12), (5, 7), (1, 1)])
def test_a_net_takes_maps_of_any_size(size: tuple[int, int]) -> None:
    for net in (lattice_net(None), lattice_net(size)):
        assert net(maps(2, *size)).shape == (2, K, 2, *size)


def test_maps_of_another_shape_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"LatticeNet was built for maps of size \(8, 12\), not \(8, 8\)"):
        lattice_net()(maps(1, 8, 8))
    with pytest.raises(ValueError, match="LatticeNet was built for channels=2"):
        lattice_net()(maps(1)[:, :1])
    with pytest.raises(ValueError, match="build the net with hints=True"):
        lattice_net()(maps(1), torch.zeros(1, 8, 12, dtype=torch.bool))


def test_dropout_is_for_training_only() -> None:
    net = lattice_net(dropout=0.5)
    assert torch.equal(net(maps()), net(maps()))
    net.train()
    assert not torch.equal(net(maps()), net(maps()))


@pytest.mark.parametrize(
    "options",
    [{"planes": (60,), "blocks": (1,)}, {"planes": (64,), "blocks": (1, 1)}, {"planes": (), "blocks": ()},
     {"planes": (64,), "blocks": (0,)}, {"dropout": 1.0}, {"planes": (64,) * 9, "blocks": (1,) * 9}, {"cell": 3},
     {"cell": 1}, {"levels": 5, "cell": 32}, {"levels": 9}, {"levels": 1}, {"width": 12}, {"width": 0}, {"depth": 0}],
)  # fmt: skip
def test_impossible_nets_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="LatticeNet: "):
        LatticeNet(K, 1, **options)  # type: ignore[arg-type]
