"""`keras-vit embed`: features or scores of any number of photos, as a job that survives kills."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.cli.terminal import path
from keras_vit.embedding.loaders import OUTPUTS
from keras_vit.embedding.part_files import FORMS
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES
from keras_vit.pages.formatting import plural, printable

OPTIONS = {"out": "--out", "shard": "--shard", "form": "--format", "photos": "PHOTOS", "outputs": "--outputs"}


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write features or scores of photos into parts; the same command goes on after a kill"
    new = command(top, "embed", embed, summary, "keras-vit embed photos --model run --out vectors")
    new.add_argument(
        "photos",
        nargs="?",
        metavar="PHOTOS",
        help="a folder, a .csv file with the column path, or shards; by default none, for --check",
    )
    model = (
        "folder of a run, a .keras, .onnx or .xml file, a checkpoint, or as dinov2/S14; by default none, for --check"
    )
    new.add_argument("--model", metavar="MODEL", help=model)
    new.add_argument("--weights", metavar="NAME", help="for a variant; by default the usual ones")
    new.add_argument("--out", required=True, type=path, metavar="FOLDER", help="of the parts")
    new.add_argument("--outputs", choices=OUTPUTS, help="of the model; by default features")
    which = "software to compute in; by default a file's own, or ONNX Runtime where it is installed"
    new.add_argument("--engine", choices=ENGINES, help=which)
    new.add_argument("--precision", choices=ENGINE_PRECISIONS, help="of the engine; by default float32")
    new.add_argument("--threads", type=int, metavar="N", help="of each process; by default 1")
    new.add_argument("--processes", type=int, metavar="N", help="by default one a core, as memory allows")
    new.add_argument("--batch-size", type=int, metavar="B", help="photos at once; by default 32")
    new.add_argument("--part", type=int, metavar="N", help="photos of a part; by default 1000, of few photos fewer")
    new.add_argument(
        "--format", dest="form", choices=FORMS, help="of the parts; by default parquet, which needs pyarrow"
    )
    shard = "this job's part of the work, as 0/8; by default as SLURM, Kubernetes or RANK say"
    new.add_argument("--shard", metavar="I/N", help=shard)
    new.add_argument("--check", action="store_true", help="read all parts, count the rows, and compute nothing")


def embed(arguments: Namespace) -> Iterator[str]:
    from keras_vit.embedding.job import JobOptions, check_job, cluster_shard, describe_broken
    from keras_vit.embedding.job import embed as run_job

    if arguments.check:
        manifest, broken = check_job(arguments.out)
        rows = f"{plural(manifest.photos, 'row')} in {plural(manifest.parts, 'part')}"
        yield f"{rows}, all whole; {describe_broken(arguments.out, broken)}"
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
