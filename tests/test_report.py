"""The report: tables, intervals of differences, statements that follow from the runs, pictures."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from ddf.cli.main import main
from ddf.errors import DdfError
from ddf.experiments import EXPERIMENTS, write_report
from ddf.experiments.differences import Difference, published_difference, score_difference
from ddf.experiments.report_ordered import read_causal
from ddf.experiments.results import Result, Times, read_times


def fake(row: str, model: str, seed: int, bits: float, sample_bits: np.ndarray | None = None) -> Result:
    """Return a made-up result."""
    experiment = EXPERIMENTS[row, model]
    return Result(
        row=row,
        model=model,
        seed=seed,
        test_bits=bits,
        test_error=0.001,
        validation_bits=bits + 0.01,
        parameters=1_000_000,
        train_seconds=60.0,
        parts=[],
        curves={},
        machine={"ddf": "0", "torch": "0", "python": "0", "device": "none"},
        settings=replace(experiment.config, seed=seed).to_plain(),
        spec=json.loads(experiment.spec.to_json()),
        layers={"2 SplitPrior": bits / 2, "base": bits / 2},
        sample_bits=sample_bits,
    )


def test_differences_are_paired_by_test_sample() -> None:
    """Hard samples are hard for both models, so the difference is more precise than the scores."""
    generator = np.random.default_rng(0)
    hard = generator.random(400)
    gaps = generator.normal(-0.01, 0.002, 400)
    first = [fake("mnist-split", "ds", seed, (hard + gaps).mean(), hard + gaps) for seed in range(3)]
    second = [fake("mnist-split", "df", seed, hard.mean(), hard) for seed in range(3)]
    found = score_difference(first, second)
    assert found.mean == pytest.approx(gaps.mean())
    assert found.margin == pytest.approx(1.96 * gaps.std(ddof=1) / 20)
    assert re.fullmatch(r"-0\.0\d+ ± 0\.000\d\d", str(found))
    without = [fake("mnist-split", "df", seed, hard.mean()) for seed in range(3)]
    assert score_difference(first, without).margin == pytest.approx(1.96 * 2**0.5 * 0.001)
    assert score_difference(first, [*second[:2], without[2]]).margin == pytest.approx(1.96 * 2**0.5 * 0.001)


def test_differences_are_paired_by_seed() -> None:
    """What the seed determines affects both models, so the difference is more precise than the scores."""
    hard = np.linspace(0, 1, 50)
    first = [fake("mnist-split", "ds", seed, 0.5 + bits, hard + bits) for seed, bits in ((0, 0.3), (1, 0.1), (2, 0.2))]
    second = [fake("mnist-split", "df", seed, 0.51 + bits, hard + 0.01 + bits) for seed, bits in ((2, 0.2), (0, 0.3))]
    found = score_difference(first, second)  # runs 0 and 2 are paired; run 1 has no partner
    assert found.mean == pytest.approx(-0.01)
    assert found.margin == pytest.approx(0)
    assert score_difference(first[:1], second).margin is None
    assert str(score_difference(first[:1], second[1:])) == "-0.0100"


def test_margins_have_two_significant_digits() -> None:
    assert str(Difference(-0.82717, 0.0407)) == "-0.827 ± 0.041"
    assert str(Difference(0.000314, 0.00048)) == "+0.00031 ± 0.00048"
    assert str(Difference(-0.3, 0.1201)) == "-0.30 ± 0.12"
    assert str(Difference(0.3, 0.0000001)) == "+0.30000 ± 0.00000"
    assert str(published_difference((0.16, 0.01), (0.17, 0.01))) == "-0.010 ± 0.023"


def test_intervals_of_differences_cover_the_truth() -> None:
    """With three seeds of each model, the interval covers the true difference 95 % of the time."""
    generator = np.random.default_rng(0)
    covered = {"seeds": 0, "samples": 0, "shared": 0}
    for _ in range(400):
        hard = generator.normal(0, 1, 300)
        for case in covered:
            by_seed, by_sample = {"samples": (0.0, 0.05), "seeds": (0.02, 0.001), "shared": (0.002, 0.01)}[case]
            nets = generator.normal(0, 0.1, 3) if case == "shared" else np.zeros(3)
            parts = []
            for model, shift in (("ds", -0.3), ("sp", 0.0)):
                own = hard + generator.normal(shift, by_sample, 300)
                bits = [own + nets[seed] + generator.normal(0, by_seed) for seed in range(3)]
                parts.append([fake("mnist-split", model, seed, bits[seed].mean(), bits[seed]) for seed in range(3)])
            found = score_difference(*parts)
            assert found.margin is not None
            covered[case] += abs(found.mean + 0.3) <= found.margin
    assert all(0.92 < count / 400 < 0.99 for count in covered.values()), covered


def test_a_report_replaces_only_reports(tmp_path: Path) -> None:
    found = [fake("mnist", "ddf", 0, 0.2)]
    write_report(found, tmp_path, "ddf reproduce", {})
    write_report(found, tmp_path, "ddf reproduce", {})
    (tmp_path / "README.md").write_text("# Results\n\nMine.\n")
    with pytest.raises(ValueError, match=r"README.md is not a report of this command"):
        write_report(found, tmp_path, "ddf reproduce", {})
    assert main(["reproduce", "eight-gaussians", "--report", str(tmp_path), "--runs", str(tmp_path / "runs")]) == 1
    assert (tmp_path / "README.md").read_text() == "# Results\n\nMine.\n"


def test_flows_that_learned_nothing_are_listed(tmp_path: Path) -> None:
    """A Discrete Flow is compared with the base alone in the same row, run by run."""
    scores = {"mnist": (0.2, 0.397, 0.41), "cityscapes": (0.39, 0.39, 0.39), "mnist-faithful": (0.4, 0.4, 0.4)}
    found = [fake(row, "base", 0, 0.4) for row in scores]
    scores["mnist-hot"] = (0.5, 0.2, 0.3)
    found += [fake(row, "df", seed, bits) for row, runs in scores.items() for seed, bits in enumerate(runs)]
    lines = write_report(found, tmp_path, "", {}).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if "learned nothing" in line)
    assert [line for line in lines[start:] if line.startswith("- ")][:5] == [
        "- binary MNIST, faithful: 0.4000, 0.4000, 0.4000",
        "- binary MNIST, ours: 0.3970, 0.4100 (other runs: 0.2000)",
        "- binary MNIST: temperature 1 instead of 0.1: 0.5000 (other runs: 0.2000, 0.3000)",
        "- Cityscapes, in the paper: 1.46 ± 0.00",
        "- Cityscapes, split priors, in the paper: 0.65 ± 0.03",
    ]
    found = [fake("mnist", "base", 0, 0.4), fake("mnist", "df", 0, 0.2)]
    assert "learned nothing" not in write_report(found, tmp_path, "", {}).read_text()


def test_measured_times_replace_those_of_the_runs(tmp_path: Path) -> None:
    parts = [{"steps": 1000}, {"steps": 3000}]
    found = [replace(fake("mnist-split", model, 0, 0.3), parts=parts) for model in ("df", "sp")]
    assert "| 60 s |" in write_report(found, tmp_path, "", {}).read_text()
    keys = ("mnist-split df", "mnist-split sp")
    times = Times("chip", {key: [0.005, 0.01] for key in keys}, dict.fromkeys(keys, 0.0125))
    (tmp_path / "times.json").write_text(json.dumps(asdict(times)))
    text = write_report(found, tmp_path, "", {}, times=read_times(tmp_path)).read_text()
    assert "| 35 s | 12.5 ms |" in text
    assert "one flow alone on one chip" in text
    (tmp_path / "times.json").write_text('{"device": 1')
    with pytest.raises(DdfError, match=r"times.json is invalid"):
        read_times(tmp_path)


def test_the_report_has_all_sections(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 50)
    found = [fake(row, model, seed, 0.3 + seed / 100, x + seed) for row, model in EXPERIMENTS for seed in range(3)]
    text = write_report(found, tmp_path, "ddf reproduce", {}).read_text()
    assert "| binary MNIST | Discrete Flow | 0.37 ± 0.01 | – | 0.3100 ± 0.0100 | 0.3100 ± 0.0100 |" in text
    for heading in (
        "The denoising flow minus the Discrete Flow",
        "What denoising is for",
        "From faithful to ours: binary MNIST without split priors",
        "From faithful to ours: Cityscapes without split priors",
        "The number of ranked classes",
        "The number of couplings",
        "The Discrete Flow baseline",
        "Bits by layer",
        "All experiments",
        "What differs from the paper",
    ):
        assert f"\n## {heading}\n" in text
    assert (
        "| binary MNIST, split priors | denoising splits | 4 | 1.0 M | 12 | **0.3100 ± 0.0100** "
        "| +0.00000 ± 0.00000 | +0.00000 ± 0.00000 | 60 s |" in text
    )
    assert "| binary MNIST | base alone, without layers |  | – | 0.3100 ± 0.0100 | 0.3100 ± 0.0100 |" in text
    assert "| + mirrored maps | 1.0 M | 0.3200 ± 0.0100 | 0.3100 ± 0.0100 | +0.00000 ± 0.00000 |" in text
    assert "| binary MNIST | -0.140 ± 0.023 | +0.00000 ± 0.00000 | +0.00000 ± 0.00000 |" in text
    assert "| 6 | 0.3200 ± 0.0100 | 0.3100 ± 0.0100 |" in text
    assert "| | plain relaxation | 0.3200 ± 0.0100 | 0.3100 ± 0.0100 |" in text
    assert "paper's flow" not in text
    for picture in re.findall(r"\]\((\S+\.png)\)", text):
        assert (tmp_path / picture).stat().st_size > 1000


def test_maps_are_drawn_in_their_colors(tmp_path: Path) -> None:
    from PIL import Image

    from ddf.viz import map_grids

    colors = ((255, 0, 0), (0, 0, 255))
    maps = {"left": np.zeros((3, 1, 4, 8), np.uint8), "right": np.ones((5, 1, 4, 8), np.uint8)}
    map_grids(maps, colors, tmp_path / "x.png", names=("red", "blue"))
    pixels = np.asarray(Image.open(tmp_path / "x.png").convert("RGB")).reshape(-1, 3)
    for color in colors:
        assert (pixels == color).all(1).sum() > 1000


# ---- Ordered flows


def test_ordered_flows_are_compared_with_everything_else(tmp_path: Path) -> None:
    found = [fake("cityscapes-ordered", "of", seed, 0.2 + 0.01 * seed) for seed in range(3)]
    found = [replace(one, parts=[{"steps": 20_000}], train_seconds=600.0, sample_seconds=0.002) for one in found]
    found = [replace(one, shifted_bits=one.test_bits + 0.1) for one in found]
    assert "Ordered flows" not in write_report([fake("mnist", "df", 0, 0.3)], tmp_path / "none", "", {}).read_text()
    facts = {"bits": 0.3, "actual_bits": 0.31, "parameters": 1000, "train_seconds": 60.0, "device": "2 CPU threads"}
    (tmp_path / "causal.json").write_text(json.dumps({"cityscapes": facts}))
    text = write_report(
        [*found, fake("cityscapes", "ddf", 0, 0.5)], tmp_path, "", {}, causal=read_causal(tmp_path)
    ).read_text()
    assert (
        "| Cityscapes | **0.2100 ± 0.0100** | 0.2200 ± 0.0100 | 1.0 M | 20,000 | 10.0 min | 2.0 ms | 0.3100 "
        "| multinomial diffusion (bound) 0.3040 |" in text
    )
    assert "shifted at random, as in other published experiments, Cityscapes scores 0.3100 ± 0.0100." in text
    assert (tmp_path / "likelihoods.png").stat().st_size > 10_000
    times = Times("device", {"cityscapes-ordered of": [0.009]}, {})
    assert "| 20,000 | 3.0 min |" in write_report(found, tmp_path, "", {}, times=times).read_text()


def test_invalid_scores_of_causal_flows_are_reported(tmp_path: Path) -> None:
    assert read_causal(tmp_path) == {}
    for text in ("[", "[]", '{"mnist": {"bits": 1}}'):
        (tmp_path / "causal.json").write_text(text)
        with pytest.raises(DdfError, match=r"causal.json is invalid .* delete it"):
            read_causal(tmp_path)


def test_samples_of_ordered_flows_are_shown_next_to_those_of_the_paper(tmp_path: Path) -> None:
    samples = np.zeros((4, 1, 28, 28), np.uint8)
    found = [replace(fake("mnist-ordered", "of", 0, 0.1), samples=samples, curves={"0 OrderedSplit": [0.3, 0.2]})]
    write_report(found, tmp_path, "", {})
    alone = (tmp_path / "mnist-ordered-samples.png").stat().st_size
    write_report([*found, replace(fake("mnist", "ddf", 0, 0.2), samples=samples)], tmp_path, "", {})
    assert (tmp_path / "mnist-ordered-samples.png").stat().st_size > alone
    assert (tmp_path / "mnist-ordered-curves.png").exists()
