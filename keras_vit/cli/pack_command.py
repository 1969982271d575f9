"""`keras-vit pack`: photos as shards, for training here or by other software."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.cli.printing import path
from keras_vit.cli.startup import loading, quiet_start
from keras_vit.config.datasets import SHARD_BYTES, SHARD_FORMATS
from keras_vit.pages.formatting import printable
from keras_vit.runs.options import ON_BAD_IMAGE

SAME_NAME = ("shard_bytes",)  # of options


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write the photos of a data set as shards: tars, TFRecords, ArrayRecord or Parquet"
    new = command(top, "pack", pack, summary, "keras-vit pack photos shards --format tar")
    new.add_argument("data", metavar="DATA", help="as --data of finetune")
    new.add_argument("out", metavar="FOLDER", type=path, help="a new or empty folder")
    new.add_argument("--format", default="tar", choices=SHARD_FORMATS, help="of the shards")
    most = f"most bytes of photos in a shard; by default {SHARD_BYTES}"
    new.add_argument("--shard-bytes", type=int, default=SHARD_BYTES, metavar="BYTES", help=most)
    new.add_argument("--seed", type=int, default=0, metavar="N", help="of the division into splits and of the order")
    bad = "leave out files that cannot be decoded, or refuse them"
    new.add_argument("--on-bad-image", default="skip", choices=ON_BAD_IMAGE, help=bad)


def pack(arguments: Namespace) -> Iterator[str]:
    yield loading(arguments.data)
    with quiet_start():
        import keras_vit.api as keras_vit
    options = {name: getattr(arguments, name) for name in ("format", "shard_bytes", "seed", "on_bad_image")}
    shards = keras_vit.pack(arguments.data, arguments.out, **options)
    size = sum(shard.stat().st_size for shard in shards)
    yield f"wrote {len(shards):,} shards of {size / 1e6:,.1f} MB to {printable(arguments.out)}"
