"""The notebooks: what is committed is what the scripts make, ran to the end, and still prints the same words."""

import json
import re
import subprocess
import sys
from collections import Counter

import pytest
from conftest import ROOT

sys.path.append(str(ROOT / "docs" / "generators"))
import notebooks

SCRIPTS = {path.stem: path for path in sorted((ROOT / "docs" / "notebooks").glob("*.py"))}
NAMES = pytest.mark.parametrize("name", SCRIPTS)
MOST_BYTES = 400_000  # of a notebook with its pictures
HEADER = "\n".join(f"{field}: words." for field in notebooks.FIELDS)


def committed(name):
    return json.loads(SCRIPTS[name].with_suffix(".ipynb").read_text())


def source_of(cell):
    return "".join(cell["source"])


def words_of(outputs):
    """What was printed, its numbers left out, and the kinds of what was shown."""
    texts = ["".join(output["text"]) for output in outputs if output["output_type"] == "stream"]
    kinds = Counter(kind for output in outputs for kind in output.get("data", ()))
    return re.sub(r"\d+(?:\.\d+)?", "#", "".join(texts)), kinds


def test_there_are_three_and_the_index_has_them():
    index = (ROOT / "docs" / "notebooks" / "index.md").read_text()
    listed = re.search(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)[1].split()[1:]
    assert sorted(listed) == sorted(SCRIPTS) == ["export_and_serve", "fine_tune_photos", "look_inside"]


@NAMES
def test_notebook_has_the_cells_of_its_script(name):
    found = [(cell["cell_type"], source_of(cell)) for cell in committed(name)["cells"]]
    assert found == notebooks.cells_of(SCRIPTS[name].read_text()), "run docs/generators/notebooks.py"


@NAMES
def test_notebook_ran_from_beginning_to_end_without_an_error(name):
    cells = [cell for cell in committed(name)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert any("image/png" in output.get("data", ()) for output in outputs) or name == "export_and_serve"


@NAMES
def test_notebook_is_small_and_names_no_place_of_a_machine(name):
    text = SCRIPTS[name].with_suffix(".ipynb").read_text()
    assert len(text) < MOST_BYTES
    shown = "".join(line for line in text.splitlines() if "image/png" not in line)
    assert not re.search(r"/(?:tmp|home|root|Users|work)/", shown)


@NAMES
def test_texts_can_be_read_and_commands_exist(name):
    for kind, source in notebooks.cells_of(SCRIPTS[name].read_text()):
        if kind == "code":
            compile(source, name, "exec")
        for command in re.findall(r"^keras-vit (\w+)", source, re.MULTILINE):
            assert command in (ROOT / "README.md").read_text()


def test_script_becomes_cells():
    script = f'"""\n{HEADER}\n"""\n\n"""\n# A\n\ntext\n"""\n\nx = 1\n\nprint(x)\n\n"""shell\nls\n"""\n'
    header, *cells = notebooks.cells_of(script)
    assert header[0] == "markdown"
    assert header[1].startswith("# words.\n\n**Author:** words.<br>\n")
    assert cells == [("markdown", "# A\n\ntext"), ("code", "x = 1\n\nprint(x)"), ("markdown", "```sh\nls\n```")]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("x = 1\n", "must begin with its header"),
        (f'"""\n{HEADER}\n"""\n\n"""\nno end\n', "every block must end"),
        ('"""\nTitle: A\n"""\n', "must have Title, Author, .*\nReceived: Title"),
    ],
)
def test_script_of_another_form_is_refused(script, message):
    with pytest.raises(ValueError, match=message):
        notebooks.cells_of(script)


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a minute of two idle cores each, as measured; others may be at work
@NAMES
def test_notebook_runs_and_prints_the_same_words(name, tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    command = [sys.executable, str(ROOT / "docs" / "generators" / "notebooks.py"), name, "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=1400)
    found = json.loads((tmp_path / f"{name}.ipynb").read_text())["cells"]
    for ours, theirs in zip(found, committed(name)["cells"], strict=True):
        if ours["cell_type"] == "code":
            assert words_of(ours["outputs"]) == words_of(theirs["outputs"]), source_of(ours)
