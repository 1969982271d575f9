"""`keras-vit evaluate|vtab|look`: how good a classifier, or a probe on a model, is on labelled images; what it sees."""

import argparse
import dataclasses
import unicodedata
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.checks import ArgumentError, check_positive_int, check_seed
from keras_vit.cli import engines
from keras_vit.cli.models import (
    add_zero_shot_options,
    check_model,
    check_top,
    check_top_of_run,
    check_zero_shot_options,
    class_words,
    is_run,
    load_model_and_run,
    load_zero_shot,
    output_names,
    run_facts,
)
from keras_vit.cli.terminal import check_data, check_photos_exist, loading, path, quiet_start
from keras_vit.config.datasets import PROTOCOLS, check_protocol, vtab_names
from keras_vit.config.variants import RESNETS
from keras_vit.pages.formatting import columns, plural, printable, printable_json
from keras_vit.pages.html import PAGE, check_new_folder, check_page
from keras_vit.runs.options import ON_BAD_IMAGE
from keras_vit.tasks import DEFAULT, find_task
from keras_vit.tasks.task import TOP

if TYPE_CHECKING:
    from keras_vit.runs.load import RunFacts

_KINDS = ("fewshot", "linear", "knn")  # of probes; what is no probe measures the model's own head


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds these commands to the parser; `command` makes one."""
    summary = "measure a model on labelled images; with --probe, a small classifier on its features"
    _add_evaluate(command(top, "evaluate", evaluate, summary, "keras-vit evaluate run --split test"))
    summary = "measure a model on those of the 19 tasks of VTAB-1k whose data are prepared on this machine"
    _add_vtab(command(top, "vtab", vtab, summary, "keras-vit vtab B/16 --weights augreg-imagenet21k"))


def evaluate(arguments: Namespace) -> Iterator[str]:
    _check_options(arguments)
    check_model(arguments)
    if not arguments.json:
        yield loading(arguments.model)
    with quiet_start():
        import keras_vit.api as keras_vit
        from keras_vit.data.source import split_to_measure
        from keras_vit.runs.finished_runs import has_changed, is_data_of
    model, run, source = _model_and_source(arguments, keras_vit.open_source)
    seed = run.seed if arguments.seed is None else arguments.seed
    is_own = arguments.data is None or is_data_of(run, arguments.data, source)
    divides = is_own or arguments.probe is not None or arguments.seed is not None
    split = arguments.split or ("test" if divides else split_to_measure(source))
    model, lines, facts = engines.load_engine(model, run, arguments, arguments.batch_size)
    if is_own and has_changed(run, source):
        facts["data_changed"] = True
        lines.append(
            "the run's data have changed or are divided otherwise: some of these images may have been trained on"
        )
    if not arguments.json:
        yield from map(printable, lines)
    if arguments.probe is None:
        own: dict[str, Any] = {"names": run.class_names, "seed": seed}
        own |= {"real_labels": arguments.real} if arguments.real is not None else {}
        own |= {"windows": True} if arguments.windows else {}
        result: Any = run.task.evaluate(model, source, split, batch_size=arguments.batch_size, **own)
    else:
        result = keras_vit.probe(model, source, arguments.probe, **_probe_arguments(arguments, split, seed))
    if arguments.page is not None:
        title = f"{model.name} on {source.name}, {split}"
        page = keras_vit.write_evaluation_page(result, arguments.page, title)
    if arguments.json:
        yield printable_json({"split": split, **facts, **result.summary()})
        return
    if arguments.probe is None:
        if arguments.data:
            yield from _division_lines(source, split, arguments.split is not None)
        name = split if arguments.split or split == "test" else "overall"
        yield from run.task.evaluation_lines(result, name, printable(source.name))
    else:
        yield from _probe_lines(result, source)
    if arguments.page is not None:
        yield f"open {printable(page)}"


def _model_and_source(arguments: Namespace, open_source: Callable[..., Any]) -> tuple[Any, "RunFacts", Any]:
    """What is measured, and on what; a zero-shot classifier gets the classes of the data, in their order."""
    options: dict[str, Any] = {"on_bad_image": arguments.on_bad_image}
    if arguments.classes is None and arguments.templates is None:
        model, run = load_model_and_run(arguments, arguments.probe is None)
        _check_real(arguments.real, run)
        _check_windows(arguments, run)
        if (arguments.data, arguments.masks, arguments.depths) != (None, None, None):
            run = dataclasses.replace(run, task=run.task.of_data(masks=arguments.masks, depths=arguments.depths))
        options["targets"] = find_task().targets() if arguments.probe else run.task.targets(run.class_names)
        seed = run.seed if arguments.seed is None else arguments.seed
        return model, run, open_source(arguments.data or _run_data(run), seed=seed, **options)
    source = open_source(arguments.data, seed=arguments.seed or 0, **options)
    words = words_of_classes(source.class_names, arguments.classes and class_words(arguments))
    return (*load_zero_shot(arguments, words, source.class_names), source)


def words_of_classes(names: Sequence[str], words: Sequence[str] | None) -> tuple[str, ...]:
    """What the classes of a data set are called in prompts, in the order of the data.

    Args:
        names: of the data's classes.
        words: the same names in any order, where `_` is a blank, and case and Unicode form do not count; `None` takes
            `names`, and of ImageNet's folders the names of their classes.

    Raises:
        ValueError: for other names.
    """
    from keras_vit.images.preprocessing import LABEL_FILES, class_labels
    from keras_vit.text.templates import imagenet_classes

    if words is None:
        if len(names) in LABEL_FILES and tuple(names) == tuple(number for number, _ in class_labels(len(names))):
            return imagenet_classes() if len(names) == len(imagenet_classes()) else tuple(names)
        return tuple(unicodedata.normalize("NFC", name.replace("_", " ")) for name in names)  # macOS has letters apart
    by_key = {_key(word): word for word in words}
    found = {_key(name) for name in names}
    missing = [name for name in names if _key(name) not in by_key]
    unknown = [word for word in words if _key(word) not in found]
    if missing or unknown or not len(by_key) == len(words) == len(names):
        listed = [f"{len(words)} names, and {len(names)} classes of the data"]
        listed += [f"not in --classes: {', '.join(map(repr, missing[:5]))}"] if missing else []
        listed += [f"not in the data: {', '.join(map(repr, unknown[:5]))}"] if unknown else []
        raise ArgumentError(
            "`--classes` must name each class of the data once.\n"
            f"Received: {'; '.join(listed)}. Rename the folders, or leave --classes out and pass --templates, as "
            "'a photo of a {}.'",
            parameters=("classes",),
        )
    return tuple(by_key[_key(name)] for name in names)


def _key(name: str) -> str:
    from keras_vit.data.label_checks import folded_name

    return folded_name(name.replace("_", " "))


def vtab(arguments: Namespace) -> Iterator[str]:
    check_positive_int("batch_size", arguments.batch_size)
    vtab_names(arguments.tasks)
    check_protocol(arguments.protocol, arguments.out)
    check_model(arguments)
    if not arguments.json:
        yield loading(arguments.model)
    with quiet_start():
        import keras_vit.api as keras_vit
    model, _ = load_model_and_run(arguments, needs_head=False)
    result = keras_vit.vtab(
        model,
        arguments.tasks,
        protocol=arguments.protocol,
        out=arguments.out,
        batch_size=arguments.batch_size,
        print_fn=(lambda line: None) if arguments.json else print,
        **_cache(arguments),
    )
    if arguments.json:
        yield printable_json(result.summary())
        return
    yield from columns([("task or group", "accuracy"), *result.rows()])


def _check_options(arguments: Namespace) -> None:
    """Refuses wrong values, options of a probe without one, and those of the head with one."""
    from keras_vit.data.source import check_split

    check_positive_int("batch_size", arguments.batch_size)
    if arguments.split is not None:
        check_split(arguments.split)
    if arguments.data is not None:
        check_data(arguments.data)
    wanted: dict[str, tuple] = {
        "--shots": ("fewshot",),
        "--seeds": ("fewshot",),
        "--neighbours": ("knn",),
        "--no-cache": _KINDS if arguments.engine is None else (None,),
    }
    wanted |= {"--train-split": _KINDS, "--real": (None,), "--engine": (None,), "--classes": (None,)}
    wanted["--templates"] = (None,)
    for option, kinds in wanted.items():
        value = getattr(arguments, option[2:].replace("-", "_"))
        if value not in (None, False) and arguments.probe not in kinds:
            needs = "no `--probe`" if kinds == (None,) else f"`--probe {'|'.join(map(str, kinds))}`"
            raise ValueError(
                f"`{option}` goes with {needs}.\nReceived: {option} and --probe {arguments.probe or 'none'}."
            )
    for name, numbers in (
        ("seeds", [arguments.seeds]),
        ("num_neighbors", [arguments.neighbours]),
        ("shots", arguments.shots or ()),
    ):
        for number in numbers:
            if number is not None:
                check_positive_int(name, number)
    if arguments.seed is not None:
        check_seed("seed", arguments.seed)
    if arguments.train_split is not None:
        check_split(arguments.train_split)
    if arguments.page is not None:
        check_page(arguments.page / PAGE)
    check_zero_shot_options(arguments)
    if (arguments.classes or arguments.templates) and arguments.data is None:
        raise ValueError("`--classes` and `--templates` go with `--data`.\nReceived: no --data.")
    _check_real(arguments.real, run_facts(arguments.model))
    _check_windows(arguments, run_facts(arguments.model) if is_run(arguments.model) else None)
    engines.check_options(arguments)


def _check_real(file: Path | None, run: "RunFacts") -> None:
    if file is None:
        return
    if not file.exists():
        raise FileNotFoundError(f"the ReaL labels must be in a file.\nReceived: {printable(file)}; nothing is there.")
    if run.task.name != DEFAULT:
        raise ValueError(f"`--real` is for classifiers of ImageNet.\nReceived: --real for a run of {run.task.name}.")


def _check_windows(arguments: Namespace, run: "RunFacts | None") -> None:
    name = "segmentation" if run is None else run.task.name
    if arguments.windows and (name not in ("segmentation", "depth") or arguments.engine or arguments.probe):
        found = "--engine" if arguments.engine else "--probe" if arguments.probe else f"a model of {name}"
        raise ValueError(
            "`--windows` is for a model of classes or depths of pixels, without `--engine` and `--probe`.\n"
            f"Received: --windows and {found}. Leave it out."
        )


def _probe_arguments(arguments: Namespace, split: str, seed: int) -> dict[str, Any]:
    given = {"test_split": split, "batch_size": arguments.batch_size, "seed": seed, **_cache(arguments)}
    given |= {"train_split": arguments.train_split} if arguments.train_split else {}
    given |= {"shots": arguments.shots} if arguments.shots else {}
    given |= {"seeds": range(arguments.seeds)} if arguments.seeds else {}
    return given | ({"num_neighbors": arguments.neighbours} if arguments.neighbours is not None else {})


def _cache(arguments: Namespace) -> dict[str, None]:
    return {"cache": None} if arguments.no_cache else {}


def _run_data(run: "RunFacts") -> Any:
    if run.data is None:
        raise ValueError("`--data` must say which images, since the model has no run that knows them.")
    return run.data


def _division_lines(source: Any, split: str, is_named: bool) -> Iterator[str]:
    """Of data that have no splits of their own: how many of the images are measured."""
    from keras_vit.data.source import check_split, split_to_measure

    if (whole := split_to_measure(source)) == "test":
        return
    names, images = check_split(split), sum(source.sizes.values())
    seed, measured = source.facts["divided_by_seed"], sum(source.sizes[name] for name in names)
    if measured == images and not is_named:
        yield f"{printable(source.name)} has no splits, so all {images:,} images are measured"
    elif measured < images:
        yield (
            f"{printable(source.name)} has no splits. Seed {seed} divided it: {split} has {measured:,} of {images:,} "
            f"images. --split {whole} measures all."
        )


def _probe_lines(result: Any, source: Any) -> Iterator[str]:
    from keras_vit.evaluation.page import PROBE_COLUMNS, class_lines, probe_rows

    counts = f"{result.train_images:,} training and {plural(result.test_images, 'test image')}"
    yield f"{result.kind} probe on {counts} of {printable(source.name)}"
    if result.skipped:
        yield f"left out, as a class has fewer training images: {', '.join(map(str, result.skipped))} shots"
    yield from columns([PROBE_COLUMNS, *probe_rows(result, "{:.4f}".format)])
    yield from class_lines(result)


def _numbers(text: str) -> list[int]:
    """`1,5,10` as a list."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers with commas, as 1,5,10, not {text!r}") from None


def _add_model(new: ArgumentParser) -> None:
    new.add_argument(
        "model", metavar="MODEL", help="the folder of a run, a .keras file, a checkpoint, or a name as B/16"
    )
    new.add_argument(
        "--weights",
        metavar="NAME",
        help="weights of a model given by name, as B/16; by default those with ImageNet's 1,000 classes",
    )
    new.add_argument("--no-cache", action="store_true", help="do not read or keep features or a converted engine")
    new.add_argument(
        "--batch-size", type=int, default=32, metavar="B", help="images at once, for speed and memory only"
    )
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def _add_evaluate(new: ArgumentParser) -> None:
    _add_model(new)
    add_zero_shot_options(new, "its own classes, or with --templates those of --data")
    new.add_argument("--data", metavar="DATA", help="labelled photos, as for finetune; by default those of the run")
    masks = (
        "folder, COCO's .json or layout of the masks of --data, of a model of pixels; by default that of a layout of "
        "the run"
    )
    new.add_argument("--masks", metavar="MASKS", help=masks)
    depths = "folder of the depth maps of --data, of a model of depths; by default depths next to images in --data"
    new.add_argument("--depths", metavar="DEPTHS", help=depths)
    slide = "of a model of pixels: answer as segment or depth does for photos of any size, not for each resized whole"
    new.add_argument("--windows", action="store_true", help=slide)
    several = (
        "train, validation, test, or several, as train+test; by default test, or all images of a --data that has no "
        "splits and is not the run's own"
    )
    new.add_argument("--split", metavar="SPLIT", help=several)
    new.add_argument(
        "--seed", type=int, metavar="N", help="seed of the division into splits; by default that of the run"
    )
    bad = "leave out files that cannot be decoded, or refuse them"
    new.add_argument("--on-bad-image", default="skip", choices=ON_BAD_IMAGE, help=bad)
    new.add_argument(
        "--probe",
        choices=_KINDS,
        help="train a small classifier on the features, and measure that; by default measure the model's own head",
    )
    shots = "training images of each class, as 1,5; by default those of 1,5,10,25 that every class has"
    new.add_argument("--train-split", metavar="SPLIT", help="split that the probe is trained on; by default train")
    new.add_argument("--shots", type=_numbers, metavar="K,K", help=shots)
    new.add_argument(
        "--seeds", type=int, metavar="COUNT", help="how many random choices of the shots are averaged; by default 3"
    )
    new.add_argument("--neighbours", type=int, metavar="K", help="how many neighbours vote in knn; by default 20")
    engines.add_options(new)
    new.add_argument(
        "--real",
        type=path,
        metavar="FILE",
        help="also measure by the ReaL labels of ImageNet in real.json; by default not",
    )
    new.add_argument("--page", type=path, metavar="FOLDER", help="write the result as a page; by default none")


def _add_vtab(new: ArgumentParser) -> None:
    _add_model(new)
    new.add_argument("--tasks", nargs="+", metavar="TASK", help="names of tasks, as dtd svhn; by default all 19")
    how = "train a linear probe, or fine-tune as the paper does"
    new.add_argument("--protocol", default="linear", choices=PROTOCOLS, help=how)
    new.add_argument(
        "--out", metavar="FOLDER", type=path, help="where finetune keeps its runs; by default they are not kept"
    )


def add_look(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write what a model sees in photos: attention, relevance, similarity, on one page"
    new = command(top, "look", look, summary, "keras-vit look run photo.jpg --out seen")
    new.add_argument(
        "model", metavar="MODEL", help="the folder of a run, a .keras file, a checkpoint, or a name as B/16"
    )
    new.add_argument("images", metavar="IMAGE", nargs="+", type=path, help="photos to look at")
    new.add_argument("--out", metavar="FOLDER", type=path, required=True, help="a new or empty folder")
    new.add_argument(
        "--weights",
        metavar="NAME",
        help="weights of a model given by name, as B/16; by default those with ImageNet's 1,000 classes",
    )
    new.add_argument(
        "--blocks",
        metavar="N",
        nargs="+",
        type=int,
        help="numbers of the blocks whose attention is shown; by default four",
    )
    top = f"how many classes get a map of relevance; by default {TOP}"
    new.add_argument("--top", type=int, metavar="K", help=top)
    new.add_argument("--theme", default="light", choices=("light", "dark"), help="colours of the pictures")


def look(arguments: Namespace) -> Iterator[str]:
    check_top_of_run(arguments.top, arguments.model)
    if arguments.model in RESNETS:
        raise ValueError(f"`look` shows what a Vision Transformer sees.\nReceived: {arguments.model}, a ResNet.")
    for block in arguments.blocks or ():
        check_positive_int("blocks", block)
    check_new_folder(arguments.out)
    check_model(arguments)
    check_photos_exist(arguments.images)
    if folder := next(filter(Path.is_dir, arguments.images), None):
        raise ValueError(f"`look` takes photos.\nReceived: {printable(folder)}, a folder.")
    yield loading(arguments.model)
    with quiet_start():
        import keras_vit.api as keras_vit
    model, run = load_model_and_run(arguments, needs_head=False)
    check_top(arguments.top, model)
    yield f"looking at {plural(len(arguments.images), 'photo')} ..."
    page = keras_vit.look(
        model,
        arguments.images,
        arguments.out,
        **run.task.look_arguments(output_names(model, run.class_names)),
        blocks=arguments.blocks,
        top=arguments.top or TOP,
        theme=arguments.theme,
    )
    yield f"open {page}"
