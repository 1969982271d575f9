"""What guides say beside their Python blocks: commands parse, tables are computed, calls of the tables are run."""

import re
import shlex

import keras
import pytest
from conftest import ROOT
from test_readme import write_files

import keras_vit
from keras_vit import cli

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))
BEFORE = ("srun", "mpirun", "xargs")  # which start a command as several processes


def commands_of(path):
    """The words of every `keras-vit` command in blocks of a shell and in running text, without what is around it."""
    text = path.read_text()
    blocks = "\n".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    spans = [
        span for span in re.findall(r"`(keras-vit [^`\n]+)`", text) if " --" in span and "--help" not in span
    ]  # others name a command
    for line in [*blocks.replace("\\\n", " ").splitlines(), *spans]:
        for part in re.split(r"&&|\|\||[;|]", line.partition(" #")[0]):
            if not re.search(r"\bkeras-vit ", part) or "keras-vit" not in (words := shlex.split(part)):
                continue
            if words[0] in BEFORE or all(map(is_around, words[: words.index("keras-vit")])):
                yield words[words.index("keras-vit") + 1 :]


def is_around(word):
    """Whether a word before a command leaves its options as they are."""
    return word in (*BEFORE, "until") or "=" in word


COMMANDS = [(path.name, words) for path in PAGES for words in commands_of(path)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else None)
def test_command_of_a_page_parses(page, words):
    """By the parser of the command line itself."""
    assert cli._parser().parse_args(words).command


def test_commands_are_found():
    assert {words[0] for _, words in COMMANDS} >= {"finetune", "evaluate", "predict", "export", "weights", "look"}
    assert len(COMMANDS) > 60


TABLE = re.findall(
    r"^\| ([\w/+]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
    (ROOT / "docs" / "choosing.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.docs
@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(row[:2]))
def test_table_of_choosing_is_computed(row):
    name, side = row[0], int(row[1])
    with keras.StatelessScope(initialize_variables=False):  # shapes alone: L/16 has a gigabyte of weights
        model = keras_vit.build(name, classes=10, input_shape=(side, side, 3))
    flops = keras_vit.flops(name, side, classes=10).total
    estimates = [
        keras_vit.estimate_memory(model, batch, accumulation_steps=k) for batch, k in ((8, 1), (32, 1), (512, 64))
    ]
    memory = [f"{estimate.total / 1e9:.1f}" for estimate in estimates]
    assert row[2:4] == (f"{flops / 1e9:.1f}", f"{flops / keras_vit.flops('B/16', 224, classes=10).total:.2f}")
    assert list(row[4:]) == memory


def test_table_of_choosing_has_rates_of_the_recipe():
    text = (ROOT / "docs" / "choosing.md").read_text()
    assert len(TABLE) == 22
    heads = re.search(r"^\| model \| pixels .*$", text, re.MULTILINE)[0]
    recipe = keras_vit.find_recipe("augreg-finetune")
    found = [(int(batch), float(rate)) for batch, rate in re.findall(r"batch (\d+)(?: by \d+)?, rate ([\d.]+)", heads)]
    assert [batch for batch, _ in found] == [8, 32, 512]
    for batch, rate in found:
        assert rate == pytest.approx(recipe.learning_rate * batch / recipe.batch_size, rel=0.02)  # two digits


NOT_RUN = {"keras_vit.finetune(", "keras_vit.push_to_hub("}  # calls that other pages and tests run


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore:transformers prepares photos:UserWarning")
@pytest.mark.filterwarnings("ignore:the head of .* is all zeros:UserWarning")
def test_calls_beside_those_of_other_software_run(tmp_path, monkeypatch):
    """In the order of the page, after its block."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_MIRROR", "mirror")
    text = (ROOT / "docs" / "coming_from.md").read_text()
    rows = re.findall(
        r"^\| (?!theirs|--).*? \| `(.*?)` \| .*\|$", text.partition("## keras.applications")[2], re.MULTILINE
    )
    calls = [call for call in rows if not any(call.startswith(name) for name in NOT_RUN)]
    assert len(calls) > 40
    names = {}
    for call in [re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], *dict.fromkeys(calls)]:
        exec(compile(call, call, "exec"), names)
