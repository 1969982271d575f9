"""The command line: `keras-vit models`, and `keras-vit weights list|info|fetch|verify|inspect|convert`.

A command is a generator of lines for the output, over one public function. What fails is one line on the
error stream and exit code 1; wrong usage is 2, Ctrl-C 130, SIGTERM 143, as shells count them, and a closed
pipe 141. A file that could not be brought has its recipe below that line, to be copied into a shell.
Nothing here imports Keras.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path

from keras_vit.variants import BUILDERS, VARIANTS, check_choice, did_you_mean
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.convert import convert_checkpoint
from keras_vit.weights.dialects import DIALECTS, recognise
from keras_vit.weights.fetch import DownloadError, cache_dir, find_local, verify_cache
from keras_vit.weights.fetch.remote import megabytes
from keras_vit.weights.hub import find_weights, list_weights
from keras_vit.weights.hub.augreg import augreg_record, looks_like_augreg
from keras_vit.weights.hub.records import parameter_count
from keras_vit.weights.reader import CheckpointError, scan
from keras_vit.weights.resolve import check_file, find_file, remote_file

_INTERRUPTED, _CLOSED_PIPE, _TERMINATED = 130, 141, 143  # 128 and the signal, as shells count


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and gives its exit code; `arguments` are those of the process by default."""
    arguments = _parser().parse_args(arguments)
    with _warnings_in_one_line(), _sigterm_stops():
        try:
            for line in arguments.command(arguments):
                _print(line)
        except BrokenPipeError:  # as behind `| head`: nobody reads any more, which is no fault
            return _CLOSED_PIPE
        except KeyboardInterrupt:
            return _fail("interrupted", _INTERRUPTED, arguments)
        except SystemExit:
            return _fail("terminated", _TERMINATED, arguments)
        except Exception as error:
            return _fail(_words(error), 1, arguments)
    return 0


def _models(arguments):
    counts = [
        (builder, name, f"{parameter_count(VARIANTS[name], 224, 1000):,}", str(VARIANTS[name].stride))
        for builder, name in BUILDERS.items()
    ]
    yield from _columns([("builder", "variant", "parameters", "stride"), *counts])


def _list(arguments):
    table = list_weights(arguments.model)
    yield json.dumps([_facts(record) for record in table], indent=2) if arguments.json else str(table)


def _info(arguments):
    for number, record in enumerate(_records(arguments.name, arguments.model)):
        local = find_local(remote_file(record))
        facts = _facts(record) | {"local": str(local) if local else f"not at hand; its place is {_place(record)}"}
        yield from [""] * (number > 0)
        yield from _columns(
            [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in facts.items()]
        )


def _fetch(arguments):
    name, model = arguments.name, arguments.model
    is_url = name.startswith(("http://", "https://"))
    variant = None if is_url and model is None else _only_variant(name, model)
    yield str(find_file(name, variant, sha256=arguments.sha256).path)


def _verify(arguments):
    """Looks at every file before it fails, so that one run names all that are bad."""
    bad = []
    found = ((file.path, file.ok, file.reason) for file in verify_cache(check_file))
    for path, ok, reason in map(_verify_file, arguments.paths) if arguments.paths else found:
        bad += [] if ok else [str(path)]
        yield f"{'ok' if ok else 'BAD'}  {_printable(path)}  {_one_line(reason)}"
    if bad:
        raise CheckpointError(f"files that are not sound: {', '.join(bad)}")


def _verify_file(path):
    try:
        check_file(path)
    except (ValueError, OSError) as error:
        return path, False, str(error)
    return path, True, "every array is whole and finite"


def _inspect(arguments):
    file = scan(arguments.file)
    known = recognise(file.kind, file.entries)
    yield f"file     {_printable(file.path)}: {file.kind}, {megabytes(file.path.stat().st_size)}"
    yield f"dialect  {known[0] if known else 'unknown'}"
    if known:
        checkpoint = read_checkpoint(arguments.file, allow_nonfinite=True)
        grid = "x".join(map(str, checkpoint.grid)) if checkpoint.grid else "unknown"
        yield f"model    {checkpoint.looks_like()}, {checkpoint.classes or 0} classes, position grid {grid}"
    yield f"note     {json.dumps(file.note)}"
    for name, entry in file.entries.items():
        yield f"  {_printable(name)}  {entry.shape}  {entry.dtype.name}"


def _convert(arguments):
    if arguments.model is not None:
        _check_looks_like(arguments.source, _variant(arguments.model))
    path = convert_checkpoint(arguments.source, arguments.destination, arguments.dialect, num_heads=arguments.heads)
    yield str(path)


def _check_looks_like(path, variant):
    checkpoint = read_checkpoint(path)
    if checkpoint.variant() != variant:
        raise CheckpointError(
            f"the file must hold what `--model` says.\nReceived: --model {variant}, and {path} holds "
            f"{checkpoint.looks_like()}."
        )


def _variant(model):
    """The variant of a builder's name or a variant's."""
    check_choice("model", model, (*BUILDERS, *VARIANTS))
    return BUILDERS.get(model, model)


def _records(name, model):
    """All records of that name: of one model, or of any."""
    if model is not None:
        return [find_weights(name, _variant(model))]
    found = {}
    for variant in VARIANTS:
        with contextlib.suppress(ValueError):
            found[variant] = find_weights(name, variant)
    if not found and looks_like_augreg(name):
        return [augreg_record(name)]  # which says what is wrong with it
    if not found:
        names = sorted({record.name for record in list_weights()})
        raise ValueError(
            "published weights must be named as in `keras-vit weights list`, or be the name of an AugReg file.\n"
            f"Received: {name!r}.{did_you_mean(name, names)}"
        )
    return list(found.values())


def _only_variant(name, model):
    if model is not None:
        return _variant(model)
    records = _records(name, None)
    if len(records) > 1:
        variants = ", ".join(record.variant for record in records)
        raise ValueError(
            f"`--model` must say which, as several have weights of that name: {variants}.\nReceived: {name!r}."
        )
    return records[0].variant


def _facts(record):
    """A record as JSON has it."""
    return dataclasses.asdict(record) | {"fields": dict(record.fields)}


def _place(record):
    return cache_dir() / record.path


def _columns(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _printable(text):
    """Text of a stranger's file without what would steer the terminal."""
    text = str(text)
    return text if text.isprintable() else ascii(text)


def _one_line(text):
    return _printable(" ".join(str(text).split()))


def _words(error):
    """What to print of an error: one line, but for a file that did not come, whose recipe is lines for a shell."""
    if isinstance(error, DownloadError):
        first, *rest = str(error).splitlines()
        return "\n".join([_one_line(first), *(f"  {line}" for line in rest)])
    expected = isinstance(error, (ValueError, OSError))
    return _one_line(error if expected else f"{type(error).__name__}: {error} (--debug shows where)")


def _fail(words, code, arguments):
    if getattr(arguments, "debug", False):
        traceback.print_exc()
    print(f"keras-vit: error: {words}", file=sys.stderr)
    return code


def _print(line):
    try:
        print(line, flush=True)
    except OSError:  # closed or full; Python would try the rest again at its end, and add words of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


@contextlib.contextmanager
def _warnings_in_one_line():
    def show(message, *_):
        print(f"keras-vit: warning: {_one_line(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _sigterm_stops():
    """SIGTERM unwinds as Ctrl-C does, so that locks are let go of and a begun download is kept."""

    def stop(*_):
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser():
    debug = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    debug.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show where an error arose")
    parser = argparse.ArgumentParser("keras-vit", description="Vision Transformers and their weights.", parents=[debug])

    def command(group, name, function, summary):
        new = group.add_parser(name, help=summary, description=summary, parents=[debug], allow_abbrev=False)
        new.set_defaults(command=function)
        return new

    top = parser.add_subparsers(required=True, metavar="COMMAND")
    command(
        top, "models", _models, "the builders, with parameters at 224 pixels and 1,000 classes, and stride in pixels"
    )
    weights = top.add_parser("weights", help="published and local checkpoints", parents=[debug], allow_abbrev=False)
    group = weights.add_subparsers(required=True, metavar="COMMAND")
    model = {"metavar": "MODEL", "help": "a builder as ViTB16, or a variant as B/16"}

    new = command(group, "list", _list, "the published checkpoints")
    new.add_argument("model", nargs="?", **model)
    new.add_argument("--json", action="store_true", help="all facts, for programs")

    new = command(group, "info", _info, "all that is known of published weights, and where they are on this machine")
    new.add_argument("name", metavar="NAME", help="as in `weights list`, or the name of an AugReg file")
    new.add_argument("--model", **model)

    new = command(group, "fetch", _fetch, "download and verify weights unless they are at hand, and print their path")
    new.add_argument("name", metavar="NAME", help="as in `weights list`, the name of an AugReg file, or an https URL")
    new.add_argument("--model", **model)
    new.add_argument("--sha256", metavar="DIGEST", help="that the file must have")

    new = command(
        group, "verify", _verify, "look for damage in files, or in the whole cache, by content and noted sha256"
    )
    new.add_argument("paths", metavar="PATH", nargs="*", type=Path)

    new = command(group, "inspect", _inspect, "what a checkpoint file holds; nothing of it is run")
    new.add_argument("file", metavar="FILE", type=Path)

    new = command(group, "convert", _convert, "write a checkpoint in the layout of other software")
    new.add_argument("source", metavar="SOURCE", type=Path)
    new.add_argument("destination", metavar="DESTINATION", type=Path)
    new.add_argument("--dialect", required=True, choices=list(DIALECTS))
    new.add_argument("--model", metavar="MODEL", help="refuse unless the file holds this one")
    new.add_argument("--heads", metavar="A", type=int, help="attention heads, where the file does not tell them")
    return parser
