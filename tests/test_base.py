"""The base distribution is fitted by counting."""

import pytest
import torch

from ddf.base import FactorizedCategorical
from tests.zoo import randomize


def test_fit_gives_the_smoothed_frequencies_of_each_position() -> None:
    z = torch.randint(3, (500, 2, 4, 5))
    base = FactorizedCategorical(3, (2, 4, 5)).fit(z, smoothing=0.5)
    chances = base.logits.softmax(0)
    for k in range(3):
        torch.testing.assert_close(chances[k], ((z == k).sum(0) + 0.5) / (500 + 1.5))


def test_fit_shares_over_space() -> None:
    z = torch.randint(3, (50, 2, 4, 5))
    base = FactorizedCategorical(3, (2, None, None), shared=True).fit(z, smoothing=2)
    chances = base.logits.softmax(0)
    for k in range(3):
        torch.testing.assert_close(chances[k, :, 0, 0], ((z == k).sum((0, 2, 3)) + 2) / (50 * 20 + 6))


def test_fit_adds_up_batches() -> None:
    z = torch.randint(3, (500, 4), dtype=torch.uint8)
    at_once = FactorizedCategorical(3, (4,)).fit(z)
    batches = FactorizedCategorical(3, (4,)).fit(iter(z.split(77)))
    assert torch.equal(at_once.logits, batches.logits)


def test_fit_maximizes_the_likelihood() -> None:
    z = torch.randint(3, (300, 2)) * torch.randint(2, (300, 2))
    base = FactorizedCategorical(3, (2,)).fit(z, smoothing=1e-9)

    def nats(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.expand(300, 3, 2), z)

    best = nats(base.logits.detach())
    for _ in range(20):
        assert nats(base.logits.detach() + 0.1 * torch.randn(3, 2)) > best


def test_unseen_symbols_can_be_coded() -> None:
    base = FactorizedCategorical(91, (2,)).fit(torch.zeros(10**5, 2, dtype=torch.uint8))
    assert base.logits.isfinite().all()
    assert base.logits.softmax(0).min() > 0


def test_logits_can_be_trained() -> None:
    base = randomize(FactorizedCategorical(3, (2,)))
    emitted: list[torch.Tensor] = []
    base(torch.zeros(4, 2, dtype=torch.long), lambda symbols, logits: emitted.append(logits))
    emitted[0].sum().backward()
    assert base.logits.grad is not None
    base.freeze()(torch.zeros(4, 2, dtype=torch.long), lambda symbols, logits: emitted.append(logits))
    assert not emitted[1].requires_grad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FactorizedCategorical(3, (2, None, 4)), r"needs a fixed size, not the shape \(2, None, 4\)"),
        (lambda: FactorizedCategorical(0, (2,)), "num_classes=0"),
        (lambda: FactorizedCategorical(3, ()), r"the shape \(\) does not include a number of channels"),
        (lambda: FactorizedCategorical(3, (2,)).fit(torch.zeros(5, 3, dtype=torch.long)), r"\(2,\), .* \(3,\)"),
        (lambda: FactorizedCategorical(3, (2,)).fit(torch.full((5, 2), 3)), "symbols contains the symbol 3"),
        (lambda: FactorizedCategorical(3, (2,)).fit(torch.zeros(5, 2, dtype=torch.long), 0), "smoothing=0"),
        (lambda: FactorizedCategorical(3, (2,)).fit(torch.zeros(0, 2, dtype=torch.long)), "no symbols to fit"),
        (lambda: FactorizedCategorical(3, (2,)).fit([]), "no symbols to fit"),
        (lambda: FactorizedCategorical(3, (2,)).fit(torch.zeros(5, 2).long(), float("inf")), "smoothing=inf"),
        (
            lambda: FactorizedCategorical(3, (2,)).freeze().fit(torch.zeros(5, 2).long()),
            "is frozen; call thaw",
        ),
        (lambda: FactorizedCategorical(3, (2, 0)), r"shape\[1\]=0"),
        (lambda: FactorizedCategorical(3, (2,)).inverse(1, (3,), lambda logits: logits), r"\(2,\), .* \(3,\)"),
        (
            lambda: FactorizedCategorical(3, (2, None), shared=True).inverse(1, (2, None), lambda logits: logits),
            r"cannot draw symbols of the unknown size \(2, None\)",
        ),
    ],
)
def test_impossible_bases_are_rejected(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
