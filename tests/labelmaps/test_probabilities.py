"""Scores are code lengths, probabilities add up to 1, and ranks identify the correct option."""

import itertools
import math

import numpy as np
import pytest

from ddf.labelmaps import CausalFlow
from ddf.labelmaps.arithmetic import CODER_SIZE, LIMIT, SQUASH, STRETCH, code_bit, finish, start_decoder, start_encoder
from ddf.labelmaps.context import offsets


def test_bits_are_code_lengths(known: CausalFlow, scenes: list[np.ndarray]) -> None:
    for scene in scenes:
        code = known.compress(scene)
        assert code is not None
        bits = known.bits(scene)
        assert abs(8 * len(code) - bits) < 0.001 * bits + 64
        assert np.isclose(known.log_prob(scene), -bits * math.log(2))
        assert np.isclose(known.bits_per_dim(scene), bits / scene.size)
        assert np.isclose(known.explain(scene).bits.sum(), bits, rtol=1e-4)


def test_bits_are_returned_for_each_map(any_labels: CausalFlow, maps: list[np.ndarray]) -> None:
    stack = np.stack([one[:40, :40] for one in maps]).reshape(3, 4, 40, 40)
    bits = any_labels.bits(stack)
    assert bits.shape == (3, 4)
    assert np.array_equal(bits.reshape(-1), [any_labels.bits(one) for one in stack.reshape(-1, 40, 40)])


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (3, 1)])
def test_probabilities_of_all_maps_add_up_to_one(known: CausalFlow, shape: tuple[int, int]) -> None:
    every = itertools.product(known.classes.values, repeat=math.prod(shape))
    maps = np.array(list(every)).reshape(-1, *shape)
    assert abs(np.exp(known.log_prob(maps)).sum() - 1) < 1e-3


def test_explanations_match_the_scores(known: CausalFlow, scenes: list[np.ndarray]) -> None:
    for scene in scenes:
        found = known.explain(scene)
        assert found.bits.shape == found.ranks.shape == found.margins.shape == scene.shape
        assert found.bits.min() >= 0
        right = found.ranks == 0
        assert right.mean() > 0.9
        assert found.bits[right].mean() < found.bits[~right].mean()
        inner = np.s_[1:, 1:]
        same = (scene[inner] == scene[1:, :-1]) & (scene[inner] == scene[:-1, 1:])
        assert (right[inner] & same).sum() > 0.95 * same.sum()


@pytest.mark.parametrize("wrong", [np.zeros((2, 3, 4), np.uint8), np.zeros((0, 3), np.uint8), np.zeros((3, 3))])
def test_only_maps_are_explained(known: CausalFlow, wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="a label map has"):
        known.explain(wrong)


def test_samples_have_the_requested_size(model: CausalFlow) -> None:
    drawn = model.sample(3, (20, 24), seed=5)
    assert drawn.shape == (3, 20, 24)
    assert np.array_equal(drawn, model.sample(3, (20, 24), seed=5))
    assert not np.array_equal(drawn, model.sample(3, (20, 24), seed=6))
    assert np.isin(drawn, model.classes.values if model.classes else range(8)).all()
    assert not np.array_equal(drawn[0], drawn[1])


def test_samples_match_the_models_probabilities(known: CausalFlow) -> None:
    drawn = known.sample(4000, (1, 2), seed=1)
    for one in itertools.product(known.classes.values, repeat=2):
        expected = np.exp(known.log_prob(np.array([one])))
        observed = (drawn == one).all(axis=(1, 2)).mean()
        assert abs(observed - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000) + 1e-3


@pytest.mark.parametrize("arguments", [(-1, (3, 3)), (1, (0, 3)), (1, (3,)), (1, (1, 3, 3))])
def test_impossible_sizes_of_samples_are_rejected(known: CausalFlow, arguments: tuple[int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="positive height"):
        known.sample(*arguments)


# ---- Integer arithmetic ----------------------------------------------------------------------------------------------


def test_tables_do_not_depend_on_rounding() -> None:
    """Before rounding, the values are at least 1e-6 from a half: a thousand times the error of exp or log."""
    squash = [2**22 / (1 + math.exp(-t / 256)) for t in range(-LIMIT, LIMIT + 1)]
    steps = [(i + 0.5) / 4096 for i in range(4096)]
    stretch = [256 * math.log(p / (1 - p)) for p in [*steps, *(p / 64 for p in steps)]]
    for exact, table in ((squash, SQUASH), (stretch, STRETCH)):
        values = np.array(exact)
        assert np.abs(values - np.floor(values) - 0.5).min() >= 1e-6
        assert np.array_equal(np.floor(values + 0.5).clip(table.min(), table.max()), table)
    assert LIMIT == 3071
    assert SQUASH.min() > 1
    assert abs(STRETCH.astype(int)).max() <= LIMIT


def test_the_context_is_sorted_by_distance() -> None:
    found = offsets(256)
    distances = (found**2).sum(axis=1)
    assert (np.diff(distances) >= 0).all()
    assert len({tuple(place) for place in found.tolist()}) == 256
    assert all(y < 0 or (y == 0 and x < 0) for y, x in found.tolist())
    assert found[:6].tolist() == [[-1, 0], [0, -1], [-1, -1], [-1, 1], [-2, 0], [0, -2]]


def test_carries_reach_pending_bytes() -> None:
    """Likely zeros move the lower end of the interval through bytes of 255; unlikely ones determine the carry."""
    for seed in range(20):
        coder, data = np.zeros(CODER_SIZE, np.uint64), np.zeros(4000, np.uint8)
        bits = (np.random.default_rng(seed).random(20_000) < 0.0005 * seed).tolist()
        start_encoder(coder)
        for bit in bits:
            code_bit(coder, data, False, int(bit), 64)
        code = data[: finish(coder, data)].copy()
        start_decoder(coder, code)
        assert [code_bit(coder, code, True, 0, 64) == 1 for _ in bits] == bits
