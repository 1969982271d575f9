"""`keras-vit pack|duplicates`: photos as shards for training, and near duplicates among photos of `keras-vit embed`."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_vit.cli.terminal import loading, path, quiet_start, say_error
from keras_vit.config.datasets import SHARD_BYTES, SHARD_FORMATS
from keras_vit.embedding.duplicates import THRESHOLD, near_duplicates
from keras_vit.embedding.neighbors import SEARCHES, as_rows
from keras_vit.pages.formatting import plural, printable
from keras_vit.runs.options import ON_BAD_IMAGE

SAME_NAME = ("shard_bytes",)  # of options


def add_pack(top: Any, command: Callable[..., ArgumentParser]) -> None:
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


OPTIONS = {"threshold": "--threshold", "photos_in": "--photos-in"}


def add_duplicates(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "find near duplicates among embedded photos, as a table and a page with their pictures"
    new = command(top, "duplicates", duplicates, summary, "keras-vit duplicates vectors --page seen")
    new.add_argument("vectors", metavar="VECTORS", type=path, help="folder that keras-vit embed wrote")
    new.add_argument("--threshold", type=float, default=THRESHOLD, metavar="T", help="least cosine of a pair")
    new.add_argument("--out", type=path, default=Path("duplicates.csv"), metavar="FILE", help="table of the pairs")
    new.add_argument("--page", type=path, metavar="FOLDER", help="of duplicates.html with pictures; by default none")
    where = "folder of the photos on the page, if they were moved; by default that in which embed found them"
    new.add_argument("--photos-in", type=path, metavar="FOLDER", help=where)
    which = "numpy compares all pairs; faiss, for a million photos and more, may miss some"
    new.add_argument("--engine", choices=SEARCHES, default=SEARCHES[0], help=which)
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def duplicates(arguments: Namespace) -> Iterator[str]:
    from keras_vit.embedding.duplicates import PAGE, check_files, read_photo_list, write_pairs_page, write_table

    began = time.monotonic()
    out, page = arguments.out, arguments.page
    check_files(out, page)
    listed = page and read_photo_list(arguments.vectors, arguments.photos_in)
    rows = as_rows(arguments.vectors)
    found = near_duplicates(rows.vectors, arguments.threshold, engine=arguments.engine, say=say_error)
    write_table(out, rows, found)
    photos, groups = len(rows.vectors), int(found.groups.max()) + 1
    counts = {
        "photos": photos,
        "pairs": found.number,
        "groups": groups,
        "photos in groups": int((found.groups >= 0).sum()),
    }
    unread = write_pairs_page(page, listed, found, arguments.threshold, counts) if page else 0
    if arguments.json:
        facts = {"threshold": arguments.threshold, "engine": arguments.engine, "pairs_in_table": len(found.first)}
        facts |= {"table": str(out), "page": page and str(page / PAGE), "unread_photos": unread}
        facts["seconds"] = round(time.monotonic() - began, 1)
        yield json.dumps({name.replace(" ", "_"): value for name, value in counts.items()} | facts)
        return
    grouped = counts["photos in groups"]
    pairs = f"{plural(photos, 'photo')}, {plural(found.number, 'pair')} with a cosine of at least"
    yield f"{pairs} {arguments.threshold}, in {plural(groups, 'group')} of {plural(grouped, 'photo')}"
    if 2 * grouped > photos:
        yield "more than half of all photos are in a group: if they are not alike, raise --threshold"
    kept = f"the {len(found.first):,} most similar are" if found.number > len(found.first) else "all pairs are"
    yield f"{kept} in {printable(out)}"
    if page:
        yield f"open {printable(page / PAGE)}"
    if unread:
        yield f"{unread:,} of the photos on it could not be read in {printable(listed.top)}; the page says why"
