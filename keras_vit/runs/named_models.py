"""The model that a text names: the folder of a run, a file, a variant and weights, or published weights."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from keras_vit.config.encoders import ENCODERS
from keras_vit.config.variants import BUILDERS, RESNETS, VARIANTS
from keras_vit.files import expand_path
from keras_vit.runs.saved_runs import RunFacts, load_model, read_facts
from keras_vit.tasks import task_of_model
from keras_vit.weights.checkpoint import Checkpoint, file_in, read_checkpoint
from keras_vit.weights.registry import list_weights
from keras_vit.weights.resolve import WeightsFile, find_file

_MODEL_FILE = "best.keras"
_CHECKPOINTS = (".npz", ".safetensors", ".pth", ".pt", ".tar", ".bin")
_IMAGENET_WEIGHTS = "augreg-imagenet21k+imagenet2012-224"  # what a variant gets
_RESNET_WEIGHTS = "bit-imagenet21k+imagenet2012"  # what a ResNet gets
_ENCODERS = {builder: name for name, builder in ENCODERS.items()}
NAMES = (*VARIANTS, *BUILDERS, *RESNETS, *ENCODERS, *_ENCODERS)


def open_named(given: str, weights: str | None = None, needs_head: bool = True) -> tuple[Any, RunFacts]:
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
    from keras_vit.builders import build
    from keras_vit.resnet_builders import build_resnet

    variant, named = found
    file = find_file(named, variant)
    has_head = bool((file.record or _look_into(file.path)).classes)
    if needs_head and has_head and _embeds(file):
        raise ValueError(
            "the weights must have a classifier.\n"
            f"Received: {given}, an image tower. Its output is an embedding: compare it with "
            "embeddings of texts, `keras_vit.zero_shot`, train a classifier on it, `keras-vit finetune "
            "--weights`, or measure its features, `keras-vit evaluate --probe`."
        )
    if needs_head and not has_head:
        raise ValueError(
            "the weights must have a classifier.\n"
            f"Received: {given}, an encoder without one. Train one on it, `keras-vit finetune --weights`, or "
            "measure its features, `keras-vit evaluate --probe`."
        )
    if variant is not None and variant in RESNETS:
        return build_resnet(variant, has_head, named), RunFacts()
    return build(variant, has_head, named), RunFacts()


def _embeds(file: WeightsFile) -> bool:
    """Whether the weights end in the projection of an image tower; fine-tuned ones have a new head in its place."""
    if file.record is not None:
        return file.record.family in ("clip", "tinyclip", "eva_clip", "pe_core") and "_ft_" not in file.record.name
    return _look_into(file.path).embeds()


def _look_into(path: Path) -> Checkpoint:
    """What a file says of its model; its numbers are looked at where that is built."""
    return read_checkpoint(path, allow_nonfinite=True, compares_checksums=False)


def variant_and_weights(given: str, weights: str | None = None) -> tuple[str | None, Any] | None:
    """The variant and weights that a text names: a variant, weights of one variant, or a checkpoint. Else `None`.

    The variant of a checkpoint is `None` where the file, or what stands beside it, tells the model.

    Args:
        given: a name or a path.
        weights: of a variant, in place of the usual ones.
    """
    place = expand_path(given)
    if given in NAMES:
        name = (BUILDERS | _ENCODERS).get(given, given)
        return name, weights or _usual_weights(name)
    is_folder = place.is_dir() and not (place / _MODEL_FILE).exists() and file_in(place) != place
    if is_folder or (place.suffix in _CHECKPOINTS and place.is_file()):
        checkpoint = _look_into(place)
        variant = checkpoint.variant() if checkpoint.num_heads is None else None
        if variant is None and checkpoint.num_heads is None:
            raise ValueError(
                "a checkpoint tells its model by a config.json beside it, or if it is a published variant; else build "
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


def _usual_weights(variant: str) -> str:
    """Weights that a name gets: of an encoder those that stand first in the table, its authors'."""
    if variant in ENCODERS:
        return next((record.name for record in list_weights(variant)), _IMAGENET_WEIGHTS)
    return _RESNET_WEIGHTS if variant in RESNETS else _IMAGENET_WEIGHTS


def check_run(place: Path, others: str = ".") -> Path:
    """The file of a run's folder, or the `.keras` file; `others` is what else the command takes, for the error."""
    file = place / _MODEL_FILE if place.is_dir() else place
    if not file.exists():
        what = f"it has no {_MODEL_FILE}" if place.is_dir() else "nothing is there"
        raise FileNotFoundError(
            f"a model must be the folder of a run or a .keras file{others}\nReceived: {place}; {what}."
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
    import keras_vit.builders
    import keras_vit.resnet_builders  # noqa: F401  # every layer that the file may name
    from keras_vit.model import naflex  # noqa: F401

    config = file.with_name("config.json")
    run = read_facts(config, is_run=place.is_dir()) if os.path.lexists(config) else RunFacts()
    model = load_model(file)
    _check_loaded(model, file)
    if run.class_names is None:
        return model, dataclasses.replace(run, class_names=model.class_names, task=task_of_model(model))
    if len(run.class_names) != model.output_spec.size:
        raise ValueError(
            "config.json must name the outputs of the model beside it.\n"
            f"Received: {config} with {len(run.class_names)} names, and {file} with {model.output_spec.size} outputs."
        )
    return model, run


def _check_loaded(model: Any, file: Path) -> None:
    from keras_vit.model.image_model import ImageModel

    if not isinstance(model, ImageModel) or not model.takes_images or model.preprocessing is None:
        raise ValueError(
            "the file must hold a VisionTransformer or a ResNet, which knows how images are prepared for it.\n"
            f"Received: {file}, with a {type(model).__name__}."
        )
