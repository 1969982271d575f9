"""`keras-vit push|models`, and `keras-vit weights list|info|fetch|verify|inspect|convert`."""

import contextlib
import dataclasses
import itertools
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.cache import cache_dir
from keras_vit.checks import check_positive_int
from keras_vit.cli.terminal import loading, one_line, path, quiet_start, terminal_width
from keras_vit.config.flops import flops, parameter_count
from keras_vit.config.variants import (
    BUILDERS,
    DEFAULT_CLASSES,
    DEFAULT_IMAGE_SIZE,
    ENCODERS,
    RESNETS,
    VARIANTS,
    family_of,
)
from keras_vit.config.vit import ViTConfig
from keras_vit.pages.formatting import columns, format_facts, plural, printable
from keras_vit.runs.load import check_pushed
from keras_vit.weights.checkpoint import file_in, read_checkpoint
from keras_vit.weights.convert import convert_checkpoint
from keras_vit.weights.download.cache import is_noted, place_at_hand, verify_cache, verify_file
from keras_vit.weights.download.hugging_face import find_in_library_cache
from keras_vit.weights.download.remote import megabytes
from keras_vit.weights.families import LAYOUTS, recognize
from keras_vit.weights.file_checks import check_cached, check_file, check_for
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import scan_any
from keras_vit.weights.registry import find_weights, list_weights, near, variant_of
from keras_vit.weights.registry.augreg import augreg_record, looks_like_augreg
from keras_vit.weights.registry.record import WeightsRecord, published_config
from keras_vit.weights.resolve import find_file, is_url, remote_file
from keras_vit.weights.upload import check_license, check_repository

_FLOPS = ("GFLOP", "GFLOP of every token")  # columns
_MODELS_HEADER = ("family", "builder", "variant", "parameters", "patch", "size")
_MODELS = (  # family, builder and variant
    *(("vit", builder, variant) for builder, variant in BUILDERS.items()),
    *(("bit", name, name) for name in RESNETS),
    *((family_of(name), builder, name) for name, builder in ENCODERS.items()),
)
_FAMILIES = tuple(dict.fromkeys(family for family, *_ in _MODELS))
_LIST_HEADER = ("name", "pixels", "classes", "MB", "accuracy")
_LIST_INDENT = "  "  # of the files of a model


def add_commands(top: Any, command: Callable[..., ArgumentParser], group: Callable) -> None:
    """Adds these commands to the parser; `command` and `group` make a command and a group of them."""
    summary = "publish a run or a checkpoint folder on the Hugging Face Hub, from where `hf:` loads it"
    _add_push(command(top, "push", push, summary, "keras-vit push run owner/name --license apache-2.0"))
    summary = "list all builders with their parameters, which for vit and bit include a head of 1,000 classes"
    new = command(top, "models", models, summary, "keras-vit models --family vit --flops --image-size 384")
    new.add_argument("--family", choices=_FAMILIES, metavar="FAMILY", help="as vit, bit or dinov2; by default all")
    new.add_argument("--flops", action="store_true", help="also GFLOP of one image; a multiply-add is 2 FLOPs")
    size = "side in pixels, for all; by default that of each model's first weights in `weights list`"
    new.add_argument("--image-size", metavar="SIZE", type=int, help=f"{size}. A side that patches do not tile gives -")
    _add_weights(
        command,
        group(top, "weights", "list, download, verify, inspect and convert checkpoints", "keras-vit weights list B/16"),
    )


def _add_push(new: ArgumentParser) -> None:
    new.add_argument(
        "folder",
        metavar="FOLDER",
        type=path,
        help="folder of a run, or of weights in the layout of timm or transformers",
    )
    new.add_argument("repository", metavar="REPOSITORY", help="owner/name on the Hub; it is made if it does not exist")
    new.add_argument(
        "--license", metavar="NAME", help="licence of the weights, as mit; by default that of the model card"
    )
    new.add_argument(
        "--dialect",
        choices=("timm", "huggingface", "open_clip"),
        help="layout in which a run's weights are written; by default timm, of both towers open_clip",
    )
    new.add_argument("--private", action="store_true", help="make the repository private, if it is new")


def _add_weights(command: Callable[..., ArgumentParser], weights: Any) -> None:
    model: dict[str, Any] = {"metavar": "MODEL", "help": "a builder as ViTB16, or a variant as B/16; by default any"}

    new = command(weights, "list", _list, "list the published checkpoints", "keras-vit weights list B/16")
    new.add_argument("model", nargs="?", **model)
    new.add_argument(
        "--family", metavar="FAMILY", help="only weights of this family, as augreg or dinov2; by default all"
    )
    new.add_argument("--json", action="store_true", help="print all facts as JSON, for programs")

    summary = "show all that is known of published weights, and where they are on this machine"
    new = command(weights, "info", _info, summary, "keras-vit weights info augreg-imagenet21k --model B/16")
    new.add_argument("name", metavar="NAME", help="a name of `weights list`, or that of an AugReg file")
    new.add_argument("--model", **model)

    summary = "download weights if they are not here yet, check them, and print their path"
    new = command(weights, "fetch", _fetch, summary, "keras-vit weights fetch augreg-imagenet21k --model B/16")
    new.add_argument("name", metavar="NAME", help="a name of `weights list`, that of an AugReg file, or an https URL")
    new.add_argument("--model", **model)
    new.add_argument("--sha256", metavar="DIGEST", help="SHA-256 that the file must have; by default any")

    summary = "look for damage in downloaded files, by their content and the SHA-256 of their first download"
    new = command(weights, "verify", _verify, summary, "keras-vit weights verify")
    new.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=path,
        help="files to check; by default the whole cache, and what was checked in that of huggingface_hub",
    )

    summary = "show what a checkpoint file holds; no code in it is run"
    new = command(weights, "inspect", _inspect, summary, "keras-vit weights inspect B_16.npz")
    new.add_argument("file", metavar="FILE", type=path, help="an .npz, .safetensors or .pth file, or its folder")

    summary, example = "write a checkpoint in the layout of other software", "B_16.npz for_timm --dialect timm"
    new = command(weights, "convert", _convert, summary, f"keras-vit weights convert {example}")
    new.add_argument("source", metavar="SOURCE", type=path, help="an .npz, .safetensors or .pth file, or its folder")
    new.add_argument("destination", metavar="DESTINATION", type=path, help="the new file, or a folder with its config")
    new.add_argument("--dialect", required=True, choices=list(LAYOUTS), help="the layout to write")
    new.add_argument("--model", metavar="MODEL", help="refuse a file that does not hold this model; by default any")
    new.add_argument("--heads", metavar="A", type=int, help="number of attention heads; by default as the file says")
    grid = "grid of the position table, where it is not square; by default as the file says"
    new.add_argument("--grid", metavar=("H", "W"), type=int, nargs=2, help=grid)


def push(arguments: Namespace) -> Iterator[str]:
    """Prints the name by which the weights are loaded; a wrong one is refused before Keras is imported."""
    check_repository(arguments.repository)
    check_license(arguments.license)
    check_pushed(arguments.folder, arguments.dialect)
    yield loading(arguments.folder)
    with quiet_start():
        import keras_vit.api  # noqa: F401  # every layer that a model's file may name
        from keras_vit.runs.publishing import push_to_hub
    options = {"license": arguments.license, "format": arguments.dialect, "private": arguments.private}
    yield push_to_hub(arguments.folder, arguments.repository, **options)


def models(arguments: Namespace) -> Iterator[str]:
    size = arguments.image_size
    if size is not None:
        check_positive_int("image_size", size)
    header = (*_MODELS_HEADER, *(_FLOPS if arguments.flops else ()))
    rows = (row for row in _MODELS if arguments.family in (None, row[0]))
    yield from columns([header, *(_row(*row, size)[: len(header)] for row in rows)])


def _row(family: str, builder: str, name: str, size: int | None) -> tuple[str, ...]:
    """What the header of the table of models names; of an encoder without a head."""
    config, classes = published_config(name), 0 if name in ENCODERS else DEFAULT_CLASSES
    records = [] if size is not None else list_weights(name)
    sides = (size, size) if size is not None else (DEFAULT_IMAGE_SIZE // config.side_unit * config.side_unit,) * 2
    sides = records[0].preprocessing.image_size if records else sides
    patch, pixels = str(config.stride), str(sides[0]) if sides[0] == sides[1] else "x".join(map(str, sides))
    if any(side % config.side_unit for side in sides):
        return family, builder, name, "-", patch, pixels, *("-" for _ in _FLOPS)
    every_token = config.replace(last_block_outputs="all") if isinstance(config, ViTConfig) else config
    counted = (flops(each, sides, classes=classes).total / 1e9 for each in (config, every_token))
    parameters = f"{parameter_count(config, sides, classes):,}"
    return family, builder, name, parameters, patch, pixels, *(f"{giga:.2f}" for giga in counted)


def _list(arguments: Namespace) -> Iterator[str]:
    table = list_weights(arguments.model, arguments.family)
    if arguments.json:
        yield json.dumps([_facts(record) for record in table], indent=2)
    elif width := terminal_width():
        yield from weights_lines(table, width)
    else:  # where each file has one line with all facts of the table, for `grep` and a log
        yield str(table)


def _info(arguments: Namespace) -> Iterator[str]:
    for number, record in enumerate(_records(arguments.name, arguments.model)):
        local = place_at_hand(remote_file(record)) or _in_library_cache(record)
        facts = _facts(record) | {"local": str(local) if local else f"not at hand; its place is {_place(record)}"}
        facts |= {} if record.bytes else {"bytes": f"{record.megabytes} MB, by its parameters in float32"}
        yield from [""] * (number > 0)
        rows = [(key, text if isinstance(text, str) else json.dumps(text)) for key, text in facts.items() if text != ""]
        if terminal_width():
            indent = max(len(key) for key, _ in rows) + 2
            yield from itertools.chain.from_iterable(format_facts(*row, indent) for row in rows)
        else:
            yield from columns(rows)


def _fetch(arguments: Namespace) -> Iterator[str]:
    name, model = arguments.name, arguments.model
    variant = None if is_url(name) and model is None else _only_variant(name, model)
    file = find_file(name, variant, sha256=arguments.sha256)
    if not is_noted(file.path):  # of a mirror, where nothing was verified yet
        (check_for(file.record) if file.record else check_file)(file.path)
    yield str(file.path)


def _verify(arguments: Namespace) -> Iterator[str]:
    """Looks at every file before it fails, so that one run names all that are bad."""
    given = (verify_file(path, check_cached) for path in arguments.paths)
    bad, file = [], None
    for file in given if arguments.paths else verify_cache(check_cached):
        bad += [] if file.ok else [str(file.path)]
        yield f"{'ok' if file.ok else 'BAD'}  {printable(file.path)}  {one_line(file.reason)}"
    if file is None:
        yield f"no file in the cache, {printable(cache_dir())}"
    if bad:
        raise CheckpointError(f"files that are not valid: {', '.join(bad)}")


def _inspect(arguments: Namespace) -> Iterator[str]:
    file = scan_any(file_in(arguments.file))
    known = recognize(file.kind, file.entries)
    yield f"file     {printable(file.path)}: {file.kind}, {megabytes(file.size)}"
    if known:
        checkpoint = read_checkpoint(arguments.file, allow_nonfinite=True)
        grid = "x".join(map(str, checkpoint.grid)) if checkpoint.grid else "unknown"
        table = f"position grid {grid}" if checkpoint.has_grid_tables else "no position table"
        positions = "" if checkpoint.is_resnet else f", {table}"
        outputs = (
            f"an embedding of {checkpoint.classes}" if checkpoint.embeds() else f"{checkpoint.classes or 0} classes"
        )
        family = f", by its config {printable(checkpoint.family)}" if checkpoint.family else ""
        yield f"dialect  {checkpoint.layout}{family}"
        yield f"model    {checkpoint.describe()}, {outputs}{positions}"
    else:
        yield "dialect  unknown"
    yield f"note     {json.dumps(file.note)}"
    for name, entry in file.entries.items():
        yield f"  {printable(name)}  {entry.shape}  {entry.dtype.name}"


def _convert(arguments: Namespace) -> Iterator[str]:
    if arguments.model is not None:
        _check_looks_like(arguments.source, variant_of(arguments.model))
    options = {"num_heads": arguments.heads, "grid": arguments.grid and tuple(arguments.grid)}
    yield str(convert_checkpoint(arguments.source, arguments.destination, arguments.dialect, **options))


def _check_looks_like(path: Path, variant: str) -> None:
    checkpoint = read_checkpoint(path)
    if checkpoint.variant() != variant:
        raise CheckpointError(
            f"the file must hold what `--model` says.\nReceived: --model {variant}, and {path} holds "
            f"{checkpoint.describe()}."
        )


def _records(name: str, model: str | None) -> list[WeightsRecord]:
    """All records of that name: of one model, or of any."""
    if model is not None:
        return [find_weights(name, variant_of(model))]
    found = {}
    for variant in (*VARIANTS, *RESNETS, *ENCODERS):
        with contextlib.suppress(ValueError):
            found[variant] = find_weights(name, variant)
    if not found and looks_like_augreg(name):
        return [augreg_record(name)]  # which says what is wrong with it
    if not found:
        names = sorted({record.name for record in list_weights()})
        raise ValueError(
            "published weights must be named as in `keras-vit weights list`, or be the name of an AugReg file.\n"
            f"Received: {name!r}.{near(name, names)}"
        )
    return list(found.values())


def _only_variant(name: str, model: str | None) -> str:
    if model is not None:
        return variant_of(model)
    if name.startswith("hf:") and not any(name == f"hf:{record.hf_repo}" for record in list_weights()):
        raise ValueError(
            f"`--model` must say which model it is, since the table does not know this repository.\nReceived: {name!r}."
        )
    records = _records(name, None)
    if len(records) > 1:
        variants = ", ".join(record.variant for record in records)
        raise ValueError(
            f"`--model` must say which, as several have weights of that name: {variants}.\nReceived: {name!r}."
        )
    return records[0].variant


def _facts(record: WeightsRecord) -> dict[str, Any]:
    """A record as JSON has it."""
    return dataclasses.asdict(record) | {"fields": dict(record.fields), "has_text": record.has_text}


def _in_library_cache(record: WeightsRecord) -> Path | None:
    """Where huggingface_hub keeps a record's file, if it is a file of the Hub and is there."""
    if record.hf_repo is None or not record.path.startswith("hf/"):
        return None
    return find_in_library_cache(remote_file(record), record.hf_repo)


def _place(record: WeightsRecord) -> Path:
    return cache_dir() / record.path


def weights_lines(records: Sequence[Any], width: int) -> Iterator[str]:
    """Lines of a list in columns. A name that leaves no room for the others stands on a line of its own.

    Args:
        records: as of `list_weights`, in its order.
        width: of the terminal; lines are shorter, unless a name alone is not.
    """
    if not records:
        yield "No weights are published for this model."
        return
    cells = [(f"{_LIST_INDENT}{record.name}", *_list_cells(record)) for record in records]
    widths = [max(map(len, column)) for column in zip(_LIST_HEADER, *cells, strict=True)]
    widths[0] = min(widths[0], width - 1 - sum(2 + each for each in widths[1:]))
    yield _list_row(_LIST_HEADER, widths)
    rows = zip(records, cells, strict=True)
    for (variant, license), group in itertools.groupby(rows, lambda row: (row[0].variant, row[0].license)):
        yield f"{variant}, {license}"
        for _, (name, *others) in group:
            if len(name) > widths[0]:
                yield name
                name = ""
            yield _list_row((name, *others), widths)
    files = plural(len(records), "file")
    yield f"{files}. Accuracy without a name is top-1; ? is not published."
    yield "~ is computed from the parameters. text: with a text tower, not counted in MB."
    yield "keras-vit weights info NAME prints all facts of a file."


def _list_cells(record: Any) -> tuple[str, ...]:
    if record.accuracy is None:
        accuracy = "zero head" if record.head == "zero" else "?"
    else:
        accuracy = f"{record.accuracy:.1f}" + ("" if record.measure == "top-1" else f" {record.measure}")
    accuracy += "  text" * record.has_text
    return str(record.resolution), str(record.classes or "-"), record.megabytes, accuracy


def _list_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers, accuracy = cells
    right = (number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True))
    return "  ".join([name.ljust(widths[0]), *right, accuracy]).rstrip()
