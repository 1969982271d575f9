"""The model that a text names: the folder of a run, a file, a variant and weights, or published weights.

Of a run also what its files say of task, names, data and seed. The folder may be a stranger's or damaged: whatever is
wrong is one error that names the file. Keras is imported when a model is loaded.
"""

import dataclasses
import importlib
import json
import math
import os
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.config.public_names import REGISTERED
from keras_vit.config.variants import BUILDERS, ENCODERS, RESNETS, VARIANTS
from keras_vit.files import FileKindError, expand_path, json_object, open_regular, read_json_object
from keras_vit.images.photo_files import near_names
from keras_vit.images.preprocessing import check_same_order
from keras_vit.pages.formatting import printable
from keras_vit.runs.run_files import BEST, CONFIG, MOST_BYTES, RESULT
from keras_vit.tasks import Task, find_task, task_of_model
from keras_vit.weights.checkpoint import SAFETENSORS_NAME, Checkpoint, file_in, read_checkpoint
from keras_vit.weights.registry import list_weights, usual_weights
from keras_vit.weights.resolve import WeightsFile, find_file

_MEMBERS = {"config.json", "metadata.json", "model.weights.h5"}  # of a .keras archive
_OF_SAFE_MODE = ("safe_mode", "Lambda", "unsafe")  # words by which Keras refuses to run what a file says
_RUNS_CODE = (
    "a model's file must be one that can be loaded without running a stranger's program",
    "Load it in Python, and only if you trust its source.",
)
_DAMAGED = ("a model's file must be whole, and of layers that are known here", "Copy or train it again.")
_DEFLATED = 1032  # times its size, at most, becomes what was deflated (zlib)
_LONGEST = 200  # characters of Keras' words in an error; it would print the whole configuration


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What is known of a run, as far as its model is used without it.

    Attributes:
        class_names: in the order of the model's outputs; `None` of a model without a run.
        data: what it was trained on, as `open_source` takes it; `None` if it cannot be named.
        seed: of the division into splits.
        data_hash: of the data as they were, by `fingerprint`; `None` if it is not known.
        subset: arguments of `Source.subset`, if part of the training images counted.
        task: that the model was trained for.
    """

    class_names: tuple[str, ...] | None = None
    data: str | None = None
    seed: int = 0
    data_hash: str | None = None
    subset: dict[str, Any] | None = None
    task: Task = dataclasses.field(default_factory=find_task)


def read_facts(config: Path, is_run: bool = True) -> RunFacts:
    """Reads the `config.json` of a run, as which it must be written; else a file of other software is ignored.

    Raises:
        ValueError: if it is not as a run writes it.
    """
    try:
        stored = json_object(config, MOST_BYTES)
        if not is_run and "data" not in stored:
            return RunFacts()
        arguments = _object(stored, "arguments") if "arguments" in stored else {}
        data, facts, data_hash = arguments.get("data"), _object(stored, "data"), stored.get("data_hash")
        return RunFacts(
            class_names=_names(facts),
            data=data if isinstance(data, str) else None,
            seed=_seed(stored),
            data_hash=data_hash if isinstance(data_hash, str) else None,
            subset=_object(facts, "subset") if "subset" in facts else None,
            task=_task(stored, config.with_name(RESULT)),
        )
    except ValueError as error:
        rule, _, received = str(error).rpartition("\nReceived: ")
        raise ValueError(
            f"config.json must be as a run wrote it{': ' * bool(rule)}{rule.rstrip('.')}.\n"
            f"Received: {printable(config)}: {printable(received)}."
        ) from None


def _task(stored: Mapping[str, Any], result: Path) -> Task:
    """The task as the run came to it, which `result.json` has, or as it began."""
    if "task" not in stored:
        return find_task()
    found = read_json_object(result, MOST_BYTES) or {}
    return find_task(found.get("task", _object(stored, "task")))


def check_pushed(folder: Path, format: str | None) -> bool:
    """Whether a folder that is to be published is that of a finished run, not of a checkpoint; raises for any other."""
    if (folder / BEST).is_file():
        if read_facts(folder / CONFIG).task.head == "numbers":
            raise ValueError(
                "no checkpoint says in which unit the numbers of a head are, so a run of numbers is not published.\n"
                f"Received: {printable(folder)}. Its {BEST} is the model."
            )
        return True
    if not (folder / SAFETENSORS_NAME).is_file():
        raise ValueError(
            "`folder` must be that of a finished run, or one that `save_checkpoint` has written for timm or "
            f"transformers.\nReceived: {printable(folder)}, with neither {BEST} nor {SAFETENSORS_NAME}."
        )
    if format is not None:
        raise ValueError(
            "`format` (`--dialect` of the command) is for a run; a folder of weights has its own.\n"
            f"Received: format={format!r} for {printable(folder)}. Leave it out, or write the folder anew."
        )
    return False


def load_model(file: Path) -> Any:
    """The model in a `.keras` file, whose programs are never run.

    Raises:
        ValueError: for anything else than a whole and valid file of a model that Keras loads in its safe mode.
        FileNotFoundError: if nothing is there.
    """
    config, stored = _check_archive(file)
    for module in REGISTERED:  # which a command line has not imported
        importlib.import_module(f"keras_vit.{module}")
    import keras

    try:
        _check_size(config, stored)
        return keras.models.load_model(file, compile=False, safe_mode=True)
    except Exception as error:  # of Keras, h5py and Python: whatever a stranger's configuration brings about
        runs_code = any(word in str(error) for word in _OF_SAFE_MODE)
        rule, advice = _RUNS_CODE if runs_code else _DAMAGED
        raise ValueError(f"{rule}.\nReceived: {printable(file)}: {_short(error).rstrip('.')}. {advice}") from error


def check_reloads(model: Any) -> None:
    """Raises a `ValueError` if the file of a model could not be loaded, as with a layer that Keras does not know.

    A run measures at its end what it has written, so this is checked before its first step. No random number is drawn.
    """
    import keras

    from keras_vit.model.copies import release, uninitialized_variables

    before = random.getstate()
    try:
        with uninitialized_variables():
            layers = keras.saving.serialize_keras_object(model) | {"compile_config": None}
            release(keras.saving.deserialize_keras_object(layers, safe_mode=True).weights)
    except Exception as error:  # of Keras, and of the layers of the user's own
        raise ArgumentError(
            "`model` must be one that can be saved as .keras and loaded again, since a run measures what it has "
            f"written.\nReceived: {model.name!r}: {_short(error).rstrip('.')}. Register its layers by "
            "`keras.saving.register_keras_serializable`, with a `get_config` that has all arguments."
        ) from error
    finally:
        random.setstate(before)


def _check_size(config: Any, stored: int) -> None:
    """Raises if the layers need more weights than the file holds, before any of them is made.

    A number in a stranger's configuration would else fill the memory.
    """
    import keras

    from keras_vit.model.copies import release, uninitialized_variables

    with uninitialized_variables():
        layers = json.loads(config) | {"compile_config": None}  # an optimizer's variables have values
        model = keras.saving.deserialize_keras_object(layers, safe_mode=True)
        needed = sum(math.prod(weight.shape) for weight in model.weights)
        release(model.weights)
    if needed > stored:  # a number takes a byte at least
        raise ValueError(f"layers of {needed:,} numbers, and {stored:,} bytes of weights")


def _check_archive(file: Path) -> tuple[bytes, int]:
    """The text of the configuration and the size of the weights; Keras takes what is no archive for no file at all."""
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            missing = _MEMBERS - set(archive.namelist())
            fault = f"without {', '.join(sorted(missing))}" if missing else None
            if not missing:
                with archive.open("config.json") as member:
                    config = member.read(MOST_BYTES)
                most = _DEFLATED * os.fstat(opened.fileno()).st_size  # whatever the archive says of itself
                return config, min(archive.getinfo("model.weights.h5").file_size, most)
    except FileNotFoundError:
        raise
    except FileKindError as error:
        fault = error.reason
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        fault = f"cut short or something else ({_short(error)})"
    raise ValueError(
        f"a model's file must be a whole .keras archive.\nReceived: {printable(file)}, {fault}. Copy or train it again."
    )


def _short(error: BaseException) -> str:
    """The end of Keras' words, which is the cause, in one short line."""
    cause = str(error).rpartition("Exception encountered: ")[2]
    line = printable(" ".join(cause.split()))
    return f"{type(error).__name__}: {line if len(line) <= _LONGEST else line[: _LONGEST - 3] + '...'}"


def _object(stored: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = stored.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"`{name}` must be an object\nReceived: {_kind(stored, name)}")
    return found


def _names(data: Mapping[str, Any]) -> tuple[str, ...]:
    names = data.get("class_names")
    if not isinstance(names, list):
        raise ValueError(f"`data` must have a list `class_names`\nReceived: {_kind(data, 'class_names')}")
    if not names or not all(isinstance(name, str) for name in names):
        kinds = sorted({type(name).__name__ for name in names})
        raise ValueError(f"`class_names` must be texts\nReceived: {len(names)} of {', '.join(kinds) or 'any kind'}")
    return tuple(names)


def _seed(stored: Mapping[str, Any]) -> int:
    seed = stored.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise ValueError(f"`seed` must be an int in [0, 2**31)\nReceived: {_kind(stored, 'seed')}")
    return seed


def _kind(stored: Mapping[str, Any], name: str) -> str:
    """What is there in place of what should be."""
    return f"{name} is {type(stored[name]).__name__}, {str(stored[name])[:40]!r}" if name in stored else f"no {name}"


_MODEL_FILE = "best.keras"
_CHECKPOINTS = (".npz", ".safetensors", ".pth", ".pt", ".tar", ".bin")
_ENCODERS = {builder: name for name, builder in ENCODERS.items()}
NAMES = (*VARIANTS, *BUILDERS, *RESNETS, *ENCODERS, *_ENCODERS)


def load_any(given: str, weights: str | None = None, needs_head: bool = True) -> tuple[Any, RunFacts]:
    """The model, and what its run knows of its outputs, data and seed; of no run the facts of none.

    Args:
        given: a name or a path.
        weights: of a variant, in place of the usual ones.
        needs_head: whether a model without a head is of no use.

    Raises:
        ValueError: for a model or weights that cannot be.
        FileNotFoundError: if nothing is there.
    """
    found = variant_and_weights(given, weights)
    if found is None:
        return load_run(expand_path(given))
    from keras_vit.builders import build, build_resnet

    variant, named = found
    file = find_file(named, variant)
    has_head = bool((file.record or _peek(file.path)).classes)
    if needs_head and (not has_head or _embeds(file)):
        what = "an image tower. Its output is an embedding" if has_head else "an encoder without one"
        raise ValueError(
            f"the weights must have a classifier.\nReceived: {given}, {what}. Train one on it, `keras-vit finetune "
            "--weights`, measure its features, `keras-vit evaluate --probe`, or with a text tower say what to look "
            "for, `--classes cat,dog`."
        )
    if variant is not None and variant in RESNETS:
        return build_resnet(variant, has_head, named), RunFacts()
    return build(variant, has_head, named), RunFacts()


def _embeds(file: WeightsFile) -> bool:
    """Whether the weights end in the projection of an image tower; fine-tuned ones have a new head in its place."""
    if file.record is not None:
        return file.record.family in ("clip", "tinyclip", "eva_clip", "pe_core") and "_ft_" not in file.record.name
    return _peek(file.path).embeds()


def _peek(path: Path) -> Checkpoint:
    """What a file says of its model; its numbers are looked at where that is built."""
    return read_checkpoint(path, allow_nonfinite=True, compares_checksums=False)


def variant_and_weights(given: str, weights: str | None = None) -> tuple[str | None, Any] | None:
    """The variant and weights that a text names: a variant, weights of one variant, or a checkpoint. Else `None`.

    The variant of a checkpoint is `None` where the file or its folder says which model it is.

    Args:
        given: a name or a path.
        weights: of a variant, in place of the usual ones.
    """
    place = expand_path(given)
    if given in NAMES:
        name = (BUILDERS | _ENCODERS).get(given, given)
        return name, weights or usual_weights(name)
    is_folder = place.is_dir() and not (place / _MODEL_FILE).exists() and file_in(place) != place
    if is_folder or (place.suffix in _CHECKPOINTS and place.is_file()):
        checkpoint = _peek(place)
        variant = checkpoint.variant() if checkpoint.num_heads is None else None
        if variant is None and checkpoint.num_heads is None:
            raise ValueError(
                "a checkpoint must be of a published variant or have a config.json in its folder; else build "
                f"it in Python.\nReceived: {place}, {checkpoint.describe()}."
            )
        return variant, place
    variants = [record.variant for record in list_weights() if record.name == given]
    if len(variants) > 1:
        raise ValueError(
            f"weights that several variants have go with one of them: {', '.join(variants)}.\n"
            f"Received: {given!r}. Pass, as an example, `{variants[0]} --weights {given}`."
        )
    return (variants[0], given) if variants else None


def check_run(place: Path, others: str = ".") -> Path:
    """The file of a run's folder, or the `.keras` file; `others` is what else the command takes, for the error."""
    file = place / _MODEL_FILE if place.is_dir() else place
    if not file.exists():
        what = f"it has no {_MODEL_FILE}." if place.is_dir() else f"nothing is there.{near_names(place)}"
        raise FileNotFoundError(
            f"a model must be the folder of a run or a .keras file{others}\nReceived: {place}; {what}"
        )
    if file.suffix != ".keras":
        raise ValueError(
            "a model must be the folder of a run or a .keras file; other formats can run a stranger's program.\n"
            f"Received: {place}."
        )
    return file


def load_run(place: Path) -> tuple[Any, RunFacts]:
    """The model of a run's folder or of a `.keras` file, and the facts of the run."""
    file = check_run(place)
    from keras_vit.model.copies import unwrapped
    from keras_vit.model.freezing import merge_lora
    from keras_vit.model.layer_access import lora_layers

    config = file.with_name("config.json")
    run = read_facts(config, is_run=place.is_dir()) if os.path.lexists(config) else RunFacts()
    loaded = load_model(file)
    if run.class_names is None:
        run = dataclasses.replace(run, task=task_of_model(loaded))
    model = unwrapped(run.task.opened(loaded))
    _check_loaded(model, file)
    model = merge_lora(model) if lora_layers(model) else model  # which computes faster
    if run.class_names is None:
        return model, dataclasses.replace(run, class_names=model.class_names)
    if run.task.head is not None and len(run.class_names) != model.output_spec.size:
        raise ValueError(
            "config.json must name the outputs of the model in its folder.\n"
            f"Received: {config} with {len(run.class_names)} names, and {file} with {model.output_spec.size} outputs."
        )
    try:
        check_same_order(model.class_names, run.class_names, "class_names")
    except ValueError as error:
        raise ValueError(
            "config.json must name the outputs of the model in its folder, in their order.\n"
            f"Received: {config}, which has them in another order than {file}. Copy both from one run."
        ) from error
    return model, run


def _check_loaded(model: Any, file: Path) -> None:
    from keras_vit.model.image_model import ImageModel

    if not isinstance(model, ImageModel) or not model.takes_images or model.preprocessing is None:
        raise ValueError(
            "the file must hold a VisionTransformer or a ResNet, which knows how images are prepared for it.\n"
            f"Received: {file}, with a {type(model).__name__}."
        )
