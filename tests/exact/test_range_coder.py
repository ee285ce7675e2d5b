"""The range coder: symbols and frequencies to bytes, and back."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ddf.archive.varint import read_varint, write_varint
from ddf.exact.range_coder import Decoder, Encoder
from ddf.logits import frequencies
from tests import reference_decoder


@given(hnp.arrays(np.int32, st.tuples(st.integers(1, 5), st.integers(1, 300)), elements=st.integers(-(2**20), 2**20)))
def test_frequencies_add_up_and_follow_the_logits(logits: np.ndarray) -> None:
    found = frequencies(torch.from_numpy(logits)).numpy()
    assert (found >= 1).all()
    assert (found.sum(axis=1) == 65536).all()
    assert np.array_equal(found, reference_decoder.frequencies(logits.astype(np.int64)))
    for row, shares in zip(logits, found, strict=True):
        others = row < row.max()
        assert (np.diff(shares[others][np.argsort(row[others])]) >= 0).all()
        assert shares.argmax() == row.argmax()  # the first of the most likely


def test_frequencies_match_the_softmax() -> None:
    logits = torch.randint(-2000, 2000, (100, 12), generator=torch.Generator().manual_seed(0))
    want = torch.softmax(logits.double() * np.log(2) / 256, dim=1) * 65536
    assert (frequencies(logits) - want).abs().max() < 24


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(0, 150), st.integers(0, 2**32))
def test_the_decoder_returns_what_was_encoded(classes: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    # The underlying library would misread rows in column-major order.
    rows = np.asfortranarray(frequencies(torch.from_numpy(generator.integers(-9000, 9000, (count, classes)))).numpy())
    symbols = generator.integers(0, classes, count)
    encoder = Encoder()
    encoder.put(symbols, rows)
    code = encoder.finish()
    assert np.array_equal(Decoder(code).take(rows), symbols)
    assert len(code) * 8 <= encoder.bits + 9
    if classes > 1:
        plain = reference_decoder.RangeDecoder(code)
        assert [plain.symbol(row) for row in rows] == symbols.tolist()
        bits = (16 - np.log2(rows[np.arange(count), symbols])).sum()
        assert abs(encoder.bits - bits) < 0.1 + 1e-3 * bits


@given(st.integers(0, 2**60))
def test_numbers_of_any_size_are_decoded(number: int) -> None:
    assert read_varint(b"x" + write_varint(number) + b"y", 1) == (number, 1 + len(write_varint(number)))
