"""The presets of the paper's table, resumed runs and the report, with small nets."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from pathlib import Path

import numpy as np
import pytest
import torch

from ddf import architectures
from ddf.architectures import Channel, lattice_split
from ddf.cli.main import main
from ddf.data import DataError, DataSet, EightGaussians, Resampled
from ddf.experiments import (
    EXPERIMENTS,
    ROWS,
    Experiment,
    category_tables,
    collect,
    rows,
    run_experiment,
    write_report,
)
from ddf.experiments import results as runs
from ddf.layers import ChannelSplit, DenoisingCoupling, LatticeOrder, ModularCoupling, Shuffle
from ddf.layers.layer import Rearrangement
from ddf.spec import (
    DenoisingCouplingSpec,
    DenseNetSpec,
    FlowSpec,
    LatticeNetSpec,
    MLPSpec,
    ModularCouplingSpec,
    OrderedSplitSpec,
    SplitPriorSpec,
)
from ddf.training import TrainingConfig

SMALL = {
    "ddf": TrainingConfig(batch_size=256, max_epochs=3, patience=3, cosine=True, ema=0.99),
    "df": TrainingConfig(batch_size=256, max_epochs=2, patience=3, cosine=True, base_learning_rate=1e-2),
}


def small(model: str) -> Experiment:
    return replace(EXPERIMENTS["eight-gaussians", model], config=SMALL[model])


# ---- Presets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows.TABLE)
def test_both_models_have_nets_of_the_same_size(row: str) -> None:
    layers = {model: EXPERIMENTS[row, model].spec.layers for model in ("df", "ddf")}
    assert len(layers["df"]) == len(layers["ddf"])
    for ours, theirs in zip(layers["ddf"], layers["df"], strict=True):
        if isinstance(ours, DenoisingCouplingSpec):
            assert isinstance(theirs, ModularCouplingSpec)
            ours, theirs = replace(ours.net, **_plain(ours.net)), replace(theirs.net, **_plain(theirs.net))
        assert ours == theirs


def _plain(net: object) -> dict[str, str]:
    return {"activation": "relu"} if hasattr(net, "activation") else {}


@pytest.mark.parametrize(
    ("row", "tops"), [("mnist", [2] * 4), ("cityscapes", [4, 4, 4, 4, 8]), ("cityscapes-h6", [6] * 4 + [8])]
)
def test_h_follows_the_paper(row: str, tops: list[int]) -> None:
    layers = EXPERIMENTS[row, "ddf"].spec.layers
    assert [layer.top for layer in layers if isinstance(layer, DenoisingCouplingSpec)] == tops
    assert EXPERIMENTS[row, "ddf"].config.learning_rate == 1e-3


def test_split_priors_come_in_both_orders() -> None:
    for row, order in (
        ("mnist-split", "b"),
        ("mnist-split-a-faithful", "a"),
        ("cityscapes-split", "b"),
        ("cityscapes-split-a-faithful", "a"),
    ):
        for model in ("df", "ddf"):
            orders = {
                layer.factor_out for layer in EXPERIMENTS[row, model].spec.layers if isinstance(layer, SplitPriorSpec)
            }
            assert orders == {order}


def test_every_other_pixel_is_predicted_from_its_neighbors() -> None:
    """After each coupling, half as many pixels are untransformed, and they form a lattice."""
    pixels = [Channel(2 * (i // 4 % 2) + i // 2 % 2, 2 * (i // 8) + i % 2) for i in range(16)]
    given, moved = lattice_split(pixels)
    assert sorted(given + moved) == list(range(16))
    assert {(pixels[i].row + pixels[i].column) % 2 for i in given} == {0}
    pixels = [pixels[i] for i in given]
    given, moved = lattice_split(pixels)
    assert {pixels[i].row % 2 for i in given} == {0}
    assert {pixels[i].row % 2 for i in moved} == {1}
    shifted = [Channel(pixel.row + 1, pixel.column) for pixel in pixels]
    assert lattice_split(shifted) == (given, moved)
    with pytest.raises(ValueError, match="cannot split a single channel; squeeze first"):
        lattice_split([Channel(0, 0), Channel(0, 1, transformed=1)])


@pytest.mark.parametrize("coupling", ["denoising", "modular"])
def test_later_couplings_predict_from_transformed_channels(coupling: str) -> None:
    """No pixel is transformed twice, and almost all are transformed in the end."""
    for make, height, width in ((architectures.binary_mnist, 28, 28), (architectures.cityscapes, 32, 64)):
        spec = make(coupling, split_priors=False, shuffles="lattice", net=DenseNetSpec(blocks=1, hidden=8))
        touched = torch.zeros(1, 1, height, width, dtype=torch.long)
        for layer in spec.build().layers:
            if isinstance(layer, Rearrangement):
                touched = layer.arrange(touched)
            else:
                assert isinstance(layer, DenoisingCoupling | ModularCoupling)
                given, moved = layer.partition.split(touched)
                touched = layer.partition.merge(given, moved + 1)
                assert not moved.any(), "transformed twice"
        left = 2 if spec.num_classes == 8 else 1  # of 64 and of 16 channels
        assert (touched == 0).sum() == left * touched[0, 0].numel()


def test_random_shuffles_split_channels_in_half() -> None:
    spec = architectures.binary_mnist(split_priors=False)
    assert {layer.partition for layer in spec.layers if isinstance(layer, DenoisingCouplingSpec)} == {ChannelSplit()}
    with pytest.raises(ValueError, match="shuffles='other' must be 'random', 'lattice' or 'lattice, halves'"):
        architectures.binary_mnist(shuffles="other")


# ---- The paper's appendices, to the letter ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["df", "ddf"])
@pytest.mark.parametrize("row", rows.FAITHFUL)
def test_faithful_rows_train_as_in_the_paper(row: str, model: str) -> None:
    """Adam at 0.001 with batches of 64, and none of the later changes."""
    config = EXPERIMENTS[row, model].config
    plain = TrainingConfig(
        batch_size=64,
        learning_rate=1e-3,
        base_learning_rate=None,
        ema=None,
        warmup_steps=0,
        cosine=False,
        relaxation=0.0,
        **{name: getattr(config, name) for name in ("max_epochs", "patience", "draws")},
    )
    assert config == plain
    assert config.patience < config.max_epochs, "early stopping"
    assert not ROWS[row].augment


@pytest.mark.parametrize("model", ["df", "ddf"])
@pytest.mark.parametrize("row", rows.FAITHFUL)
def test_faithful_rows_have_the_layers_of_the_appendices(row: str, model: str) -> None:
    block = "shuffle coupling prior shuffle coupling prior" if "split" in row else "shuffle coupling shuffle coupling"
    first = "shuffle coupling" if row == "cityscapes-faithful" else block
    order = {
        "eight": "coupling",
        "mnist": f"squeeze {first} squeeze {block}",
        "cityscapes": f"squeeze {first} squeeze {block} squeeze {block}",
    }[row.split("-")[0]]
    kinds = {"Squeeze": "squeeze", "Shuffle": "shuffle", "SplitPrior": "prior"}
    layers = EXPERIMENTS[row, model].spec.layers
    assert " ".join(kinds.get(layer.builds.__name__, "coupling") for layer in layers) == order
    nets = {layer.net for layer in layers if hasattr(layer, "net")}
    expected = {
        "eight": MLPSpec(hidden=256, layers=4),
        "mnist": DenseNetSpec(blocks=8, hidden=512),
        "cityscapes": DenseNetSpec(blocks=15, hidden=512),
    }
    assert nets == {expected[row.split("-")[0]]}
    assert {layer.partition for layer in layers if hasattr(layer, "partition")} == {ChannelSplit()}
    assert {layer.factor_out for layer in layers if isinstance(layer, SplitPriorSpec)} <= {"a" if "-a-" in row else "b"}
    assert {layer.temperature for layer in layers if isinstance(layer, ModularCouplingSpec)} <= {0.1}
    tops = [layer.top for layer in layers if isinstance(layer, DenoisingCouplingSpec)]
    if model == "ddf":
        couplings = order.split().count("coupling")
        last = {"eight": 91, "mnist": 2, "cityscapes": 8}[row.split("-")[0]]
        assert tops == [4 if last == 8 else last] * (couplings - 1) + [last]


@pytest.mark.parametrize("row", [row for row in rows.FAITHFUL if "eight" not in row])
def test_faithful_shuffles_differ_by_seed_and_not_by_model(row: str) -> None:
    def orders(model: str, seed: int) -> list[list[int]]:
        text = EXPERIMENTS[row, model].spec.to_json()
        small = FlowSpec.from_json(re.sub('"blocks": [0-9]+, "hidden": 512', '"blocks": 1, "hidden": 8', text))
        return [layer.order.tolist() for layer in small.build(seed).layers if isinstance(layer, Shuffle)]

    drawn = [orders("ddf", seed) for seed in range(3)]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert all(order != sorted(order) for flow in drawn for order in flow)
    assert orders("df", 1) == drawn[1]


def test_maps_of_faithful_rows_are_not_mirrored(tmp_path: Path) -> None:
    maps = {name: np.full((2, 1, 32, 64), 7, np.uint8) for name in ("train", "val", "test")}
    np.savez(tmp_path / "maps.npz", **maps)
    sources: dict[str, str | PathLike[str] | None] = {"cityscapes": tmp_path / "maps.npz"}
    assert isinstance(runs.load_data("cityscapes", sources, augment="mirror")["train"], Resampled)
    assert isinstance(runs.load_data("cityscapes", sources, augment="")["train"], torch.Tensor)


# ---- Runs ------------------------------------------------------------------------------------------------------------


def test_a_small_row_from_training_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train both models of the first row with two seeds, and write the report."""
    monkeypatch.setattr(runs, "SAMPLES", 2)
    data = {seed: EightGaussians.data_set(40_000, 5000, 20_000, seed) for seed in (0, 1)}
    results = {
        (model, seed): run_experiment(small(model), seed, data[seed], tmp_path / "runs", device="cpu")
        for model in ("ddf", "df")
        for seed in (0, 1)
    }
    for seed in (0, 1):
        ours, theirs = results["ddf", seed], results["df", seed]
        assert EightGaussians.coupling_optimum() - 0.02 < ours.test_bits < 4.70
        assert ours.test_bits < theirs.test_bits < EightGaussians.factorized_optimum() - 0.1
        assert ours.samples.shape == (2000, 2)
        assert len(ours.curves["0 DenoisingCoupling"]) == 3

    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError("a finished run must not be repeated")

    monkeypatch.setattr(runs, "fit", forbidden)
    again = run_experiment(small("ddf"), 0, data[0], tmp_path / "runs", device="cpu")
    assert again == results["ddf", 0]
    changed = replace(small("ddf"), config=replace(SMALL["ddf"], max_epochs=1))
    with pytest.raises(ValueError, match=r"seed-0 holds a finished run whose settings differ"):
        run_experiment(changed, 0, data[0], tmp_path / "runs", device="cpu")
    place = tmp_path / "runs" / "eight-gaussians" / "df"
    copy = (place / "seed-0" / "result.json").read_bytes()
    for name, contents in (("seed-6", copy), ("seed-7", b""), ("seed-8", b"{}"), ("seed-0 (copy)", b"{}")):
        (place / name).mkdir()
        (place / name / "result.json").write_bytes(contents)
    with pytest.warns(UserWarning, match=r"skipped: the result in .*seed-[678] is invalid") as warned:
        found = collect(tmp_path / "runs")
    assert len(warned) == 3
    assert len(found) == 4
    written = write_report(found, tmp_path / "report", "ddf reproduce", {"eight-gaussians": data[0]})
    text = written.read_text()
    bits = [results["ddf", seed].test_bits for seed in (0, 1)]
    assert f"| 4.58 ± 0.02 | **{np.mean(bits):.4f} ± {np.std(bits, ddof=1):.4f} (2)** | 0, 1 |" in text
    assert "| 8 Gaussians | Discrete Flow (**not** with the current settings) |" in text
    assert "| binary MNIST | Discrete Flow | 0.37 ± 0.01 | not run yet |" in text
    assert "4.6076" in text
    for picture in ("eight-gaussians-samples.png", "eight-gaussians-curves.png"):
        assert f"]({picture})" in text
        assert (written.parent / picture).stat().st_size > 1000
    assert len(json.loads((written.parent / "results.json").read_text())) == 4


@pytest.mark.parametrize("data", rows.LADDER)
def test_each_step_of_the_ladder_makes_one_change(data: str) -> None:
    steps = [EXPERIMENTS[row, "ddf"] for row in rows.LADDER[data]]
    changes = []
    for before, after in pairwise(steps):
        config = {name for name, value in after.config.to_plain().items() if value != before.config.to_plain()[name]}
        changes.append((before.spec != after.spec, before.row.augment != after.row.augment, config))
    schedule = {"cosine", "max_epochs", "patience", "warmup_steps", "draws"}
    assert [change[0] for change in changes] == [True, True, False, False, False]
    assert changes[4] == (False, False, {"ema"})
    assert changes[3][2] <= schedule | {"relaxation"}  # not used by denoising flows
    assert changes[2] == ((False, True, set()) if data == "cityscapes" else (False, False, {"batch_size"}))


def test_variants_match_in_the_number_of_nets_or_parameters() -> None:
    def size(row: str, model: str) -> tuple[int, int]:
        spec = EXPERIMENTS[row, model].spec
        return sum(hasattr(layer, "net") for layer in spec.layers), parameters(spec)

    for row in ("mnist-split", "cityscapes-split"):
        nets, total = size(row, "ddf")
        assert size(row, "df")[0] == nets
        assert size(row, "ds") == size(row, "sp")
        assert size(row, "sp")[0] == nets // 2
        assert size(row, "sp-wide")[0] == nets // 2
        assert abs(size(row, "sp-wide")[1] / total - 1) < 0.02
        assert nets // 2 < size(row, "sp-fine")[0] < nets


def parameters(spec: FlowSpec) -> int:
    return sum(parameter.numel() for parameter in spec.build().parameters())


def test_the_bits_of_layers_add_up_to_the_score() -> None:
    net = DenseNetSpec(blocks=1, hidden=8)
    flow = architectures.binary_mnist("split", shuffles="lattice", net=net).build()
    x = torch.randint(2, (7, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    bits, layers = runs.score(flow, x, batch_size=3)
    np.testing.assert_allclose(bits, flow.bits_per_dim(x).numpy(), rtol=1e-6)
    assert list(layers) == [f"{i} DenoisingSplit" for i in (2, 4, 7, 9)] + ["base"]
    assert sum(layers.values()) == pytest.approx(bits.mean(), abs=1e-5)


def test_repeated_epochs_count_once(tmp_path: Path) -> None:
    lines = [("a", 1, 5.0), ("a", 2, 4.0), ("a", 2, 4.5), ("a", 3, 3.0), ("b", 1, 2.0)]
    entries = [{"layer": name, "epoch": epoch, "validation_bits": bits} for name, epoch, bits in lines]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*entries, {"done": True}])))
    assert runs._curves(tmp_path / "metrics.jsonl", 1) == {"a": [5.0, 4.5, 3.0], "b": [2.0]}


# ---- The command -----------------------------------------------------------------------------------------------------


def test_reproduce_names_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "mnistt"]) == 2
    assert (
        "row 'mnistt' does not exist; choose from ordered, ladder, ladder-mnist, ladder-cityscapes, ablations, eight"
        in capsys.readouterr().err
    )
    assert main(["reproduce", "cityscapes", "--runs", str(tmp_path), "--device", "cpu"]) == 1
    assert "https://www.cityscapes-dataset.com" in capsys.readouterr().err
    assert main(["reproduce", "mnist-split-h1", "--faithful"]) == 2
    assert "row 'mnist-split-h1-faithful' does not exist; choose from eight-gaussians-f" in capsys.readouterr().err
    assert main(["reproduce", "--seeds", "0"]) == 2
    assert main(["reproduce", "cityscapes-h1", "--model", "df"]) == 2
    assert "cityscapes-h1 has no experiment with --model df" in capsys.readouterr().err
    assert main(["reproduce", "eight-gaussians", "cityscapes-split", "--model", "sp", "--runs", str(tmp_path)]) == 1
    assert "ddf: eight-gaussians: no experiment with --model sp" in capsys.readouterr().err
    # Missing data is an error before anything is trained.
    assert main(["reproduce", "eight-gaussians", "cityscapes", "--runs", str(tmp_path)]) == 1
    assert not list(tmp_path.glob("*/*/*/run"))
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--model", "vae"])
    assert stop.value.code == 2


def test_groups_contain_what_their_tables_compare() -> None:
    assert {model for _, model in rows.GROUPS["ladder"]} == {"ddf"}
    for group in ("ladder", "ablations"):
        assert set(rows.GROUPS[group]) <= set(EXPERIMENTS)
    ours = {("cityscapes", "ddf"), ("cityscapes", "df"), ("mnist", "df"), ("eight-gaussians", "df")}
    assert ours <= set(rows.GROUPS["ablations"])
    assert ("mnist", "ddf") not in rows.GROUPS["ablations"]


def test_reproduce_runs_reports_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("eight-gaussians", "eight-gaussians-faithful"):
        quick = replace(EXPERIMENTS[name, "ddf"], config=TrainingConfig(max_epochs=1))
        monkeypatch.setitem(EXPERIMENTS, (name, "ddf"), quick)

    def load_data(name: str, sources: object, seed: int = 0, augment: str = "mirror") -> DataSet:
        return EightGaussians.data_set(2000, 500, 500, seed)

    monkeypatch.setattr(runs, "load_data", load_data)
    monkeypatch.setattr(runs, "SAMPLES", 1)
    typed = ["reproduce", "eight-gaussians", "--model", "ddf", "--seeds", "1", "--device", "cpu"]
    typed += ["--runs", str(tmp_path / "runs"), "--report", str(tmp_path / "report")]
    for _ in range(2):
        assert main(typed) == 0
        shown = capsys.readouterr().out
        assert "8 Gaussians, Discrete Denoising Flow, seed 0:" in shown
        assert f"Report: {tmp_path / 'report' / 'README.md'}" in shown
    assert "ddf reproduce eight-gaussians --model ddf" in (tmp_path / "report" / "README.md").read_text()
    assert ROWS["eight-gaussians"].departures["ddf"] in (tmp_path / "report" / "README.md").read_text()
    assert main([*typed, "--faithful"]) == 0
    capsys.readouterr()
    text = (tmp_path / "report" / "README.md").read_text()
    bits = [result.test_bits for result in collect(tmp_path / "runs")]
    row = f"| 8 Gaussians | Discrete Denoising Flow | 4.58 ± 0.02 | – | {bits[1]:.4f} (1) | {bits[0]:.4f} (1) |"
    assert row in text
    assert "| 8 Gaussians, faithful | Discrete Denoising Flow | 4.58 ± 0.02 |" in text


# ---- Tables of categories --------------------------------------------------------------------------------------------


def test_tables_of_categories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run all models on a small table with dependent columns, and write the report."""
    generator = np.random.default_rng(0)
    first = generator.integers(0, 3, 1000)
    symbols = np.stack([first, (first + generator.integers(0, 2, 1000)) % 3, generator.integers(0, 2, 1000)], axis=1)
    table = ("a", "b", "c"), (3, 3, 2), symbols.astype(np.uint8)
    monkeypatch.setattr(category_tables, "TABLES", {"mushroom": "Small"})
    monkeypatch.setattr(category_tables, "load_table", lambda name, folder: table)
    quick = replace(category_tables._LOCAL, max_epochs=8)
    monkeypatch.setattr(category_tables, "_LOCAL", quick)
    monkeypatch.setattr(category_tables, "_JOINT", replace(category_tables._JOINT, max_epochs=2))
    typed = ["reproduce", "--tables", "--runs", str(tmp_path / "runs"), "--report", str(tmp_path / "report")]
    assert main(typed) == 0
    shown = capsys.readouterr().out
    assert shown.count("nats per sample") == 5 * 6
    found = {method: [] for method in category_tables.METHODS}
    for result in category_tables.collect_tables(tmp_path / "runs"):
        found[result.method].append(result.nats)
    scores = {method: float(np.mean(nats)) for method, nats in found.items()}
    best = np.log(3) + 2 * np.log(2)
    assert scores["factorized"] == pytest.approx(2 * np.log(3) + np.log(2), abs=0.02)
    for method in ("joint", "sp", "ds"):
        assert best - 0.02 < scores[method] < best + 0.12
    assert best - 0.02 < scores["ddf"] < scores["factorized"]
    text = (tmp_path / "report" / "README.md").read_text()
    assert "## Tables of categories" in text
    for line in (r"a \| 1.\d+ \| 1.\d+", r"b \| 0.\d+ \| 1.\d+", r"c \| 0.\d+ \| 0.\d+"):
        assert re.search(rf"Mushroom, nats by column.*\| {line} \|", text, re.DOTALL)
    monkeypatch.setattr(category_tables, "fit", None)  # finished runs are not repeated
    assert main(typed) == 0
    monkeypatch.setattr(category_tables, "_LOCAL", replace(quick, max_epochs=9))
    assert main(typed) == 1
    assert "fold-0.json was run with other settings" in capsys.readouterr().err
    monkeypatch.setattr(category_tables, "_LOCAL", quick)
    damaged = tmp_path / "runs" / "tables" / "mushroom" / "sp" / "fold-3.json"
    damaged.write_text(damaged.read_text()[:-9])
    assert main(typed) == 1
    assert f"the result {damaged} is invalid" in capsys.readouterr().err
    with pytest.warns(UserWarning, match=r"skipped: the result .*fold-3.json is invalid"):
        assert len(category_tables.collect_tables(tmp_path / "runs")) == 5 * 6 - 1
    for wrong in (["mnist"], ["--model", "ds"], ["--seeds", "1"], ["--device", "cpu"], ["--faithful"]):
        assert main(["reproduce", "--tables", *wrong]) == 2
    assert main(["reproduce", "ladder", "--faithful"]) == 2
    assert "--faithful does not apply to ladder" in capsys.readouterr().err
    assert main(["reproduce", "--cop", str(tmp_path)]) == 2


# ---- Ordered flows


@pytest.mark.parametrize("row", rows.ORDERED)
def test_ordered_rows_have_nets_for_all_steps(row: str) -> None:
    experiment = EXPERIMENTS[row, "of"]
    (layer,) = experiment.spec.layers
    assert isinstance(layer, OrderedSplitSpec)
    assert isinstance(layer.net, LatticeNetSpec)
    assert 1 << layer.net.levels == layer.order.stride
    config = experiment.config
    assert config.max_epochs % config.validate_every == 0
    assert config.patience >= config.max_epochs  # a cosine should end


def test_data_sets_are_found_by_name(tmp_path: Path) -> None:
    for name, size in (("small", (32, 64)), ("large", (128, 256))):
        ids = np.zeros((2, 1, *size), np.uint8)
        np.savez(tmp_path / f"{name}.npz", train=ids, val=ids, test=ids)
    sources = {"cityscapes": tmp_path / "small.npz", "cityscapes-128x256": tmp_path / "large.npz"}
    assert runs.load_data("cityscapes-128x256", sources).shape == (1, 128, 256)
    assert runs.load_data("cityscapes", sources, augment="vary").shape == (1, 32, 64)
    with pytest.raises(DataError, match=r"\(…, 1, 128, 256\) is expected"):
        runs.load_data("cityscapes-128x256", {"cityscapes": tmp_path / "small.npz"})
    with pytest.raises(FileNotFoundError, match="contains neither binarized_mnist_train"):
        runs.load_data("static-mnist", {"static-mnist": tmp_path})


def test_the_bits_of_a_layer_that_emits_several_times_are_added() -> None:
    spec = architectures.ordered(2, (1, 8, 8), LatticeNetSpec(planes=(64,), blocks=(1,), width=8), LatticeOrder(4))
    x = torch.randint(2, (6, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    bits, layers = runs.score(spec.build(), x, batch_size=4)
    assert layers == {"0 OrderedSplit": pytest.approx(60 / 64), "base": pytest.approx(4 / 64)}
    np.testing.assert_allclose(bits, 1, rtol=1e-5)


def test_curves_hold_the_epochs_that_were_validated(tmp_path: Path) -> None:
    entries = [{"layer": "a", "epoch": epoch, "train_bits": 1.0} for epoch in range(1, 8)]
    for entry in (entries[2], entries[5], entries[6]):  # every third epoch, and the last one
        entry["validation_bits"] = float(entry["epoch"])
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, entries)))
    assert runs._curves(tmp_path / "metrics.jsonl", 3) == {"a": [3.0, 6.0, 7.0]}
