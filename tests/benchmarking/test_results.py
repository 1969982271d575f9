"""Rows in files and pages: what is added, what is refused, and which row a table shows."""

import csv
import importlib.util
import json
import re

import pytest
from conftest import ROOT

from keras_vit.benchmarking.machine import commit, machine
from keras_vit.benchmarking.results import FIELDS, append, check_headers, read, write_json
from keras_vit.benchmarking.tables import BEGIN, END, markdown, newest, with_tables

PAGE = f"before\n{BEGIN}\nold\n{END}\nafter\n"


def row(**given):
    usual = dict.fromkeys(FIELDS)
    usual |= {"date": "2026-01-02T03:04:05Z", "machine": "a, processor", "cores": 2, "avx512_bf16": True, "amx": False}
    usual |= {"commit": "", "runner": "ours-model", "side": "ours", "model": "B/16", "image_size": 224, "batch": 8}
    usual |= {"precision": "float32", "task": "inference", "threads": 1, "optimizer": "adamw", "rounds": 5}
    usual |= {"activation": "gelu_tanh", "backend": "tensorflow", "device": "cpu", "median_s": 0.25, "spread": 0.031}
    usual |= {"images_per_s": 32.0, "ratio_to_fastest_peer": 0.87654321, "peak_memory": 3 * 2**29, "flops": 10}
    return usual | {"versions": "a 1; b 2", "left_out": None} | given


def test_rows_come_back_as_they_were_added(tmp_path):
    folder = tmp_path / "new" / "results"
    first, second, third = row(), row(task="train", batch=1, accelerator="H"), row(runner="timm", side="peer")
    assert [file.name for file in append(folder, [first, second])] == ["inference.csv", "train.csv"]
    before = (folder / "inference.csv").read_text()
    (folder / "parity.csv").write_text("what,difference\nlogits,1e-6\n")  # of another kind
    append(folder, [third, row(median_s=None, left_out="why")])
    assert (folder / "inference.csv").read_text().startswith(before)
    found = read(folder)
    expected = [{name: given[name] for name in FIELDS} for given in (first, third, second)]
    for line in expected:
        line["ratio_to_fastest_peer"] = 0.876543  # six digits
        line["commit"] = None
    assert found == expected
    with (folder / "train.csv").open() as file:
        assert next(csv.DictReader(file))["machine"] == "a, processor"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("date,runner\n", "missing: commit"),
        (",".join([*FIELDS, "more"]) + "\n", "missing: none; unknown: more"),
        ("", "missing: date"),
    ],
)
def test_file_with_another_header_is_refused_and_left_as_it_is(tmp_path, header, said):
    (tmp_path / "train.csv").write_text(header)
    with pytest.raises(ValueError, match=f"same fields(.|\n)*train.csv, {said}"):
        append(tmp_path, [row(), row(task="train")])
    assert (tmp_path / "train.csv").read_text() == header
    assert not (tmp_path / "inference.csv").exists()
    with pytest.raises(ValueError, match="same fields"):
        read(tmp_path)


def test_file_whose_last_line_was_cut_is_refused(tmp_path):
    append(tmp_path, [row()])
    file = tmp_path / "inference.csv"
    file.write_text(file.read_text()[:-5])
    with pytest.raises(ValueError, match="last line is whole"):
        check_headers(tmp_path)


def test_json_holds_all_rows(tmp_path):
    rows = [row(), row(median_s=None, left_out="why")]
    write_json(tmp_path / "out.json", rows)
    assert json.loads((tmp_path / "out.json").read_text()) == rows


def test_newest_row_of_a_measurement_counts():
    old, new = row(date="2026-01-01T00:00:00Z", median_s=9.0), row(date="2026-03-01T00:00:00Z", median_s=3.0)
    other = row(machine="another")
    assert newest([new, other, old]) == [new, other]


def test_table_shows_the_figures_of_its_rows():
    auto = row(runner="ours-auto", engine="openvino", ratio_to_same_runtime=0.9, device_memory=2**31)
    text = markdown([row(), auto, row(task="load", images_per_s=None, ratio_to_fastest_peer=None)])
    title, _, _, _, model, engine = text.splitlines()[:6]
    assert title == "**inference**: a, processor, AVX-512 bf16, 1 of 2 cores, gelu_tanh, Keras on tensorflow."
    assert model == "| B/16 | 224 | 8 | float32 | a | ours-model | 250 | 32 | 3.1% | 0.877 |  | 1.50 |"
    assert engine == "| B/16 | 224 | 8 | float32 | a | ours-auto (openvino) | 250 | 32 | 3.1% | 0.877 | 0.900 | 2.00 |"
    assert "| B/16 | 224 | 8 | float32 | a | ours-model | 250 |  | 3.1% |  |  | 1.50 |" in text
    assert text.count("**") == 4


def test_rows_of_one_run_have_one_letter():
    """A ratio is over the fastest peer of its own run, which may be none of the rows beside it."""
    first, second = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    rows = [row(date=first), row(date=first, runner="timm", side="peer"), row(date=first, runner="flax", side="peer")]
    rows += [row(date=second, runner="timm", side="peer"), row(date=second, runner="ours-model")]
    rows += [row(date=first, batch=1)]  # another case, with letters of its own
    found = re.findall(r"^\| B/16 \| 224 \| (\d) \| float32 \| (\w) \| (\S+)", markdown(rows), re.MULTILINE)
    assert found == [("8", "a", "ours-model"), ("8", "a", "timm"), ("8", "b", "flax"), ("1", "a", "ours-model")]


def test_tables_go_between_the_marks_of_a_page_and_nowhere_else():
    page = with_tables(PAGE, [row()])
    assert page == f"before\n{BEGIN}\n\n{markdown([row()])}\n\n{END}\nafter\n"
    assert with_tables(page, []) == f"before\n{BEGIN}\n{END}\nafter\n"
    with pytest.raises(ValueError, match="once each"):
        with_tables("no marks", [row()])


def test_table_of_the_page_is_that_of_the_results():
    """Of no results no table: figures come from measurements only."""
    page = (ROOT / "docs" / "speed.md").read_text()
    rows = read(ROOT / "benchmarks" / "results")
    assert with_tables(page, rows) == page
    inside = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    assert ("|" in inside) == bool(rows)


def test_machine_is_read_from_the_facts_of_the_system():
    text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx512_bf16 amx_bf16\n\nprocessor\t: 1\n"
    found = machine(text)
    assert (found["machine"], found["avx512_bf16"], found["amx"]) == ("Some CPU @ 2 GHz", True, True)
    assert machine("model name: x\nflags: avx512f amx_tile\n")["amx"] is False
    generic = machine("vendor_id: Us\ncpu family: 25\nmodel: 17\nmodel name: AMD EPYC\n")
    assert generic["machine"] == "AMD EPYC, family 25 model 17"
    assert machine("")["machine"]


def test_commit_is_of_the_repository_that_holds_the_package_alone(tmp_path):
    assert commit(tmp_path / "site-packages" / "keras_vit") == ""
    inside = ROOT / "tests"  # in the repository, but not where a package of it lies
    assert commit(inside / "benchmarking") == ""


def script(name):
    specification = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_growth_of_the_page_is_that_of_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    growth, page = script("growth"), (ROOT / "docs" / "speed.md").read_text()
    rows = newest(read(ROOT / "benchmarks" / "results" / "growth"))
    assert growth.with_table(page, rows) == page
    (tmp_path / "page.md").write_text(f"{growth.BEGIN}\nold\n{growth.END}\n")
    growth.main([*map(str, (ROOT / "benchmarks" / "results" / "growth", tmp_path / "page.md", tmp_path / "new.png"))])
    line = next(line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| B/16 | 224 | 8"))
    cells = line.strip("| ").split(" | ")
    assert float(cells[3]) == pytest.approx(8 * 32.697, abs=0.1)  # GFLOP
    assert float(cells[5]) == pytest.approx(float(cells[3]) / float(cells[4]), rel=0.01)
    assert (tmp_path / "new.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="once each"):
        growth.with_table("no marks", rows)


def test_plots_have_a_line_for_each_runner_and_one_of_flops(tmp_path):
    pytest.importorskip("matplotlib")
    plots = script("plots")
    rows = [row(image_size=side, median_s=cost) for side, cost in ((224, 0.2), (384, 0.8))]
    rows += [row(model="S/16", median_s=0.07), row(batch=1, median_s=0.03), row(runner="timm", batch=1, median_s=0.04)]
    append(tmp_path, rows)
    plots.main([str(tmp_path), str(tmp_path / "out")])
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "out").iterdir()) == ["batch", "image_size", "model"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "out").iterdir())
    points = dict(plots.ideal(rows[:2], "image_size"))
    assert points[384] / points[224] == pytest.approx(plots.flops("B/16", 384).total / plots.flops("B/16", 224).total)
    assert min(points[224] / 0.2, points[384] / 0.8) <= max(points[224] / 0.2, points[384] / 0.8) == pytest.approx(1)
