"""`keras-vit look`: what a model sees in photos, as pictures and a page."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.checks import check_positive_int
from keras_vit.cli.models import check_model, load_model_and_run, output_names
from keras_vit.cli.terminal import loading, path, quiet_start


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write what a model sees in photos: attention, relevance, similarity, on one page"
    new = command(top, "look", look, summary, "keras-vit look run photo.jpg --out seen")
    new.add_argument("model", metavar="MODEL", help="folder of a run, a .keras file, a checkpoint, or as B/16")
    new.add_argument("images", metavar="IMAGE", nargs="+", type=path, help="photos")
    new.add_argument("--out", metavar="FOLDER", type=path, required=True, help="a new or empty folder")
    new.add_argument("--weights", metavar="NAME", help="for a variant; by default ImageNet's 1,000 classes")
    new.add_argument(
        "--blocks", metavar="N", nargs="+", type=int, help="blocks with the attention of every patch; by default four"
    )
    new.add_argument("--top", type=int, default=5, metavar="K", help="classes with relevance")
    new.add_argument("--theme", default="light", choices=("light", "dark"), help="of the pictures")


def look(arguments: Namespace) -> Iterator[str]:
    check_positive_int("top", arguments.top)
    check_model(arguments)
    yield loading(arguments.model)
    with quiet_start():
        import keras_vit.api as keras_vit
    model, run = load_model_and_run(arguments, needs_head=False)
    page = keras_vit.look(
        model,
        arguments.images,
        arguments.out,
        **run.task.look_arguments(output_names(model, run.class_names)),
        blocks=arguments.blocks,
        top=arguments.top,
        theme=arguments.theme,
    )
    yield f"open {page}"
