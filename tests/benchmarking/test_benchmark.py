"""Rows of a benchmark: who is timed, in which order, and every figure by a line of NumPy beside it."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import workers
from benchmarks.measure import (
    BenchmarkError,
    benchmark,
    cross_entropy,
    fastest,
    in_turn,
    logits_difference,
    loss_difference,
    ratio,
    spread,
)
from benchmarks.request import PEERS, TASKS, Benchmark, Peer
from benchmarks.results import FIELDS

STAND_IN = Path(__file__).with_name("stand_in_peer.py")
SMALL = {"model": ("Ti/16",), "image_size": (32,), "batch": (1, 3), "runners": ("model",), "rounds": 4}


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Stand-ins in place of ours and as peers; gives the calls that they have answered."""
    for name in ("right-9", "right-3", "wrong-1", "absent-1", "crash-1"):
        monkeypatch.setitem(PEERS, name, Peer(STAND_IN, "nothing", TASKS, "timm", variable=None))
    monkeypatch.setattr(workers, "OWN_FILE", STAND_IN)
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "calls"))

    def read():
        return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return read


def rows_of(**asked):
    return list(benchmark(Benchmark(**SMALL | asked)))


def test_rows_have_every_field_and_are_one_for_each_runner_and_case(log):
    rows = rows_of(against=("right-9", "right-3"), precision=("float32", "bfloat16"), task=("inference", "train"))
    assert all(set(row) == {*FIELDS, "left_out"} for row in rows)
    cases = [(row["runner"], row["batch"], row["precision"], row["task"]) for row in rows]
    assert len(set(cases)) == len(cases) == 3 * 2 * 2 * 2
    assert {row["left_out"] for row in rows} == {None}
    one = rows[0]
    assert (one["runner"], one["side"], one["model"], one["image_size"]) == ("ours-model", "ours", "Ti/16", 32)
    assert (one["import_s"], one["build_s"], one["load_s"], one["first_s"]) == (0.25, 0.5, 0.125, 1.0)
    assert (one["peak_memory"], one["import_memory"], one["versions"]) == (5000, 1000, "stand-in 1.0")
    for row in rows:
        assert row["images_per_s"] == pytest.approx(row["batch"] / row["median_s"])
        assert (row["loss_difference"] is None) == (row["task"] == "inference")
        assert row["fastest_peer"] == "right-3"


def test_calls_take_turns_forth_and_back_one_at_a_time_on_their_cores(log):
    rows_of(against=("right-9", "right-3"), batch=(1,))
    calls = log()
    once, forth = ["ours-model", "right-9", "right-3"], ["ours-model", "right-9", "right-3"]
    assert [call[0] for call in calls] == once + forth + forth[::-1] + forth + forth[::-1]
    assert all(before[2] < after[1] for before, after in itertools.pairwise(calls))
    assert {(call[3], call[4]) for call in calls} == {("1", True)}


def test_ratios_are_medians_over_rounds_of_the_same_round():
    rng = np.random.default_rng(0)
    taken = {name: rng.uniform(1, 2, 7) * scale for name, scale in (("ours-model", 1), ("a", 3), ("b", 0.5))}
    assert fastest(taken, ["a", "b"]) == "b"
    assert fastest(taken, []) is None
    assert ratio(taken["ours-model"], taken["b"]) == pytest.approx(np.median(taken["ours-model"] / taken["b"]))
    low, middle, high = np.percentile(taken["a"], [25, 50, 75])
    assert spread(taken["a"]) == pytest.approx((high - low) / middle)
    assert spread([2.0]) == 0


def test_rows_hold_these_ratios(log, monkeypatch):
    kept = {}

    def keep(timed, rounds):
        kept.update({name: [worker.step() for _ in range(rounds)] for name, worker in timed.items()})
        return kept

    monkeypatch.setattr("benchmarks.measure.measured", keep)
    rows = {row["runner"]: row for row in rows_of(against=("right-9", "right-3"), batch=(3,))}
    for name, row in rows.items():
        assert row["median_s"] == np.median(kept[name])
        expected = np.median(np.array(kept[name]) / np.array(kept["right-3"]))
        assert row["ratio_to_fastest_peer"] == pytest.approx(expected)
    assert rows["right-3"]["ratio_to_fastest_peer"] == 1
    assert 0 < rows["ours-model"]["ratio_to_fastest_peer"] < 1


@pytest.mark.parametrize("task", ["inference", "train"])
def test_peer_that_computes_something_else_is_named_and_not_timed(log, task):
    rows = {row["runner"]: row for row in rows_of(against=("wrong-1", "right-3"), batch=(3,), task=(task,))}
    wrong = rows["wrong-1"]
    assert "computes something else" in wrong["left_out"]
    assert wrong["median_s"] is wrong["ratio_to_fastest_peer"] is None
    field = "loss_difference" if task == "train" else "logits_difference"
    assert 1e-4 < wrong[field] < 0.1
    assert f"{wrong[field]:.2g}" in wrong["left_out"]
    assert "wrong-1" not in [call[0] for call in log()]
    assert rows["ours-model"]["fastest_peer"] == "right-3"


def test_peer_that_is_absent_or_ends_is_named_with_what_to_do(log):
    rows = {row["runner"]: row for row in rows_of(against=("absent-1", "crash-1", "right-3"), batch=(1,))}
    assert "Run `pip install nothing`" in rows["absent-1"]["left_out"]
    assert "with code 3" in rows["crash-1"]["left_out"]
    assert rows["ours-model"]["ratio_to_fastest_peer"] > 0


@pytest.mark.parametrize("task", ["build", "load"])
def test_building_and_loading_are_a_fresh_process_each_time(log, task):
    rows = {row["runner"]: row for row in rows_of(against=("right-9", "crash-1"), task=(task,), rounds=2)}
    assert (rows["ours-model"]["median_s"], rows["right-9"]["median_s"]) == (0.001, 0.009)
    assert rows["ours-model"]["ratio_to_fastest_peer"] == pytest.approx(1 / 9)
    assert (rows["ours-model"]["batch"], rows["ours-model"]["images_per_s"]) == (1, None)
    assert "failed" in rows["crash-1"]["left_out"]


def test_work_is_that_of_the_layers(log):
    """Ti/16 at 32 x 32: 5 tokens of 192, MLP 768, 12 blocks, the last one for the class token only."""
    (row,) = rows_of(batch=(3,), task=("train",))
    dense = 2 * 192 * 192
    block = 4 * 5 * dense + 2 * 2 * 5 * 5 * 192 + 2 * 2 * 5 * 192 * 768
    last = (2 * 1 + 2 * 5) * dense + 2 * 2 * 1 * 5 * 192 + 2 * 2 * 1 * 192 * 768
    forward = 2 * 4 * 768 * 192 + 11 * block + last + 2 * 192 * 1000
    assert row["flops"] == 3 * 3 * forward  # three images, three passes


def test_model_that_cannot_be_made_is_an_error(log, monkeypatch, tmp_path):
    (tmp_path / "broken.py").write_text("raise SystemExit(4)")
    monkeypatch.setattr(workers, "OWN_FILE", tmp_path / "broken.py")
    with pytest.raises(BenchmarkError, match="code 4"):
        rows_of()


def test_agreement_is_measured_in_deviations_and_shares():
    wanted = np.array([[0.0, 2.0], [4.0, 6.0]])
    assert logits_difference(wanted + 0.5 * np.eye(2), wanted) == pytest.approx(0.5 / np.sqrt(5))
    assert logits_difference(wanted[:1], wanted) == float("inf")
    assert logits_difference(wanted * np.nan, wanted) == float("inf")
    assert loss_difference(1.1, 1.0) == pytest.approx(0.1)
    assert loss_difference(float("nan"), 1.0) == float("inf")
    expected = -np.mean([np.log(1 / (1 + np.exp(2))), np.log(np.exp(2) / (1 + np.exp(2)))])
    assert cross_entropy(wanted + 1000, np.array([0, 1])) == pytest.approx(expected)


def test_order_ends_where_it_began():
    assert in_turn(["a", "b", "c"], 3) == [*"abc", *"cba", *"abc"]


def test_peer_without_the_precision_is_named_and_does_not_run(log):
    rows = {row["runner"]: row for row in rows_of(against=("right-3",), batch=(3,), precision=("int8",))}
    assert rows["right-3"]["left_out"] == "right-3 has no int8 here"
    assert rows["ours-model"]["median_s"] > 0
    assert {call[0] for call in log()} == {"ours-model"}
