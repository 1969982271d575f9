"""Rows in files: what is added and what is refused. The tables of the pages are those of `benchmarks/results`."""

import csv
import io
import sys

import pytest
from conftest import ROOT

from benchmarks import embedding, encoders, photos, resolution, results, scale, tables
from benchmarks.results import FIELDS, append, commit, machine, make_ready, read
from benchmarks.text import __main__ as text_benchmark

sys.path.append(str(ROOT / "examples"))
RESULTS = ROOT / "benchmarks" / "results"


def row(**given):
    usual = dict.fromkeys(FIELDS)
    usual |= {"date": "2026-01-02T03:04:05Z", "machine": "a, processor", "cores": 2, "avx512_bf16": True, "amx": False}
    usual |= {"runner": "ours-model", "side": "ours", "model": "B/16", "image_size": 224, "batch": 8, "threads": 1}
    usual |= {"precision": "float32", "task": "inference", "optimizer": "adamw", "rounds": 5, "backend": "tensorflow"}
    usual |= {"activation": "gelu_tanh", "device": "cpu", "median_s": 0.25, "spread": 0.031, "fastest_peer": "timm"}
    return usual | {"ratio_to_fastest_peer": 0.87654321, "peak_memory": 3 * 2**29, "versions": "a 1; b 2"} | given


def peer(**given):
    return row(**{"runner": "timm", "side": "peer", "ratio_to_fastest_peer": 1.0, "peak_memory": 2**29} | given)


def test_rows_come_back_as_they_were_added(tmp_path):
    folder = tmp_path / "new" / "results"
    make_ready(folder)
    first, second, third = row(), row(task="train", batch=1, accelerator="H"), row(runner="timm", side="peer")
    assert [append(folder, each).name for each in (first, second)] == ["inference.csv", "train.csv"]
    before = (folder / "inference.csv").read_text()
    (folder / "parity.csv").write_text("what,difference\nlogits,1e-6\n")  # of another kind
    append(folder, third)
    assert (folder / "inference.csv").read_text().startswith(before)
    expected = [given | {"ratio_to_fastest_peer": 0.876543} for given in (first, third, second)]  # six digits
    assert read(folder) == expected
    with (folder / "train.csv").open() as file:
        assert next(csv.DictReader(file))["machine"] == "a, processor"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("date,runner\n", "missing: commit"),
        (",".join([*FIELDS, "more"]) + "\n", "missing: none; unknown: more"),
        ("", "missing: date"),
        (",".join(FIELDS) + "\n2026", "missing: none"),  # a line that was cut
    ],
)
def test_file_of_another_kind_is_refused_and_left_as_it_is(tmp_path, header, said):
    (tmp_path / "train.csv").write_text(header)
    for refused in (lambda: append(tmp_path, row(task="train")), lambda: read(tmp_path), lambda: make_ready(tmp_path)):
        with pytest.raises(ValueError, match=rf"train\.csv, {said}"):
            refused()
    assert (tmp_path / "train.csv").read_text() == header


def test_machine_is_read_from_the_facts_of_the_system():
    text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx512_bf16 amx_bf16\n\nprocessor\t: 1\n"
    found = machine(text)
    assert (found["machine"], found["avx512_bf16"], found["amx"]) == ("Some CPU @ 2 GHz", True, True)
    assert machine("model name: x\nflags: avx512f amx_tile\n")["amx"] is False
    generic = machine("vendor_id: Us\ncpu family: 25\nmodel: 17\nmodel name: AMD EPYC\n")
    assert generic["machine"] == "AMD EPYC, family 25 model 17"
    assert machine("")["machine"]


def test_commit_is_that_of_the_checkout_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.results.ROOT", tmp_path)
    assert commit() == ""


# Tables


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_tables_of_a_page_are_those_of_the_results(page):
    assert tables.with_tables(page.read_text()) == page.read_text(), "run python -m benchmarks.tables"


def test_every_kind_of_table_stands_on_a_page():
    text = "".join(page.read_text() for page in tables.PAGES)
    assert [kind for kind in tables.TABLES if f"<!-- table: {kind}" not in text] == []


def test_headline_has_the_newest_rows_of_its_cases(monkeypatch, tmp_path):
    case = {"batch": 1, "image_size": 224}
    old, engine = {"date": "2026-01-01T00:00:00Z"}, {"runner": "ours-auto", "engine": "openvino", "median_s": 0.1}
    rows = [row(**case), peer(**case), row(**engine, **case, precision="bfloat16"), row(**old, **case, median_s=9.0)]
    rows += [row(**case, machine="another", ratio_to_fastest_peer=2.0)]
    for each in rows:
        append(tmp_path, each)
    monkeypatch.setattr(tables, "read", lambda: read(tmp_path))
    _, _, *lines = tables.headline("a, processor").splitlines()
    assert lines == [
        "| inference | 1 | bfloat16 | 1 | `accelerate`: openvino | timm | 0.88 |",
        "| inference | 1 | float32 | 1 | `model` | timm | 0.88 |",
    ]


def test_table_of_speed_fits_a_screen_and_says_shares_in_words():
    _, _, *lines = tables.speed().splitlines()
    assert len(lines) <= 20
    assert [tables._faster(share) for share in (0.935, 1.256, 0.29, 2.59)] == [
        "6 % faster", "26 % slower", "3.4 times as fast", "2.6 times as slow",
    ]  # fmt: skip


def test_growth_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    tables.draw_growth(tmp_path / "new.png")
    assert (tmp_path / "new.png").read_bytes().startswith(b"\x89PNG")


def test_scale_writes_what_is_there():
    variants, text = ("Ti/16", "R+Ti/16"), io.StringIO()
    settings = {"optimizer": "sgd", "image_size": 224, "batch": 8, "tflops": 400, "bandwidth_gb_per_s": 100}
    scale.write_csv(scale.table(variants, scale.DEVICES), text, **settings)
    lines = (RESULTS / "scale.csv").read_text().splitlines()
    starts = ("variant,", *(f"{variant}," for variant in variants))
    assert text.getvalue().splitlines() == [line for line in lines if line.startswith(starts)]


def test_studies_are_written_with_these_columns_and_words(tmp_path):
    paper = pytest.importorskip("paper_on_digits")
    with (RESULTS / "studies.csv").open(newline="") as file:
        assert tuple(next(csv.reader(file))) == paper.FIELDS
    rows = {("none", "stem"): [0.5, 0.6], ("learned", "stem"): [0.7, 0.81], ("learned", "blocks"): [0.7, 0.8]}
    best, other = (list(paper.summaries("positions", rows))[index] for index in (1, 2))
    # Student's t with one degree of freedom is 12.706 at 97.5 %; the deviation of two numbers is their difference / √2.
    assert best["accuracy"] == "0.755"
    assert float(best["accuracy_half"]) == pytest.approx(12.7062 * 0.11 / 2, abs=6e-4)
    assert (best["below_best"], best["verdict"], best["settings"]) == ("", "best", "kind=learned; where=stem")
    assert other["below_best"] == "0.005"
    assert float(other["below_best_half"]) == pytest.approx(12.7062 * 0.01 / 2, abs=6e-4)
    assert (other["verdict"], other["seeds"]) == ("not shown", 2)
    paper.write_csv({"positions": rows, "masked patches": {("pre-trained",): [0.5, 0.5]}}, tmp_path / "studies.csv")
    lines = (tmp_path / "studies.csv").read_text().splitlines()[1:]
    assert lines[2:] == [",".join(map(str, other.values())), "masked patches,start=pre-trained,2,0.500,0.000,,,best"]


def test_images_of_every_size_are_told_by_their_newest_row(tmp_path, monkeypatch):
    usual = dict.fromkeys(resolution.FIELDS) | {"machine": "a", "task": "inference", "image_size": 1024, "batch": 1}
    usual |= {"precision": "float32", "memory": 2**30, "timm_memory": 2**29, "runner": "ours-model"}
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    for date, ratio in (("2026-01-01", 2.5), ("2026-01-02", 0.8)):
        results.append_to(tmp_path / "resolution.csv", resolution.FIELDS, usual | {"date": date, "ratio": ratio})
    engine = {"date": "2026-01-01", "ratio": 0.9, "runner": "ours-openvino"}
    results.append_to(tmp_path / "resolution.csv", resolution.FIELDS, usual | engine)
    expected = [
        "| inference | 1,024 | 1 | float32 | `model` | 20 % faster | 1.00 | 0.50 |",
        "| inference | 1,024 | 1 | float32 | `accelerate`: openvino | 10 % faster | 1.00 | 0.50 |",
    ]
    assert tables.resolution("a").splitlines()[2:] == expected


def test_photos_are_told_by_their_newest_row_and_processor_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    for date, runner, ratio in (("2026-01-02", photos.RUNNERS[1], 1.5), ("2026-01-03", photos.RUNNERS[0], 0.9)):
        row = dict.fromkeys(photos.FIELDS) | {"date": date, "machine": "a", "runner": runner, "photos": 16, "ratio": 3}
        row |= {"processor_s": 9.04, "timm_processor_s": 10, "processor_ratio": ratio}
        results.append_to(tmp_path / "photos.csv", photos.FIELDS, row)
    assert [line.split(" | ")[2:] for line in tables.photos("a").splitlines()[2:]] == [
        ["10 % faster", "9.0", "10.0 |"],
        ["50 % slower", "9.0", "10.0 |"],
    ]
    assert set(photos.RUNNERS) == set(tables._PHOTO_RUNNERS)


def test_embedding_is_told_by_the_newest_row_of_each_case(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    usual = dict.fromkeys(embedding.FIELDS) | {"machine": "a", "engine": "Ray Data", "workers": 2, "format": "folder"}
    for date, seconds in (("2026-01-03", 8.0), ("2026-01-02", 2.0)):
        new = usual | {"date": date, "photos": 400, "processor_s": seconds, "memory": 2**29}
        results.append_to(tmp_path / "embedding.csv", embedding.FIELDS, new)
    assert tables.embedding("a").splitlines()[2:] == ["| Ray Data | folder | 2 | 50 | 8 | 0.50 |"]


def test_texts_are_told_by_the_newest_row_of_each_task(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    usual = dict.fromkeys(text_benchmark.FIELDS, "") | {"machine": "a", "task": "prompts"}
    for date, seconds in (("2026-01-03", 8.0), ("2026-01-02", 2.0)):
        new = usual | {"date": date, "texts": 4000, "processor_s": seconds, "peer_processor_s": 16.0, "ratio": 0.5}
        results.append_to(tmp_path / "text.csv", text_benchmark.FIELDS, new)
    results.append_to(
        tmp_path / "text.csv",
        text_benchmark.FIELDS,
        usual | {"date": "2026-01-04", "task": "m", "texts": 9, "memory": 2**29},
    )
    assert tables.text("a").splitlines()[2:] == [
        "| prompts | 4,000 | 2 | 4 | 0.50 |  |",
        "| m | 9 |  |  |  | 0.50 GiB |",
    ]


def test_difference_of_answers_is_a_share_of_the_largest_probability():
    mine, theirs = ([{"predictions": [{"probability": p} for p in given]}] for given in ((0.5, 0.21), (0.5, 0.2)))
    assert photos.difference(mine, theirs) == pytest.approx(0.02)


def test_encoders_are_told_by_their_newest_row(tmp_path, monkeypatch):
    usual = dict.fromkeys(encoders.FIELDS) | {"machine": "a", "model": "m", "runner": "ours-tokens"}
    for date, ratio in (("2026-01-02", 0.8), ("2026-01-03", 1.25), ("2026-01-01", 0.5)):
        new = usual | {"image_size": 224, "batch": 1, "date": date, "ratio": ratio}
        results.append_to(tmp_path / "encoders.csv", encoders.FIELDS, new)
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    assert tables.encoders("a").splitlines()[2:] == ["| m | 224 | 1 | all tokens | `model` | 25 % slower |"]
