"""The command line: models and weights, training in `keras-vit finetune|pretrain|distil`, evaluation, and `export`.

A command is a generator of lines for the output, over one public function. What fails is one line on the
error stream and exit code 1. Wrong usage is 2, Ctrl-C 130, SIGTERM 143 and a pipe that nobody reads 141, as
shells count them. Only a file that could not be brought has more lines: its recipe for a shell.
Nothing here imports Keras before a command that trains or predicts runs.
"""

import argparse
import atexit
import contextlib
import errno
import os
import re
import signal
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from keras_vit.checks import did_you_mean
from keras_vit.cli import (
    cache_command,
    data_commands,
    engines,
    evaluation,
    export_command,
    inspect_command,
    maps,
    predict,
    training,
    weights,
)
from keras_vit.cli.terminal import one_line, say_error
from keras_vit.config.recipes import field_hint
from keras_vit.pages.formatting import printable
from keras_vit.runs.options import FLAGS
from keras_vit.silence import discard_output
from keras_vit.synonyms import lookup, run_option_hint
from keras_vit.training.hosts.processes import exit_without_waiting
from keras_vit.version import __version__
from keras_vit.weights.download import DownloadError

# What functions call a parameter, the command line an option.
_SAME_NAME = (
    "grid",
    "out",
    "processes",
    *export_command.SAME_NAME,
    *data_commands.SAME_NAME,
    *maps.OPTIONS,
    *inspect_command.OPTIONS,
)
_OPTIONS = FLAGS | {name: f"--{name.replace('_', '-')}" for name in _SAME_NAME}
_OPTIONS |= {"num_heads": "--heads", "top": "--top", "top_k": "--top", "split": "--split", "overwrite": "--overwrite"}
_OPTIONS |= {name: f"--{name}" for name in ("shots", "seeds", "protocol", *engines.OPTIONS)}
_OPTIONS |= {"num_neighbors": "--neighbours", **data_commands.OPTIONS}
_OPTIONS |= {"train_split": "--train-split", "test_split": "--split"}
_PHOTOS = ("data", "photos", "images")  # names of the argument that gives them, with or without `--`
_MOVED = {  # commands that were removed
    "benchmark": "It is run from a checkout now: python -m benchmarks.",
    "launch": "It was removed. A shell starts processes as well: docs/devices.md#start-several-hosts.",
}
_INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 130, 141, 143  # 128 and the signal, as shells count


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and gives its exit code; `arguments` are those of the process by default."""
    parsed = _parser().parse_args(arguments)
    if hasattr(parsed, "check_usage"):
        parsed.check_usage(parsed)
    ended: list[int] = []
    if arguments is None and parsed.command is predict.predict:
        atexit.register(_leave_at_once, ended)  # before all others, so that it comes after them
    code = _run(parsed)
    if code:
        exit_without_waiting(code)
    ended.append(code)
    return code


def _leave_at_once(ended: list[int]) -> None:
    """Ends a process that has answered: Python takes 0.8 s to free a model and a million objects one by one."""
    if ended:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or one that nobody reads
                stream.flush()
        os._exit(ended[0])


def _run(parsed: Namespace) -> int:
    """Runs a command and gives its exit code."""
    with _warnings_in_one_line(), _sigterm_stops():
        try:
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="backslashreplace")  # names beyond the terminal's letters are no fault
            for line in parsed.command(parsed):
                _print(line)
        except BrokenPipeError:  # as of `| head`: nobody reads any more, which is no fault
            return _CLOSED_PIPE
        except KeyboardInterrupt:
            return _fail("interrupted", _INTERRUPTED, parsed)
        except SystemExit:
            return _fail("terminated", _TERMINATED, parsed)
        except Exception as error:
            return _fail(_error_text(error), 1, parsed)
    return 0


def _error_text(error: BaseException) -> str:
    """What to print of an error: one line, but for a file that did not come, whose recipe is lines for a shell."""
    text = str(error)
    if isinstance(error, OSError) and error.errno and error.filename:  # raised by Python, which numbers it
        text = _os_error_text(error)
    for name in getattr(error, "parameters", ()):
        text = _with_option(text, name, _OPTIONS.get(name, name))
    if isinstance(error, DownloadError) and "\n  curl " in text:
        first, *rest = text.split("\n")
        return "\n".join([one_line(first), *(f"  {printable(line)}" for line in rest)])
    own = type(error).__module__.startswith("keras_vit.") or "pip install" in text
    expected = isinstance(error, (ValueError, OSError)) or own
    return one_line(text if expected else f"{type(error).__name__}: {text} (--debug shows where)")


def _os_error_text(error: OSError) -> str:
    steps = {errno.EACCES: "Grant the right to it, or choose another.", errno.ENOSPC: "Make room."}
    return (
        "the files and folders of a command must be accessible, and those that it writes new or its own.\n"
        f"Received: {printable(error.filename)}: {error.strerror}. {steps.get(error.errno or 0, '')}".rstrip()
    )


def _with_option(text: str, name: str, option: str) -> str:
    """The text with an option where the name of an argument stood, as `size`, `size=`, size=3 or size=True."""
    if option != name:
        text = text.replace(f"`{name}`", f"`{option}`").replace(f"`{name}=`", f"`{option}`")
        text = text.replace(f" {name}=True", f" {option}")
        for before in " `":  # of a whole name: `image_size` ends that of `start_image_size`
            text = text.replace(f"{before}{name}=", f"{before}{option} ")
    return text


def _fail(words: str, code: int, arguments: Namespace) -> int:
    if getattr(arguments, "debug", False):
        say_error(traceback.format_exc().rstrip())
    say_error(f"keras-vit: error: {words}")
    return code


def _print(line: str) -> None:
    if sys.stdout is None:  # closed before we began
        raise OSError(errno.EBADF, "the output is closed, so nothing can be printed")
    try:
        print(line, flush=True)
    except OSError:  # closed or full; Python would try the rest again at its end, and add words of its own
        discard_output(sys.stdout)
        raise


@contextlib.contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    def show(message: Warning | str, *_: Any) -> None:
        say_error(f"keras-vit: warning: {one_line(message)}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # takes and drops where it was
        yield


@contextlib.contextmanager
def _sigterm_stops() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that locks are let go of and a begun download is kept."""

    def stop(*_: Any) -> NoReturn:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Parser(argparse.ArgumentParser):
    """Says of every option what it is by default, and of a wrong word which one was meant."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.options: dict[str, str] = {}  # by the names of their values
        self.positions: dict[str, Any] = {}  # what the others are called in the usage
        super().__init__(*arguments, **named)

    def add_argument(self, *names: Any, **kwargs: Any) -> argparse.Action:
        default, text = kwargs.get("default"), kwargs.get("help", "")
        if default not in (None, argparse.SUPPRESS) and "default" not in text:
            kwargs["help"] = f"{text}; by default {default}"
        action = super().add_argument(*names, **kwargs)
        if action.option_strings:
            self.options[action.dest] = action.option_strings[-1]
        else:
            self.positions[action.dest] = action.metavar
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        for word in args or ():
            self._check_position(word)
        found, rest = super().parse_known_args(args, namespace)
        wrong = next((word for word in rest if word.startswith("--") and len(word) > 2), None)
        if wrong is not None:
            self.error(f"unrecognized arguments: {' '.join(rest)}.{self._option_hint(wrong.partition('=')[0])}")
        word = next((word for word in rest if not word.startswith("-")), None)
        if word is not None and getattr(found, "data", word) is None:
            self.error(f"unrecognized arguments: {' '.join(rest)}. Did you mean --data {word}?")
        return found, rest

    def _check_position(self, word: str) -> None:
        """Refuses an option with the name of a positional argument, before argparse reports that one as missing."""
        name = word.partition("=")[0]
        given = name.removeprefix("--")
        found = [self.positions[each] for each in (_PHOTOS if given in _PHOTOS else (given,)) if each in self.positions]
        if name.startswith("--") and found and name not in self.options.values():
            self.error(f"unrecognized arguments: {word}. Write {found[0]} alone, without {name}.")

    def _option_hint(self, wrong: str) -> str:
        if (dashed := wrong.replace("_", "-")) in self.options.values():
            return f" Did you mean {dashed}?"
        if near := lookup(wrong.strip("-"), self.options):
            return f" Did you mean {' or '.join(self.options[name] for name in near)}?"
        word = wrong.strip("-").replace("-", "_")
        of_a_run = run_option_hint(word) or field_hint(word) if self.prog.endswith(" finetune") else ""
        return of_a_run or did_you_mean(wrong, self.options.values())

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        hint = did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]), 0.6) if wrong else ""
        hint = f" {_MOVED[wrong[1]]}" if wrong and wrong[1] in _MOVED else hint
        super().error(f"{message}{'.' * bool(hint)}{hint}")


def _ending(example: str) -> dict[str, Any]:
    """Arguments of a parser whose help ends in an example."""
    return {"epilog": f"example:\n  {example}", "formatter_class": argparse.RawDescriptionHelpFormatter}


def _parser() -> _Parser:
    debug = _Parser(add_help=False, allow_abbrev=False)
    debug.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show where an error arose")
    parser = _Parser(
        "keras-vit",
        description="Vision Transformers and their weights.",
        parents=[debug],
        allow_abbrev=False,
        **_ending("keras-vit finetune --data digits --out run"),
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {__version__}")

    def add(parent: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
        kwargs = {"help": summary, "description": summary} | _ending(example)
        return parent.add_parser(name, parents=[debug], allow_abbrev=False, **kwargs)

    def command(parent: Any, name: str, function: Callable, summary: str, example: str) -> argparse.ArgumentParser:
        new = add(parent, name, summary, example)
        new.set_defaults(command=function)
        return new

    def group(parent: Any, name: str, summary: str, example: str) -> Any:
        new = add(parent, name, summary, example)
        return new.add_subparsers(required=True, metavar="COMMAND")

    top = parser.add_subparsers(required=True, metavar="COMMAND")
    training.add_commands(top, command)
    predict.add_commands(top, command)
    maps.add_commands(top, command)
    inspect_command.add_commands(top, command)
    evaluation.add_commands(top, command)
    data_commands.add_embed(top, command)
    data_commands.add_duplicates(top, command)
    data_commands.add_search(top, command)
    evaluation.add_look(top, command)
    data_commands.add_pack(top, command)
    export_command.add_commands(top, command)
    weights.add_commands(top, command, group)
    cache_command.add_commands(top, command)
    return parser
