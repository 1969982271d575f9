"""What `--help` says: every argument has a text and its default, every command an example that parses."""

import argparse
import importlib
import os
import re
import shlex
import sys
import types

import pytest

from keras_vit import cli
from keras_vit.cli import terminal
from keras_vit.cli.terminal import quiet_start

FLAGS = (argparse._StoreTrueAction, argparse._StoreFalseAction, argparse._HelpAction, argparse._VersionAction)


def parsers(parser):
    """This parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


PARSERS = {parser.prog: parser for parser in parsers(cli._parser())}
COMMANDS = {name: parser for name, parser in PARSERS.items() if parser.get_default("command")}
ARGUMENTS = [
    (name, action)
    for name, parser in PARSERS.items()
    for action in parser._actions
    if not isinstance(action, argparse._SubParsersAction)
]


def test_every_command_is_looked_at():
    words = [
        "finetune",
        "pretrain",
        "distil",
        "evaluate",
        "embed",
        "duplicates",
        "search",
        "vtab",
        "predict",
        "segment",
        "depth",
        "inspect",
        "recipes",
        "look",
        "pack",
        "export",
        "push",
        "models",
    ]
    words += ["cache", "embed"]
    weights = ["list", "info", "fetch", "verify", "inspect", "convert"]
    assert set(COMMANDS) == {f"keras-vit {word}" for word in words + [f"weights {word}" for word in weights]}


@pytest.mark.parametrize(("command", "action"), ARGUMENTS, ids=lambda value: getattr(value, "dest", value))
def test_argument_has_a_text_and_says_its_default(command, action):
    assert action.help
    may_be_left_out = (not action.required or action.nargs == "*") and not isinstance(action, FLAGS)
    assert ("default" in action.help) == may_be_left_out, action.help
    if may_be_left_out and action.default not in (None, "default"):
        shown = PARSERS[command].format_help().replace("\n", " ")
        assert re.search(rf"by\s+default\s+{action.default}\b", shown) or f"{action.default} by default" in shown


@pytest.mark.parametrize(("command", "action"), ARGUMENTS, ids=lambda value: getattr(value, "dest", value))
def test_value_has_a_name_of_its_own_in_capitals(command, action):
    """Not the option's name again, as argparse would have it: `--seed N`, not `--seed SEED`."""
    if isinstance(action, FLAGS) or action.choices:
        return
    names = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
    assert all(name and name == name.upper() for name in names)


def test_the_same_thing_has_one_name_in_every_usage_line():
    names = {}
    for _, action in ARGUMENTS:
        if action.metavar and action.option_strings:
            names.setdefault(action.option_strings[-1], set()).add(str(action.metavar))
    assert names.pop("--out") == {"FOLDER", "FILE"}  # of `duplicates` it is a table
    assert {option: found for option, found in names.items() if len(found) > 1} == {}
    assert names["--model"] == {"MODEL"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("finetun", "Did you mean 'finetune'?"),
        ("benchmark", "python -m benchmarks."),
        ("launch --processes 2 finetune --data digits", "docs/devices.md#start-several-hosts."),
    ],
)
def test_near_command_or_what_took_its_place_is_named(capsys, words, hint):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words.split())
    assert capsys.readouterr().err.endswith(f" {hint}\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("finetune photos --out run", "photos. Did you mean --data photos?"),
        ("evaluate run photos", "photos. Did you mean --data photos?"),
        ("evaluate --model run", "--model. Write MODEL alone, without --model."),
        ("predict --data=photos --model run", "--data=photos. Write IMAGE alone, without --data."),
        ("embed --images photos --model run --out job", "--images. Write PHOTOS alone, without --images."),
        ("pack --photos photos shards", "--photos. Write DATA alone, without --photos."),
    ],
)
def test_data_that_is_or_is_no_option_is_named(capsys, words, hint):
    with pytest.raises(SystemExit):
        cli._parser().parse_args(words.split())
    assert capsys.readouterr().err.endswith(f"error: unrecognized arguments: {hint}\n")


@pytest.mark.parametrize("command", PARSERS)
def test_command_has_an_example_that_parses(command):
    examples = [line.strip() for line in PARSERS[command].format_help().split("example:")[1].splitlines()]
    (example,) = filter(None, examples)
    program, *arguments = shlex.split(example)
    assert example.startswith(command) or command == "keras-vit"
    assert program == "keras-vit"
    assert cli._parser().parse_args(arguments).command


# How a command starts


@pytest.fixture
def loud(monkeypatch):
    """A start that says on the error stream what TensorFlow says there, in the same way."""

    def start():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")

    monkeypatch.setattr("keras_vit.cli.terminal.start_tensorflow", start)


@pytest.mark.parametrize(("level", "heard"), [(None, False), ("3", False), ("2", False), ("1", True), ("0", True)])
def test_what_tensorflow_says_reaches_those_alone_who_ask_for_it(loud, monkeypatch, capfd, level, heard):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with quiet_start():
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == (level or "3")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    assert bool(capfd.readouterr().err) == heard


@pytest.mark.parametrize(
    ("backend", "file", "is_hidden"),
    [("tensorflow", "jax", True), ("jax", None, False), (None, "tensorflow", True), (None, "jax", False)],
)
def test_packages_that_commands_do_not_need_are_hidden_while_keras_is_imported(
    monkeypatch, tmp_path, backend, file, is_hidden
):
    names = ("keras", *terminal._OTHERS)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text(f'{{"backend": "{file}"}}')
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if backend is not None:
        monkeypatch.setenv("KERAS_BACKEND", backend)
    with terminal._without_others():
        hidden = [name for name in terminal._OTHERS if name in sys.modules]
        with pytest.raises(ImportError):
            importlib.import_module("sklearn")
    assert hidden == [name for name in terminal._OTHERS if name != "jax" or is_hidden]
    assert not any(name in sys.modules for name in names)


def test_user_without_a_home_has_no_file_of_keras(monkeypatch):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert not terminal._may_use_jax()


def test_what_was_imported_before_is_not_hidden(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setitem(sys.modules, "pandas", marker := types.ModuleType("pandas"))
    with terminal._without_others():
        assert sys.modules["pandas"] is marker
    monkeypatch.setitem(sys.modules, "keras", types.ModuleType("keras"))
    before = dict(sys.modules)
    with terminal._without_others():
        assert sys.modules == before


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("predict x.jpg --model {}", 0),
        ("evaluate {}", 0),
        ("vtab {}", 0),
        ("export {} x", 0),
        ("finetune --data x", None),
    ],
)
def test_command_says_that_it_loads_before_it_imports_anything(monkeypatch, capsys, tmp_path, command, place):
    """So within a second, most of which Python takes to start; but JSON is for programs, and stays JSON."""

    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.cli.terminal.start_tensorflow", stop)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.keras").touch()
    (tmp_path / "x.jpg").touch()
    what = "TensorFlow" if place is None else "run"
    assert cli.main(command.format("run").split()) == 130
    assert capsys.readouterr() == (f"loading {what} ...\n", "keras-vit: error: interrupted\n")
    if place is not None:
        assert cli.main([*command.format("run").split(), "--json"]) == 130
        assert capsys.readouterr().out == ""


REFUSED = {  # with a model that is there
    "predict gone.jpg --model run": "photos must exist",
    "predict empty --model run": "must be a folder with photos",
    "predict x.jpg --model run --out answers.txt": "`--out` must be the name of a .csv",
    "predict x.jpg --model run --out no/answers.csv": "in a folder that is there",
    "predict x.jpg --model run --out taken.csv": "must be a new file",
    "predict x.jpg --model run --out taken.csv --overwrite": "replaces only a table",
    "predict x.jpg --model run --top 0": "`--top`",
    "predict x.jpg --model run --batch-size 0": "`--batch-size`",
    "predict x.jpg --model run --overwrite": "goes with `--out`",
    "evaluate run --data ./gone": "no such file or folder",
    "look run gone.jpg --out o": "photos must exist",
    "finetune --data gone.csv --out o": "no such file or folder",
    "pack ./gone o": "no such file or folder",
}


@pytest.mark.parametrize(("command", "words"), REFUSED.items(), ids=str)
def test_wrong_arguments_are_refused_before_tensorflow_is_imported(monkeypatch, capsys, tmp_path, command, words):
    monkeypatch.setattr("keras_vit.cli.terminal.start_tensorflow", pytest.fail)
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "empty"):
        (tmp_path / folder).mkdir()
    for file in ("run/best.keras", "x.jpg", "taken.csv"):
        (tmp_path / file).touch()
    assert cli.main(command.split()) == 1
    output, error = capsys.readouterr()
    assert (output, words in error) == ("", True), error


@pytest.mark.parametrize(
    "command", ["predict x.jpg --model {}", "evaluate {}", "vtab {}", "export {} x", "look {} x.jpg --out o"]
)
@pytest.mark.parametrize("wrong", ["nowhere", "B/17", "x.h5", "run --weights imagenet21k", "B/16 --weights last.keras"])
def test_model_that_cannot_be_is_told_before_anything_is_loaded(monkeypatch, capsys, tmp_path, command, wrong):
    monkeypatch.setattr("keras_vit.cli.terminal.start_tensorflow", pytest.fail)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.keras").touch()
    (tmp_path / "x.h5").touch()
    assert cli.main(command.format(wrong).split()) == 1
    output, error = capsys.readouterr()
    assert output == ""
    assert re.match("keras-vit: error: .*(a model must be|`--weights` (is for|must be))", error)
