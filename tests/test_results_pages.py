"""The figures of `benchmarks/results`: those of the pages that people wrote, and those of the pages made from them."""

import csv
import re
import sys

import pytest
from conftest import ROOT
from pages_as_tables import tables

sys.path += [str(ROOT / "docs" / "generators"), str(ROOT / "benchmarks"), str(ROOT / "examples")]
import results_pages

from keras_vit.benchmarking.results import read
from keras_vit.benchmarking.tables import newest

PAGES = results_pages.pages()
WRITE_AGAIN = "write benchmarks/results anew, or mend the page: both have the same figures"


def rows_of(name):
    with (ROOT / "benchmarks" / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def written(name, heading):
    """The tables below a heading of a page of docs/, up to the next of its kind."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    level = heading.split()[0]
    return tables(text.partition(f"{heading}\n")[2].partition(f"\n{level} ")[0])


# The pages that people wrote

WHAT = r"(inference|training step|loading|building) of (\S+?)(?:, (\d+) images?)?, (\w+), (\d) cores?, by `(\w+)`"
TASKS = {"inference": "inference", "training step": "train", "loading": "load", "building": "build"}
RUNNERS = {"model": "ours-model", "accelerate": "ours-openvino"}
PEERS = {
    "OpenVINO, timm's export": "openvino",
    "ONNX Runtime, timm's export": "onnxruntime",
    "timm": "timm",
    "transformers": "transformers",
}
PROCESSOR = "AMD EPYC, family 25 model 17"
PROCESSORS = {"family 25 model 1": "Zen 3", "family 25 model 17": "Zen 4", "family 26 model 2": "Zen 5"}  # by the pages


def test_time_and_memory_are_those_of_the_benchmark():
    rows, every = {}, read(ROOT / "benchmarks" / "results")
    for row in newest(every):
        if row["machine"] == PROCESSOR and row["image_size"] == 224:
            key = [row[name] for name in ("task", "model", "batch", "precision", "threads", "runner")]
            rows[tuple(key)] = row
    found = written("how_we_know_it_is_right", "## Time and memory")[0]
    assert len(found) > 15
    for line in found:
        task, model, images, precision, cores, runner = re.fullmatch(WHAT, line["what"]).groups()
        measured = (TASKS[task], model, int(images or 1), precision, int(cores))
        ours, peer = (rows[*measured, name] for name in (RUNNERS[runner], PEERS[line["fastest peer"]]))
        assert ours["fastest_peer"] == peer["runner"], WRITE_AGAIN
        in_its_run = ("date", "machine", "task", "model", "image_size", "batch", "precision", "threads")
        same = [row for row in every if all(row[name] == ours[name] for name in in_its_run)]
        assert line["of"] == str(sum(row["side"] == "peer" for row in same)), WRITE_AGAIN
        assert line["time"] == f"{ours['ratio_to_fastest_peer']:.2f}".removeprefix("0"), WRITE_AGAIN
        memory = [f"{row['peak_memory'] / 2**30:.2f}" for row in (ours, peer)]
        assert line["memory"] == f"{memory[0]} GiB against {memory[1]}", WRITE_AGAIN


def test_time_of_int8_is_that_of_the_benchmark():
    """By the newest rows, those of a case of one commit."""
    case = {"machine": PROCESSOR, "model": "B/16", "image_size": 224, "runner": "ours-openvino"}
    rows = [row for row in newest(read(ROOT / "benchmarks" / "results")) if case.items() <= row.items()]
    timed = {(row["threads"], row["batch"], row["precision"]): row for row in rows}
    shares = []
    for threads, batch in ((1, 1), (1, 8), (2, 1), (2, 8)):
        int8, half = (timed[threads, batch, precision] for precision in ("int8", "bfloat16"))
        assert int8["commit"] == half["commit"]
        shares.append(f"{int8['median_s'] / half['median_s']:.2f}".removeprefix("0"))
    page = (ROOT / "docs" / "quantising.md").read_text()
    one, eight, one_on_two, eight_on_two = shares
    assert f"int8 of B/16 takes {one} of the time of bfloat16 for one image and {eight} for eight" in page, WRITE_AGAIN
    assert f"On two cores it takes {one_on_two} and {eight_on_two}." in page, WRITE_AGAIN


def test_what_is_not_reached_is_that_of_the_benchmark():
    """The table tells of every case above its aim, and of no other."""
    said = {line["aim"]: line["figures"] for line in written("speed", "## What is not reached")[0]}
    opened = {"task": "inference", "runner": "ours-openvino"}
    half = {"task": "inference", "precision": "bfloat16"}
    base, large = (best_of_ours(task="inference", precision="float32", model=model) for model in ("B/16", "L/16"))
    for aim, bound, ratios in (
        ("OpenVINO: our exports at most .95 of timm's", 0.95, ratios_of("ratio_to_same_runtime", **opened)),
        (
            "ONNX Runtime: our exports at most .95 of timm's",
            0.95,
            ratios_of("ratio_to_same_runtime", task="inference", runner="ours-onnxruntime"),
        ),
        (
            "`accelerate` in bfloat16 at most 1.00 of the fastest peer",
            1.0,
            ratios_of_engines(**half),
        ),
        ("`model` in bfloat16 at most 1.10 of timm's time", 1.1, shares_of_timm("ours-model", **half)),
        ("int8 at most .60 of our bfloat16", 0.6, shares_of_bfloat16()),
        ("training takes no more memory than the best peer", 1.0, shares_of_memory()),
        ("B/16 in float32, the best of ours: at most .95 of the fastest peer", 0.95, base),
        ("L/16 in float32, the best of ours: at most .98 of the fastest peer", 0.98, large),
    ):
        missed = max(ratios.values()) > bound
        assert said.pop(aim, None) == (in_words(ratios, bound) if missed else None), (WRITE_AGAIN, aim, ratios)
    assert list(said) == ["on a processor with AMX; on a GPU"]


def test_memory_of_training_beyond_imports_is_that_of_the_benchmark():
    found = {}
    for row in rows_with_family(task="train", machine=PROCESSOR):
        beyond = (row["peak_memory"] - row["import_memory"]) / 2**30
        found.setdefault((row["runner"], row["precision"]), []).append(beyond)
    ours, timm, half, half_timm = (
        span(found[runner, precision]) for precision in ("float32", "bfloat16") for runner in ("ours-model", "timm")
    )
    said = f"take {ours} GiB in float32, and timm's {timm}; in bfloat16 {half}, and {half_timm}."
    assert said in (ROOT / "docs" / "speed.md").read_text(), (WRITE_AGAIN, said)


def test_all_else_is_reached():
    """As the section says below its table; a new row that misses an aim belongs into the table."""
    page, half = (ROOT / "docs" / "speed.md").read_text(), {"task": "inference", "precision": "bfloat16"}
    steps = ratios_of("ratio_to_fastest_peer", task="train", runner="ours-model")
    engines, models = ratios_of_engines(**half), shares_of_timm("ours-model", **half)
    said = f"`accelerate` takes {span(engines.values())} of the fastest peer's, and `model` {span(models.values())} of"
    memory, int8 = shares_of_memory(), shares_of_bfloat16()
    for sentence in (
        f"A training step takes {span(steps.values())} of the fastest peer's time, and {span(memory.values())} of the ",
        f"In bfloat16 {said} timm's. int8 takes {span(int8.values())} of bfloat16.",
    ):
        assert sentence in page, (WRITE_AGAIN, sentence)
    for case, ratio in steps.items():
        assert ratio <= {"float32": 0.92, "bfloat16": 0.95}[case[CASE.index("precision")]]


CASE = ("machine", "task", "model", "image_size", "batch", "precision", "threads")


def rows_with_family(**case):
    rows = newest(read(ROOT / "benchmarks" / "results"))
    return [row for row in rows if "family" in row["machine"] and case.items() <= row.items()]


def ratios_of(field, **case):
    """By the case that a row is of."""
    return {tuple(row[name] for name in CASE): row[field] for row in rows_with_family(**case)}


def best_of_ours(**case):
    """The least ratio to the fastest peer in a case's run of most peers, the newest of these: fewer flatter ours."""
    runs = {}
    for row in rows_with_family(**case):
        runs.setdefault(tuple(row[name] for name in CASE), {}).setdefault(row["date"], []).append(row)
    found = {}
    for its_case, by_date in runs.items():
        rows = max(by_date.values(), key=lambda rows: (sum(row["side"] == "peer" for row in rows), rows[0]["date"]))
        found[its_case] = min(row["ratio_to_fastest_peer"] for row in rows if row["side"] == "ours")
    return found


def ratios_of_engines(**case):
    """Of the fastest of `accelerate`'s engines that ran in the newest run, which `auto` takes, by the case."""
    found = {}
    for row in rows_with_family(side="ours", **case):
        if row["runner"] != "ours-model":
            found.setdefault(tuple(row[name] for name in CASE), []).append((row["date"], row["ratio_to_fastest_peer"]))
    return {case: min(ratio for date, ratio in rows if date == max(rows)[0]) for case, rows in found.items()}


def shares_of_timm(runner, **case):
    """Of its seconds in the same run, by the case."""
    of_timm = {tuple(row[name] for name in ("date", *CASE)): row["median_s"] for row in rows_with_family(runner="timm")}
    found = {}
    for row in rows_with_family(runner=runner, **case):
        run, *its_case = (row[name] for name in ("date", *CASE))
        if (run, *its_case) in of_timm:
            found[tuple(its_case)] = row["median_s"] / of_timm[(run, *its_case)]
    return found


def shares_of_bfloat16():
    """Seconds of int8 over those of bfloat16 on the same commit, by the case of int8."""
    found, place = {}, CASE.index("precision")
    rows = rows_with_family(task="inference", runner="ours-openvino")
    timed = {tuple(row[name] for name in CASE): row for row in rows}
    for case, row in timed.items():
        half = timed.get((*case[:place], "bfloat16", *case[place + 1 :]))
        if row["precision"] == "int8" and half and row["commit"] == half["commit"]:
            found[case] = row["median_s"] / half["median_s"]
    return found


def shares_of_memory():
    """A step's peak over the lowest peak of a peer in the same run, by the case."""
    found, rows = {}, rows_with_family(task="train")
    for row in rows:
        case = tuple(row[name] for name in CASE)
        peaks = [
            one["peak_memory"]
            for one in rows
            if one["side"] == "peer" and one["date"] == row["date"] and tuple(one[name] for name in CASE) == case
        ]
        if row["side"] == "ours":
            found[case] = row["peak_memory"] / min(peaks)
    return found


def in_words(ratios, bound):
    """The cases above a bound, those of one model and precision together, and the span of the others."""
    found, precision = [], CASE.index("precision")
    for group in sorted({(case[CASE.index("model")], case[precision]) for case in ratios}):
        cases = [case for case in ratios if (case[CASE.index("model")], case[precision]) == group]
        above = [case for case in cases if ratios[case] > bound]
        largest = digits(max((ratios[case] for case in above), default=bound + 1), bound)
        if len(above) == 1:
            found.append(f"{name_of(above[0])} {largest}")
        elif above:
            found.append(f"{' in '.join(group)} up to {largest} in {len(above)} of {len(cases)} cases")
    return "; ".join([*found, f"all else {span(ratio for ratio in ratios.values() if ratio <= bound)}"])


def name_of(case):
    """`B/16 at 384, 1 image, float32, 2 cores, Zen 4`."""
    machine, _, model, side, images, precision, cores = case
    processor = PROCESSORS[machine.partition(", ")[2]]
    size = "" if side == 224 else f" at {side}"
    counts = [f"{count} {name}{'s' * (count > 1)}" for count, name in ((images, "image"), (cores, "core"))]
    return f"{model}{size}, {counts[0]}, {precision}, {counts[1]}, {processor}"


def digits(ratio, bound):
    """With two digits behind the point, or as many as show that it is above the bound."""
    count = next(count for count in range(2, 9) if round(ratio, count) > bound)
    return f"{ratio:.{count}f}".removeprefix("0")


def span(values):
    """The smallest and the largest, as the pages write them."""
    values = list(values)
    return " to ".join(f"{value:.2f}".removeprefix("0") for value in (min(values), max(values)))


def test_parity_is_that_of_how_we_know_it_is_right():
    links = ""
    found = []
    for row in written("how_we_know_it_is_right", "# How we know it is right")[0]:
        if row["measured by"] != "the same":
            links = " ".join(re.findall(r"\(\.\./([^)]+)\)", row["measured by"]))
        found.append((row["what"], row["compared with"], row["largest difference"], links))
    columns = ("what", "compared_with", "largest_difference", "measured_by")
    rows = rows_of("parity")
    assert found == [tuple(row[column] for column in columns) for row in rows], WRITE_AGAIN
    assert len(found) > 20
    assert [path for row in rows for path in row["measured_by"].split() if not (ROOT / path).exists()] == []
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", row["recorded"]) for row in rows)


def test_scale_is_that_of_hosts():
    rows = {(row["variant"], row["layout"], row["devices"]): row for row in rows_of("scale")}
    found = written("hosts", "## On paper")[0]
    assert len(found) == 24
    for line in found:
        layout = "data" if line["layout"] == "one device" else line["layout"]
        row = rows[line["variant"], layout, line["devices"]]
        columns = {"weights": "weights", "moments": "slots", "activations": "activations", "memory": "memory"}
        for name, column in (columns | {"sent": "sent"}).items():
            assert line[name] == f"{int(row[f'{column}_bytes']) / 1e9:.2f}", WRITE_AGAIN
        assert line["step"] == f"{float(row['step_s']) * 1e3:.1f}", WRITE_AGAIN


def test_studies_are_those_of_the_page():
    rows = iter(rows_of("studies"))
    found = written("studies", "## The experiments in miniature")
    assert len(found) == 6
    for table in found:
        for line in table:
            row = next(rows)
            *settings, (_, accuracy), (_, below) = line.items()
            assert row["settings"] == "; ".join(f"{name}={value}" for name, value in settings), WRITE_AGAIN
            assert accuracy == f"{row['accuracy']} ± {row['accuracy_half']}", WRITE_AGAIN
            said = {"best": "best", "shown": "{} ± {}", "not shown": "{} ± {}, not shown"}[row["verdict"]]
            assert below == said.format(row["below_best"], row["below_best_half"]), WRITE_AGAIN
    assert next(rows, None) is None


def test_relevance_is_that_of_looking_inside():
    found = {}
    for processor, table in zip(
        ("Intel Xeon", "AMD EPYC"), written("looking_inside", "## Does relevance find what counts?"), strict=True
    ):
        for line in table:
            removed = line.pop("removed")
            for heading, cell in line.items():
                data, accuracy = re.match(r"(digits|crops of photos).* (\.\d+)", heading).groups()
                found[processor, data, removed] = (accuracy, *cell.split(" ± "))
    rows = rows_of("relevance")
    columns = ("accuracy", "fall", "fall_half")
    assert found == {
        (row["processor"], row["data"], row["removed"]): tuple(row[column].removeprefix("0") for column in columns)
        for row in rows
    }, WRITE_AGAIN
    assert len(found) == len(rows) == 20


# The scripts that write them


def test_scale_writes_what_is_there(tmp_path):
    scale = pytest.importorskip("scale")
    variants = ("Ti/16", "R+Ti/16")
    settings = {"optimizer": "sgd", "image_size": 224, "batch": 8, "tflops": 400, "bandwidth_gb_per_s": 100}
    scale.write_csv(scale.table(variants, scale.DEVICES), tmp_path / "scale.csv", **settings)
    lines = (ROOT / "benchmarks" / "results" / "scale.csv").read_text().splitlines()
    assert (tmp_path / "scale.csv").read_text().splitlines() == [
        line for line in lines if line.startswith(("variant,", *(f"{variant}," for variant in variants)))
    ]


def test_studies_are_written_with_these_columns_and_words(tmp_path):
    paper = pytest.importorskip("paper_on_digits")
    assert tuple(rows_of("studies")[0]) == paper.FIELDS
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
    header, *lines = (tmp_path / "studies.csv").read_text().splitlines()
    assert header == ",".join(rows_of("studies")[0])
    assert lines[2:] == [",".join(map(str, other.values())), "masked patches,start=pre-trained,2,0.500,0.000,,,best"]
    assert paper.table("positions", rows)[-1] == "| learned | blocks | 0.750 ± 0.635 | 0.005 ± 0.064, not shown |"


# The pages made from them


def test_every_file_has_its_page_and_its_rows():
    files = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.csv")}
    assert files >= {"parity", "relevance", "scale", "studies"}
    assert set(PAGES) == files | {"index"}
    counts = {re.search(r"\((\w+)\.md\)", row["page"])[1]: int(row["rows"]) for row in tables(PAGES["index"])[0]}
    assert counts == {name: len(rows_of(name)) for name in files}
    for name in ("parity", "relevance", "scale", "studies"):
        shown = [row for table in tables(PAGES[name]) for row in table if "for all rows" not in row]
        assert len(shown) == counts[name]


def test_pages_show_the_figures_of_the_files():
    found, first = tables(PAGES["parity"])[0], rows_of("parity")
    assert [row["largest difference"] for row in found] == [row["largest_difference"] for row in first]
    shown = [row for table in tables(PAGES["scale"])[1:] for row in table]
    for row, line in zip(rows_of("scale"), shown, strict=True):
        assert (row["layout"], row["devices"]) == (line["layout"], line["devices"])
        assert abs(float(line["memory"]) - int(row["memory_bytes"]) / 1e9) <= 5.01e-4
    shown = [row for table in tables(PAGES["studies"]) for row in table]
    for row, line in zip(rows_of("studies"), shown, strict=True):
        assert line["accuracy"].startswith(row["accuracy"])
        assert line["difference"] == row["verdict"]


def test_any_other_file_is_shown_with_what_its_rows_share_above_them(tmp_path):
    (tmp_path / "inference.csv").write_text(
        "runner,model,batch,median_s,ratio_to_fastest_peer,machine,versions,commit\n"
        "ours,B/16,8,0.123456789,1.0,two cores | AVX2,keras 3.15.1,abc\n"
        "timm,B/16,8,1.23456e-05,0.98765432,two cores | AVX2,keras 3.15.1,abc\n"
    )
    page = results_pages.pages(tmp_path)["inference"]
    assert page.startswith("# Inference\n")
    shared, rows = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    assert "| machine | two cores \\| AVX2 |" in shared
    assert "| versions | keras 3.15.1 |" in shared  # which is no number
    assert rows.splitlines()[0] == "| runner | median_s | ratio_to_fastest_peer |"
    assert rows.splitlines()[2:] == ["| ours | 0.1235 | 1.0 |", "| timm | 1.235e-05 | 0.9877 |"]


@pytest.mark.parametrize("text", ["", "runner,median_s\n", "runner,median_s\nours,1.5\n"])
def test_folder_with_little_in_it_has_its_pages(tmp_path, text):
    assert set(results_pages.pages(tmp_path)) == {"index"}
    assert set(results_pages.pages(tmp_path / "not there")) == {"index"}
    (tmp_path / "train.csv").write_text(text)
    page = results_pages.pages(tmp_path)["train"]
    assert ("1.5" in page) == ("1.5" in text)
