"""`keras-vit pack|embed|duplicates|search`: photos as shards, vectors of them, and what is found by those."""

import itertools
import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError, check_positive_int, check_seed
from keras_vit.cli.terminal import check_data, loading, path, quiet_start, say_error
from keras_vit.config.datasets import SHARD_BYTES, SHARD_FORMATS, check_shard_bytes
from keras_vit.embedding.duplicates import THRESHOLD, near_duplicates
from keras_vit.embedding.loaders import OUTPUTS
from keras_vit.embedding.manifest import FORMS
from keras_vit.embedding.neighbors import SEARCHES, as_rows
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES
from keras_vit.files import check_new_dir
from keras_vit.pages.formatting import plural, printable
from keras_vit.runs.options import ON_BAD_IMAGE

SAME_NAME = ("shard_bytes",)  # of options
OPTIONS = {"out": "--out", "shard": "--shard", "form": "--format", "photos": "PHOTOS", "outputs": "--outputs"}
OPTIONS |= {"part": "--part", "threshold": "--threshold", "photos_in": "--photos-in", "k": "-k"}


def add_pack(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write the photos of a data set as shards: tars, TFRecords or Parquet"
    new = command(top, "pack", pack, summary, "keras-vit pack photos shards --format tar")
    new.add_argument(
        "data", metavar="DATA", help="a folder of class folders, a .csv, shards or a name, as --data of finetune"
    )
    new.add_argument("out", metavar="FOLDER", type=path, help="a new or empty folder")
    new.add_argument("--format", default="tar", choices=SHARD_FORMATS, help="format of the shards")
    most = f"largest total of the photos in one shard; by default {SHARD_BYTES}"
    new.add_argument("--shard-bytes", type=int, default=SHARD_BYTES, metavar="BYTES", help=most)
    new.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the division into splits, and of the order"
    )
    bad = "leave out files that cannot be decoded, or refuse them"
    new.add_argument("--on-bad-image", default="skip", choices=ON_BAD_IMAGE, help=bad)


def pack(arguments: Namespace) -> Iterator[str]:
    check_data(arguments.data)
    check_seed("seed", arguments.seed)
    check_shard_bytes(arguments.shard_bytes)
    check_new_dir(Path(os.path.abspath(arguments.out)))
    yield loading(arguments.data)
    with quiet_start():
        import keras_vit.api as keras_vit
    options = {name: getattr(arguments, name) for name in ("format", "shard_bytes", "seed", "on_bad_image")}
    shards = keras_vit.pack(arguments.data, arguments.out, **options)
    size = sum(shard.stat().st_size for shard in shards)
    yield f"wrote {plural(len(shards), 'shard')} of {size / 1e6:,.1f} MB to {printable(arguments.out)}"


def add_embed(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write the features or scores of photos to files; after a kill, the same command goes on"
    new = command(top, "embed", embed, summary, "keras-vit embed photos --model run --out vectors")
    new.add_argument(
        "photos",
        nargs="?",
        metavar="PHOTOS",
        help="a folder, a table with the column path, or shards; by default none, for --check",
    )
    model = (
        "folder of a run, a .keras, .onnx or .xml file, a checkpoint, or as dinov2/S14; by default none, for --check"
    )
    new.add_argument("--model", metavar="MODEL", help=model)
    new.add_argument(
        "--weights",
        metavar="NAME",
        help="weights of a model given by name; by default its first ones in `weights list`",
    )
    new.add_argument(
        "--out", required=True, type=path, metavar="FOLDER", help="where the files, called parts, are written"
    )
    new.add_argument("--outputs", choices=OUTPUTS, help="what the model answers; by default features")
    which = "software to compute in; by default that of an exported file, else ONNX Runtime where it is installed"
    new.add_argument("--engine", choices=ENGINES, help=which)
    new.add_argument("--precision", choices=ENGINE_PRECISIONS, help="precision of the engine; by default float32")
    new.add_argument("--threads", type=int, metavar="N", help="threads of each process; by default 1")
    new.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="how many processes; by default one for each core, or fewer where memory is short",
    )
    new.add_argument(
        "--batch-size", type=int, metavar="B", help="photos that a process computes at once; by default 32"
    )
    new.add_argument(
        "--part", type=int, metavar="N", help="photos in a part; by default 1000, or fewer if there are few photos"
    )
    new.add_argument(
        "--format", dest="form", choices=FORMS, help="format of the parts; by default parquet, which needs pyarrow"
    )
    shard = (
        "share of the photos that this job does, as 0/8 for the first of 8; by default from SLURM, Kubernetes or RANK"
    )
    new.add_argument("--shard", metavar="I/N", help=shard)
    new.add_argument("--check", action="store_true", help="only read all parts and count their rows")


def embed(arguments: Namespace) -> Iterator[str]:
    from keras_vit.embedding.job import JobOptions, check_job, check_some_read, cluster_shard, describe_broken
    from keras_vit.embedding.job import embed as run_job

    if arguments.check:
        manifest, broken = check_job(arguments.out, _say)
        rows = f"{plural(manifest.photos, 'row')} in {plural(manifest.parts, 'part')}"
        yield f"{rows}, all whole; {describe_broken(arguments.out, broken)}"
        check_some_read(arguments.out, manifest, broken)
        return
    for name, value in (("PHOTOS", arguments.photos), ("--model", arguments.model)):
        if not value:
            raise ArgumentError(f"`{name}` must be given, but with `--check`.\nReceived: none.", parameters=("photos",))
    names = ("outputs", "engine", "precision", "weights", "threads", "batch_size", "part", "form", "processes")
    options = JobOptions(shard=cluster_shard(arguments.shard), **{name: getattr(arguments, name) for name in names})
    run_job(path(arguments.photos), arguments.model, arguments.out, options, say=_say)
    yield f"vectors are in {printable(arguments.out)}"


def _say(line: str) -> None:
    print(printable(line), flush=True)


def add_duplicates(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "find near duplicates among embedded photos, as a table and a page with their pictures"
    new = command(top, "duplicates", duplicates, summary, "keras-vit duplicates vectors --page seen")
    new.add_argument("vectors", metavar="VECTORS", type=path, help="the folder that keras-vit embed wrote")
    new.add_argument(
        "--threshold",
        type=float,
        default=THRESHOLD,
        metavar="T",
        help="pairs with a cosine of at least this are near duplicates",
    )
    new.add_argument(
        "--out", type=path, default=Path("duplicates.csv"), metavar="FILE", help="where the table of pairs is written"
    )
    new.add_argument(
        "--page",
        type=path,
        metavar="FOLDER",
        help="also write duplicates.html with pictures into this folder; by default not",
    )
    where = "where the photos are now, if they were moved; by default where embed found them"
    new.add_argument("--photos-in", type=path, metavar="FOLDER", help=where)
    which = "numpy compares all pairs; faiss is for a million photos and more, and may miss some"
    new.add_argument("--engine", choices=SEARCHES, default=SEARCHES[0], help=which)
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def duplicates(arguments: Namespace) -> Iterator[str]:
    from keras_vit.embedding.duplicates import (
        PAGE,
        check_files,
        check_search,
        read_photo_list,
        write_pairs_page,
        write_table,
    )

    began = time.monotonic()
    out, page = arguments.out, arguments.page
    check_search(arguments.threshold, arguments.engine)
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


def add_search(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "find embedded photos by what they show, in words, as a list and a page with their pictures"
    new = command(top, "search", search, summary, 'keras-vit search vectors "a red car" --model clip-folder')
    new.add_argument("vectors", metavar="VECTORS", type=path, help="folder that keras-vit embed wrote")
    new.add_argument("texts", metavar="TEXT", nargs="+", help="what the photos show")
    new.add_argument(
        "--model", required=True, metavar="MODEL", help="the model that made the vectors, with its text tower"
    )
    new.add_argument("-k", type=int, default=10, metavar="K", help="photos of a text; by default 10")
    words = "also write search.html, with pictures, into this folder; by default none"
    new.add_argument("--page", type=path, metavar="FOLDER", help=words)
    where = "folder of the photos on the page, if they were moved; by default that in which embed found them"
    new.add_argument("--photos-in", type=path, metavar="FOLDER", help=where)
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def search(arguments: Namespace) -> Iterator[str]:
    from keras_vit.embedding.duplicates import read_photo_list
    from keras_vit.embedding.search import PAGE, search_photos, write_search_page
    from keras_vit.pages.html import check_page

    check_positive_int("k", arguments.k)
    if arguments.page:
        check_page(arguments.page / PAGE)
        read_photo_list(arguments.vectors, arguments.photos_in)
    with quiet_start():
        import keras_vit.text_builders  # noqa: F401
    found = search_photos(arguments.vectors, arguments.texts, arguments.model, arguments.k)
    names: Any = [] if found.photos is None else found.photos
    hits = [
        {"text": text, "photo": str(names[row]), "cosine": round(float(value), 4)}
        for text, rows, values in zip(arguments.texts, found.indices, found.similarities, strict=True)
        for row, value in zip(rows, values, strict=True)
        if row >= 0
    ]
    if arguments.page:
        write_search_page(arguments.page, arguments.vectors, arguments.texts, found, arguments.photos_in)
    if arguments.json:
        yield json.dumps({"hits": hits, "page": arguments.page and str(arguments.page / PAGE)})
        return
    for text, of_text in itertools.groupby(hits, lambda hit: hit["text"]):
        yield from [printable(text)] if len(arguments.texts) > 1 else []
        yield from (f"  {hit['cosine']:.3f}  {printable(hit['photo'])}" for hit in of_text)
    if arguments.page:
        yield f"open {printable(arguments.page / PAGE)}"
