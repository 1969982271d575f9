"""Rows in files: what is added, what is refused, and what a row says of the machine."""

import csv

import pytest
from test_result_tables import row

from benchmarks.results import FIELDS, append, commit, machine, make_ready, read


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
        with pytest.raises(ValueError, match=f"same fields(.|\n)*train.csv, {said}"):
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
