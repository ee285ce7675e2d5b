"""Labels that a model does not know come back all the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddf.codec import compress, decompress, pretrained
from ddf.codec.blocks import DamagedArchiveError, Kind, Method
from ddf.codec.labels import LabelTables, relabelled
from ddf.codec.varint import write_varint
from ddf.data.classes import Classes

OWN = Classes((0, 3, 4, 255))
label = st.one_of(st.integers(-3, 300), st.integers(-(2**53), 2**53))
arrays = st.lists(st.lists(label, min_size=1, max_size=6), min_size=1, max_size=12)


@given(arrays)
def test_classes_are_found_for_all_labels_there_is_room_for(found: list[list[int]]) -> None:
    tables = LabelTables(OWN)
    for values in found:
        array = np.array(values, dtype=np.int64)
        classes = relabelled(OWN, tables.of(array))
        assert classes.num_classes == 4
        if len(set(values)) <= 4:
            assert np.array_equal(classes.to_values(classes.to_symbols(array)), array)
        else:
            assert classes.values == OWN.values


@given(st.lists(st.tuples(st.integers(0, 300), label), max_size=5, unique_by=lambda pair: pair[0]))
def test_kinds_are_read_as_they_were_written(labels: list[tuple[int, int]]) -> None:
    kind = Kind(Method.MODEL, 5, (7, 300), labels=tuple(sorted(labels)))
    assert Kind.from_bytes(kind.to_bytes()) == kind


@pytest.mark.parametrize(
    "body",
    [
        bytes([17, 0, 1, 4, 1, 0, 2]),
        bytes([18, 0, 1, 4]),
        bytes([18, 0, 1, 4, 0]),
        bytes([18, 0, 1, 4, 2, 0, 2]),
        bytes([18, 0, 1, 4, 2, 1, 2, 0, 4]),
        bytes([18, 0, 1, 4, 1, 0]) + write_varint(1 << 60),
        bytes([18, 0, 1, 4, 1, 0, 2, 7]),
        bytes([2, 0, 1, 4, 1, 0, 2]),
        bytes([34, 0, 1, 4]),
    ],
    ids=["LZMA", "no number", "none", "too few", "in disorder", "too large", "too many", "no flag", "unknown flag"],
)
def test_kinds_with_labels_that_cannot_be(body: bytes) -> None:
    Kind.from_bytes(bytes([18, 0, 1, 4, 2, 0, 4, 1, 2]))  # is fine
    with pytest.raises(DamagedArchiveError, match="a kind of array is unreadable"):
        Kind.from_bytes(body)


def test_what_has_been_found_stays() -> None:
    """As few kinds as there can be: maps with few of the labels are of the kind of those with all."""
    tables = LabelTables(OWN)
    assert tables.of(np.array([0, 3])) == ()
    found = tables.of(np.array([0, 3, 9, 200]))
    assert found == ((2, 9), (3, 200))
    for some in ([0, 9], [3], [200, 3], [0]):
        assert tables.of(np.array(some)) == found
    assert tables.of(np.array([0, 4])) == ()  # as the model has it, and back again
    assert tables.of(np.array([0, 200])) == found
    assert tables.of(np.array([1, 2, 9, 200])) == ((0, 1), (1, 2), (2, 9), (3, 200))


def test_a_mask_of_0_and_255_costs_what_one_of_0_and_1_does() -> None:
    rows, columns = np.ogrid[:90, :120]
    disc = ((rows - 40) ** 2 + (columns - 70) ** 2 < 900).astype(np.uint8)
    model = pretrained()
    assert np.array_equal(decompress(compress(disc * 255, model), model), disc * 255)
    assert len(compress(disc * 255, model)) < len(compress(disc, model)) + 8
