"""Training reaches the theoretical optimum, and runs survive interruption."""

import errno
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ddf
from ddf.base import FactorizedCategorical
from ddf.data import EightGaussians, Resampled
from ddf.flow import Flow
from ddf.layers import DenoisingCoupling, ModularCoupling, Shuffle, SplitPrior
from ddf.spec import DenoisingCouplingSpec, FlowSpec, MLPSpec, ShuffleSpec, SplitPriorSpec
from ddf.training import RunConflictError, TrainingConfig, TrainingError, fit
from ddf.training import loop as internals
from ddf.training import run as run_internals
from ddf.training.cache import Cache
from ddf.training.steps import Stepper
from tests.zoo import everything

K = 5
FAST = TrainingConfig(batch_size=100, learning_rate=3e-3, max_epochs=12, patience=4, ema=0.98)
SMALL = FlowSpec(
    num_classes=K,
    shape=(2,),
    layers=(
        DenoisingCouplingSpec(MLPSpec(hidden=32, layers=3), top=K),
        ShuffleSpec(permutation=(1, 0)),
        SplitPriorSpec(MLPSpec(hidden=32, layers=3)),
    ),
)


def joint_distribution(seed: int = 0) -> torch.Tensor:
    """Return a random distribution of two dependent symbols."""
    return torch.randn(K * K, generator=torch.Generator().manual_seed(seed)).mul(1.5).softmax(0).view(K, K).double()


def draw(p: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    which = torch.multinomial(p.flatten(), n, replacement=True, generator=generator)
    return torch.stack([which // K, which % K], dim=1).to(torch.uint8)


def expected_bits(flow: Flow, p: torch.Tensor) -> float:
    """Return the bits per dimension under the true distribution, without sampling noise."""
    return float((flow.bits_per_dim(everything(K, (2,))) * p.flatten()).sum())


def entropy(p: torch.Tensor) -> float:
    return float(-(p * p.log2()).sum())


def ideal_coupling(p: torch.Tensor) -> float:
    z = p.sort(dim=1, descending=True).values
    return (entropy(z.sum(0)) + entropy(z.sum(1))) / 2


def weights(flow: Flow) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in flow.parameters()])


def test_a_coupling_reaches_its_theoretical_optimum() -> None:
    p = joint_distribution()
    flow = Flow([DenoisingCoupling(ddf.MLP(K, 1, 1, hidden=64), top=K)], FactorizedCategorical(K, (2,)), (2,))
    fit(flow, draw(p, 20_000, seed=1), config=FAST, device="cpu")
    assert ideal_coupling(p) - 1e-9 <= expected_bits(flow, p) < ideal_coupling(p) + 0.01
    assert ideal_coupling(p) < (entropy(p.sum(0)) + entropy(p.sum(1))) / 2 - 0.05  # there is something to learn


def test_a_split_prior_reaches_the_entropy() -> None:
    p = joint_distribution()
    flow = Flow([SplitPrior(ddf.MLP(K, 1, 1, hidden=64))], FactorizedCategorical(K, (1,)), (2,))
    fitted = fit(flow, draw(p, 20_000, seed=1), config=FAST, device="cpu")
    assert entropy(p) / 2 <= expected_bits(flow, p) < entropy(p) / 2 + 0.01
    assert fitted.validation_bits == pytest.approx(entropy(p) / 2, abs=0.05)


def test_a_discrete_flow_learns_end_to_end() -> None:
    """x_b = x_a + 2 mod 5 in nine of ten cases, which a location can undo. Biased gradients achieve only part of it."""
    p = torch.full((K, K), 0.1 / (K - 1), dtype=torch.float64)
    for a in range(K):
        p[a, (a + 2) % K] = 0.9
    p *= torch.tensor([[0.4], [0.3], [0.15], [0.1], [0.05]])
    flow = Flow([ModularCoupling(ddf.MLP(K, 1, 2, hidden=64))], FactorizedCategorical(K, (2,)), (2,))
    config = TrainingConfig(batch_size=100, learning_rate=3e-3, max_epochs=10, patience=5)
    fit(flow, draw(p, 5000, seed=1), config=config, device="cpu")
    assert entropy(p) / 2 < expected_bits(flow, p) < (entropy(p.sum(0)) + entropy(p.sum(1))) / 2 - 0.2
    assert all(part.frozen for part in flow.parts())


def test_the_base_of_a_discrete_flow_has_its_own_learning_rate() -> None:
    x = draw(joint_distribution(), 500, seed=1)
    moved = {}
    for rate in (1e-9, None, 0.1):
        flow = Flow([ModularCoupling(ddf.MLP(K, 1, 2, hidden=8))], FactorizedCategorical(K, (2,)), (2,))
        config = TrainingConfig(max_epochs=1, base_learning_rate=rate)
        fit(flow, x, x[:100], config=config, device="cpu")
        start = FactorizedCategorical(K, (2,)).fit(x)
        moved[rate] = float((flow.base.logits - start.logits).detach().abs().max())
    assert moved[1e-9] < 1e-6 < moved[None] < 0.02 < moved[0.1]


def test_a_small_version_of_the_demo() -> None:
    flow = ddf.architectures.eight_gaussians().build(seed=0)
    config = TrainingConfig(batch_size=256, max_epochs=4, ema=0.99)
    fit(flow, EightGaussians.sample(40_000, seed=0), config=config, device="cpu")
    bits = flow.bits_per_dim(EightGaussians.sample(20_000, seed=1), batch_size=20_000).mean()
    assert EightGaussians.coupling_optimum() - 0.02 < bits < 4.68


def test_the_optima_of_the_eight_gaussians_are_exact() -> None:
    assert EightGaussians.entropy() == pytest.approx(4.5589, abs=5e-5)
    assert EightGaussians.coupling_optimum() == pytest.approx(4.6076, abs=5e-5)
    assert EightGaussians.coupling_optimum(couplings=2) == pytest.approx(4.5767, abs=5e-5)
    assert EightGaussians.factorized_optimum() == pytest.approx(5.3035, abs=5e-5)
    for top, bits in ((1, 5.211), (4, 4.965), (8, 4.752), (16, 4.625), (32, 4.608)):
        assert EightGaussians.coupling_optimum(top=top) == pytest.approx(bits, abs=5e-4)
    x = EightGaussians.sample(200_000, seed=3).long()
    seen = (91 * x[:, 0] + x[:, 1]).bincount(minlength=91 * 91) / len(x)
    assert (seen - EightGaussians.probabilities().flatten()).abs().sum() < 0.06


# ---- Reproducing and resuming ----------------------------------------------------------------------------------------


CONFIG = TrainingConfig(batch_size=50, max_epochs=4, ema=0.9, cosine=True, warmup_steps=20)


def train(config: TrainingConfig = CONFIG, **options: object) -> tuple[torch.Tensor, float]:
    flow = SMALL.build(seed=0)
    fitted = fit(flow, draw(joint_distribution(), 2000, seed=1), config=config, device="cpu", **options)
    return weights(flow), fitted.validation_bits


def test_a_seed_determines_the_result() -> None:
    first, bits = train()
    assert torch.equal(first, train()[0])
    assert not torch.equal(first, train(replace(CONFIG, seed=1))[0])
    assert math.isfinite(bits)


@pytest.mark.parametrize(("steps", "ema"), [(1, 0.9), (37, None), (100, None), (150, 0.9), (219, 0.9)])
def test_a_resumed_run_ends_with_the_same_result(
    steps: int, ema: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, ema=ema)
    uninterrupted, _ = train(config)
    left = steps
    original = Stepper.step

    def step(self: Stepper, index: torch.Tensor) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        original(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "step", step)
        with pytest.raises(KeyboardInterrupt):
            train(config, run=tmp_path / "run")
    again, bits = train(config, run=tmp_path / "run")
    assert torch.equal(again, uninterrupted)
    assert torch.equal(train(config, run=tmp_path / "run")[0], uninterrupted)  # finished: nothing is left to do
    assert torch.equal(weights(ddf.load(tmp_path / "run" / "flow.safetensors")), uninterrupted)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["validation_bits"] == bits
    assert {"epoch", "train_bits", "validation_bits", "layer"} <= lines[0].keys()


def test_a_run_killed_ten_times_ends_with_the_same_result(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed_run.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(program), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    killed, bits, uninterrupted = done.stdout.split()
    assert int(killed) == 10
    assert float(bits) == pytest.approx(float(uninterrupted), abs=1e-3)


def test_two_processes_train_as_well_as_one(tmp_path: Path) -> None:
    program = Path(__file__).with_name("process_run.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    bits = {}
    for name, launcher in (("one", []), ("two", torchrun)):
        command = [sys.executable, *launcher, str(program), str(tmp_path / name)]
        subprocess.run(command, env=environment, capture_output=True, check=True)
        bits[name] = json.loads((tmp_path / name / "test-0.json").read_text())
    assert bits["two"] == pytest.approx(bits["one"], abs=0.01)
    flows = [(tmp_path / "two" / f"flow-{rank}.safetensors").read_bytes() for rank in (0, 1)]
    assert flows[0] == flows[1]


# ---- Data ------------------------------------------------------------------------------------------------------------


def test_data_on_disk_and_in_memory_give_the_same_result(tmp_path: Path) -> None:
    x = draw(joint_distribution(), 2000, seed=1).numpy()
    mapped = np.memmap(tmp_path / "x", dtype=np.uint8, mode="w+", shape=x.shape)
    mapped[:] = x

    def result(cap: int, data: np.ndarray) -> torch.Tensor:
        flow = SMALL.build(seed=0)
        fit(flow, data, config=TrainingConfig(max_epochs=2, memory_cap=cap), device="cpu", run=tmp_path / f"run-{cap}")
        assert not list((tmp_path / f"run-{cap}" / "cache").glob("*"))
        return weights(flow)

    assert torch.equal(result(100, mapped), result(1 << 30, x))


def test_resampled_data_is_resampled() -> None:
    chances = torch.tensor([[0.2, 0.7]]).repeat(200, 1)
    batches = []

    def binarize(batch: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        batches.append(len(batch))
        return (torch.rand(batch.shape, generator=generator) < batch).to(torch.uint8)

    flow = Flow([Shuffle(2)], FactorizedCategorical(2, (2,)), (2,))
    config = TrainingConfig(draws=50, smoothing=1e-6)
    fit(flow, Resampled(chances, binarize), validation=Resampled(chances, binarize), config=config, device="cpu")
    assert sum(batches) == 200 * (50 + 2)
    expected = chances[0][flow.layers[0].order]
    assert (flow.base.logits.detach().exp()[1] - expected).abs().max() < 0.02  # 10,000 draws: within 4 deviations


@pytest.mark.parametrize("coupling", ["denoising", "modular"])
def test_frozen_parts_are_not_changed(coupling: str) -> None:
    flow = ddf.architectures.eight_gaussians(coupling, net=MLPSpec(hidden=16)).build()
    x = EightGaussians.sample(500, seed=0)
    first = fit(flow, x, config=TrainingConfig(max_epochs=1), device="cpu")
    before = weights(flow)
    with pytest.warns(UserWarning, match="all parts of this flow are frozen, so nothing is trained"):
        again = fit(flow, x, config=TrainingConfig(max_epochs=1), device="cpu")
    assert torch.equal(weights(flow), before)
    assert again.validation_bits == first.validation_bits
    assert again.parts == []


def test_a_flow_without_a_spec_can_be_trained_but_not_saved(tmp_path: Path) -> None:
    class OwnNet(ddf.MLP):
        pass

    def own_flow() -> Flow:
        return Flow([DenoisingCoupling(OwnNet(K, 1, 1, hidden=8), top=K)], FactorizedCategorical(K, (2,)), (2,))

    x = draw(joint_distribution(), 200, seed=1)
    assert fit(own_flow(), x, config=TrainingConfig(max_epochs=1), device="cpu").validation_bits > 0
    with pytest.raises(TypeError, match="OwnNet has no spec"):
        fit(own_flow(), x, config=TrainingConfig(max_epochs=1), device="cpu", run=tmp_path / "run")


def test_validation_data_can_be_passed() -> None:
    p = joint_distribution()
    flow = SMALL.build()
    x, held_out = draw(p, 1000, seed=1), draw(p, 700, seed=2)
    fitted = fit(flow, x, validation=held_out, config=TrainingConfig(max_epochs=1), device="cpu")
    assert fitted.validation_bits == pytest.approx(float(flow.bits_per_dim(held_out).mean()))


# ---- Errors ----------------------------------------------------------------------------------------------------------


def test_a_directory_with_other_settings_is_rejected(tmp_path: Path) -> None:
    train(run=tmp_path)
    with pytest.raises(RunConflictError, match=r"contains a run with other settings.*\n  training.seed: 0 .*, 1 now"):
        train(replace(CONFIG, seed=1), run=tmp_path)
    other = draw(joint_distribution(), 1500, seed=1)
    with pytest.raises(RunConflictError, match=r"data.samples: 2000 in the directory, 1500 now"):
        fit(SMALL.build(), other, config=CONFIG, device="cpu", run=tmp_path)


def test_a_nan_loss_stops_training_and_keeps_finished_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(joint_distribution(), 500, seed=1)
    flow = SMALL.build()
    with torch.no_grad():
        flow.layers[2].net.stack[0].bias[0] = math.nan
    with pytest.raises(TrainingError, match=r"2 SplitPrior: the loss is nan in epoch 0; try a learning rate below"):
        fit(flow, x, config=TrainingConfig(max_epochs=1), device="cpu", run=tmp_path)
    assert (tmp_path / "parts" / "000.safetensors").exists()
    again = SMALL.build()
    fit(again, x, config=TrainingConfig(max_epochs=1), device="cpu", run=tmp_path)
    assert torch.equal(again.layers[0].net.stack[0].weight, flow.layers[0].net.stack[0].weight)


def test_an_error_of_a_full_disk_names_it_and_keeps_finished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internals, "_SECONDS_BETWEEN_STATES", 0.0)
    monkeypatch.setattr(internals, "_TIMES_LONGER", 0)
    original = run_internals.Run.save_state
    kept = []

    def save_state(self: run_internals.Run, *args: object) -> None:
        kept.append(args)
        if len(kept) > 3:
            monkeypatch.setattr(Path, "write_bytes", full)
        original(self, *args)

    def full(self: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_internals.Run, "save_state", save_state)
    with pytest.raises(OSError, match=r"cannot write to .*: No space left on device; the finished parts are kept"):
        train(run=tmp_path)
    monkeypatch.undo()
    assert torch.equal(train(run=tmp_path)[0], train()[0])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (torch.zeros(0, 2, dtype=torch.uint8), ValueError, "the data has 0 samples, but at least 2 are needed"),
        (torch.zeros(1, 2, dtype=torch.uint8), ValueError, "the data has 1 samples, but at least 2 are needed"),
        (torch.full((10, 2), 5), ValueError, r"the data contains the symbol 5, but the data has 5 classes \(0…4\)"),
        (torch.zeros(10, 3, dtype=torch.uint8), ValueError, "the flow models samples of shape 2, not 3"),
        (torch.zeros(10, 2), TypeError, "the data must hold integers 0…4, but its dtype is torch.float32"),
        (
            torch.zeros(10, dtype=torch.uint8),
            ValueError,
            r"must be symbols \(samples, …\), not an array of shape \(10,\)",
        ),
        (np.array([["a", "b"]] * 10), TypeError, "the data must hold integers 0…4, but its dtype is <U1"),
        ([[0, 1]] * 10, TypeError, "the data must be a tensor, an array or a Resampled, not a list"),
    ],
)
def test_data_that_does_not_fit_is_rejected(data: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit(SMALL.build(), data, device="cpu")


def test_an_error_names_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        train(run=tmp_path / "file" / "run")


def test_damage_in_a_run_directory_is_reported(tmp_path: Path) -> None:
    train(run=tmp_path)
    part = tmp_path / "parts" / "000.safetensors"
    complete = part.read_bytes()
    part.write_bytes(complete[:-7] + bytes([complete[-7] ^ 1]) + complete[-6:])
    with pytest.raises(RunConflictError, match=r"000.safetensors is damaged: .* checksum; delete it"):
        train(run=tmp_path)
    part.write_bytes(b"damaged")
    with pytest.raises(RunConflictError, match=r"000.safetensors is not a model file, or it is damaged .* delete it"):
        train(run=tmp_path)
    part.write_bytes(complete)
    settings = (tmp_path / "settings.json").read_text()
    (tmp_path / "settings.json").write_text(settings[:100])
    with pytest.raises(RunConflictError, match=r"settings.json is damaged"):
        train(run=tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(RunConflictError, match=r"contains parts of a run, but not its settings"):
        train(run=tmp_path)


def test_two_runs_cannot_share_a_directory(tmp_path: Path) -> None:
    run = run_internals.Run(tmp_path, {})
    with pytest.raises(RunConflictError, match=rf"another process \(PID {os.getpid()}\) is training in"):
        run_internals.Run(tmp_path, {})
    run.close()
    run_internals.Run(tmp_path, {}).close()


def test_settings_can_be_changed_for_the_remaining_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = run_internals.Run.finish

    def finish_and_stop(self: run_internals.Run, *args: object) -> None:
        finish(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_internals.Run, "finish", finish_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(run=tmp_path)
    slower = replace(CONFIG, learning_rate=1e-4)
    with pytest.raises(RunConflictError, match=r"change_settings=True(.|\n)*learning_rate: 0.001 .* 0.0001 now"):
        train(slower, run=tmp_path)
    mixed, _ = train(slower, run=tmp_path, change_settings=True)
    fast, slow = train()[0], train(slower)[0]
    first = SMALL.build().layers[0].net
    count = sum(parameter.numel() for parameter in first.parameters())
    assert torch.equal(mixed[:count], fast[:count])
    assert not torch.equal(mixed[count:], fast[count:])
    assert not torch.equal(mixed[:count], slow[:count])
    assert torch.equal(train(slower, run=tmp_path)[0], mixed)  # the new settings now belong to the run
    with pytest.raises(RunConflictError, match=r"training.seed: 0 in the directory, 1 now"):
        train(replace(slower, seed=1), run=tmp_path, change_settings=True)
    assert torch.equal(train(replace(slower, memory_cap=0), run=tmp_path)[0], mixed)


class Dropping(ddf.MLP):
    def body(self, planes: torch.Tensor) -> torch.Tensor:
        return super().body(torch.nn.functional.dropout(planes, 0.2, self.training))


def test_global_modes_and_seeds_have_no_effect() -> None:
    """Neither the global seed (for a net with dropout) nor a no-grad mode changes the result."""
    x = draw(joint_distribution(), 500, seed=1)
    results = []
    for seed, mode in ((0, torch.enable_grad()), (1, torch.no_grad()), (2, torch.inference_mode())):
        torch.manual_seed(0)
        net = Dropping(K, 1, 1, hidden=16)
        flow = Flow([DenoisingCoupling(net, top=K)], FactorizedCategorical(K, (2,)), (2,))
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        with mode:
            fit(flow, x, config=TrainingConfig(max_epochs=2), device="cpu")
        assert torch.equal(torch.get_rng_state(), state)
        results.append(weights(flow))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("redraw", "message"),
    [
        (lambda x, generator: x[:1], r"draw returned \(1, 2\) for 90 samples, but .* of shape \(90, 2\)"),
        (lambda x, generator: x[:, :1], r"draw returned \(90, 1\)"),
        (lambda x, generator: torch.cat([x, x]), r"draw returned \(180, 2\)"),
        (lambda x, generator: x.numpy(), r"draw returned ndarray"),
        (lambda x, generator: x + 5, r"the data contains the symbol 9"),
    ],
)
def test_the_output_of_draw_is_checked(redraw: object, message: str) -> None:
    x = torch.arange(200).view(100, 2) % K
    with pytest.raises(ValueError, match=message):
        fit(SMALL.build(), Resampled(x, redraw), device="cpu")


def test_arrays_can_be_resampled(tmp_path: Path) -> None:
    x = draw(joint_distribution(), 500, seed=1)
    np.save(tmp_path / "x.npy", x.numpy())
    stored = np.load(tmp_path / "x.npy", mmap_mode="r")
    results = []
    for data in (x, stored, x.numpy().astype(">i4")):
        flow = SMALL.build(seed=0)
        fit(flow, Resampled(data, lambda x, generator: x), config=replace(CONFIG, draws=2), device="cpu")
        results.append(weights(flow))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_impossible_calls_are_rejected() -> None:
    x = draw(joint_distribution(), 100, seed=1)
    with pytest.raises(TypeError, match=r"must be a Flow, not a FlowSpec; call its build\(\) method"):
        fit(SMALL, x)
    with pytest.raises(TypeError, match="config must be a TrainingConfig, not a dict"):
        fit(SMALL.build(), x, config={})
    with pytest.raises(ValueError, match="tensorboard=True needs a run directory"):
        fit(SMALL.build(), x, tensorboard=True)
    with pytest.raises(ValueError, match="the validation data contains the symbol 5"):
        fit(SMALL.build(), x, validation=torch.full((10, 2), 5), device="cpu")
    net = ddf.MLP(K, 1, 1, hidden=8)
    shared = Flow(
        [DenoisingCoupling(net, K), Shuffle(2), DenoisingCoupling(net, K)], FactorizedCategorical(K, (2,)), (2,)
    )
    with pytest.raises(ValueError, match="layers 0 and 2 share a net"):
        fit(shared, x)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda', but PyTorch does not find a GPU"):
            fit(SMALL.build(), x, device="cuda")
    squeeze = ddf.Squeeze()
    maps = Flow([squeeze], FactorizedCategorical(K, (4, None, None), shared=True), (1, None, None))
    with pytest.raises(ValueError, match=r"data have shape \(1, 8, 8\), but those of the validation data \(1, 4, 4\)"):
        fit(maps, torch.zeros(9, 1, 8, 8, dtype=torch.uint8), torch.zeros(9, 1, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    "options",
    [
        *({"batch_size": 0}, {"batch_size": True}, {"max_epochs": 1.5}, {"draws": 0}),
        *({"learning_rate": -1}, {"learning_rate": math.inf}, {"learning_rate": "0.1"}, {"ema": 1.0}),
        *({"smoothing": 0}, {"smoothing": math.nan}, {"seed": -1}, {"warmup_steps": -1}, {"memory_cap": -5}),
        *({"precision": "half"}, {"cosine": "yes"}, {"validation_fraction": 1.0}),
    ],
)
def test_impossible_settings_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        TrainingConfig(**options)


def test_a_file_is_not_a_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file; pass a directory for the run"):
        train(run=tmp_path / "file")


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddf.progress.SECONDS_PER_LINE", 0)
    train(progress=True)
    shown = capsys.readouterr().err
    assert "0 DenoisingCoupling" in shown
    assert "2 SplitPrior" in shown
    assert "bits" in shown
    train(progress=False)
    assert capsys.readouterr().err == ""


def test_moments_are_restored_in_the_memory_format_of_their_parameters() -> None:
    """Fused steps on a GPU reject any other format."""
    net = torch.nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    steppers = []
    for _ in range(2):
        stepper = Stepper.__new__(Stepper)
        stepper.optimizers = {"adam": torch.optim.Adam(net.parameters())}
        steppers.append(stepper)
    net(torch.ones(1, 8, 4, 4)).sum().backward()
    steppers[0].optimizers["adam"].step()
    plain = {name: value.clone(memory_format=torch.contiguous_format) for name, value in steppers[0].moments().items()}
    steppers[1].load_moments(plain)
    found = steppers[1].optimizers["adam"].state[net.weight]["exp_avg"]
    assert found.stride() == net.weight.stride()
    assert torch.equal(found, steppers[0].optimizers["adam"].state[net.weight]["exp_avg"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system does not have /dev/full")
def test_an_error_names_the_folder_of_a_full_cache(tmp_path: Path) -> None:
    cache = Cache(4, (3,), 5, torch.device("cpu"), 0, tmp_path, "the data")
    cache.write(0, torch.zeros(2, 3, dtype=torch.uint8))
    assert cache.file is not None
    cache.file.close()
    cache.file = open("/dev/full", "wb", buffering=0)  # noqa: PTH123, SIM115
    with cache.file, pytest.raises(OSError, match=rf"cannot write the cache to {tmp_path}: No space left"):
        cache.write(0, torch.zeros(2, 3, dtype=torch.uint8))
