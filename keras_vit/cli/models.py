"""The model that a command is about: the folder of a run, a file, a variant and weights, or published weights."""

import dataclasses
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.checks import did_you_mean
from keras_vit.cli.printing import path
from keras_vit.config.encoders import ENCODERS
from keras_vit.config.resnets import RESNETS
from keras_vit.config.variants import BUILDERS, VARIANTS
from keras_vit.weights.checkpoint import file_in, read_checkpoint
from keras_vit.weights.hub import list_weights
from keras_vit.weights.resolve import WeightsFile, check_available, find_file

if TYPE_CHECKING:
    from keras_vit.runs.saved_runs import RunFacts

_MODEL_FILE = "best.keras"
_CHECKPOINTS = (".npz", ".safetensors", ".pth", ".pt", ".tar", ".bin")
_IMAGENET_WEIGHTS = "augreg-imagenet21k+imagenet2012-224"  # what a variant gets
_RESNET_WEIGHTS = "bit-imagenet21k+imagenet2012"  # what a ResNet gets
_ENCODERS = {builder: name for name, builder in ENCODERS.items()}
_NAMES = (*VARIANTS, *BUILDERS, *RESNETS, *ENCODERS, *_ENCODERS)


def model_of(arguments: Namespace, reads_classes: bool = True) -> tuple[Any, tuple[str, ...] | None]:
    """The model, and the names of its classes if a run knows them."""
    model, run = model_and_run(arguments, reads_classes)
    return model, run.class_names


def model_and_run(arguments: Namespace, reads_classes: bool = True) -> tuple[Any, "RunFacts"]:
    """The model, and what its run knows of classes, data and seed; of no run the facts of none.

    Args:
        arguments: of the command.
        reads_classes: whether the command can do nothing with a model without a head.
    """
    found = _variant_and_weights(arguments)
    if found is None:
        return load_run(path(arguments.model))
    from keras_vit.builders import build
    from keras_vit.resnet_builders import build_resnet
    from keras_vit.runs.saved_runs import RunFacts

    variant, weights = found
    file = find_file(weights, variant)
    has_head = bool(file.record.classes if file.record else read_checkpoint(file.path).classes)
    if reads_classes and has_head and _embeds(file):
        raise ValueError(
            "the weights must have a classifier.\n"
            f"Received: {arguments.model}, an image tower. Its outputs are an embedding and no classes: compare it "
            "with embeddings of texts, `keras_vit.zero_shot`, train a classifier on it, `keras-vit finetune "
            "--weights`, or measure its features, `keras-vit evaluate --probe`."
        )
    if reads_classes and not has_head:
        raise ValueError(
            "the weights must have a classifier.\n"
            f"Received: {arguments.model}, an encoder without one. Train one on it, `keras-vit finetune --weights`, or "
            "measure its features, `keras-vit evaluate --probe`."
        )
    if variant is not None and variant in RESNETS:
        return build_resnet(variant, has_head, weights), RunFacts()
    return build(variant, has_head, weights), RunFacts()


def _embeds(file: WeightsFile) -> bool:
    """Whether the weights end in the projection of an image tower; fine-tuned ones have classes in its place."""
    if file.record is not None:
        return file.record.family in ("clip", "tinyclip", "eva_clip", "pe_core") and "_ft_" not in file.record.name
    return read_checkpoint(file.path).embeds()


def check_model(arguments: Namespace) -> Any:
    """Raises for a model that cannot be, before the seconds in which Keras is imported."""
    given = arguments.model
    if arguments.weights is not None and given not in _NAMES:
        raise ValueError(f"`--weights` is for a variant, as B/16 or R50x1; a file has its own.\nReceived: {given!r}.")
    found = _variant_and_weights(arguments)
    if found is not None:
        return check_available(found[1], found[0])
    near = did_you_mean(given, _NAMES) or f" Variants are {', '.join((*VARIANTS, *RESNETS))}."
    return check_run(path(given), f", or a variant as B/16.{near}")


def _variant_and_weights(arguments: Namespace) -> tuple[str | None, Any] | None:
    """The variant and weights that MODEL names: a variant, weights of one variant, or a checkpoint. Else `None`.

    The variant of a checkpoint is `None` where the file, or what stands beside it, tells the model.
    """
    given, place = arguments.model, path(arguments.model)
    if given in _NAMES:
        usual = _RESNET_WEIGHTS if given in RESNETS else _IMAGENET_WEIGHTS
        return (BUILDERS | _ENCODERS).get(given, given), arguments.weights or usual
    is_folder = place.is_dir() and not (place / _MODEL_FILE).exists() and file_in(place) != place
    if is_folder or (place.suffix in _CHECKPOINTS and place.is_file()):
        checkpoint = read_checkpoint(place)
        variant = checkpoint.variant() if checkpoint.num_heads is None else None
        if variant is None and checkpoint.num_heads is None:
            raise ValueError(
                "a checkpoint tells its model by a config.json beside it, or if it is a published variant; else build "
                f"it in Python.\nReceived: {place}, {checkpoint.looks_like()}."
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


def load_run(place: Path) -> tuple[Any, "RunFacts"]:
    """The model of a run's folder or of a `.keras` file, and the facts of the run."""
    file = check_run(place)
    import keras_vit.api  # noqa: F401  # every layer and optimizer that the file may name
    from keras_vit.runs.saved_runs import RunFacts, load_model, read_facts

    config = file.with_name("config.json")
    run = read_facts(config, is_run=place.is_dir()) if os.path.lexists(config) else RunFacts()
    model = load_model(file)
    _check_loaded(model, file)
    if run.class_names is None:
        return model, dataclasses.replace(run, class_names=model.class_names)
    if len(run.class_names) != model.output_shape[-1]:
        raise ValueError(
            "config.json must name the classes of the model beside it.\n"
            f"Received: {config} with {len(run.class_names)} names, and {file} with {model.output_shape[-1]} outputs."
        )
    return model, run


def _check_loaded(model: Any, file: Path) -> None:
    from keras_vit.model.image_model import ImageModel

    if not isinstance(model, ImageModel) or not model.takes_images or model.preprocessing is None:
        raise ValueError(
            "the file must hold a VisionTransformer or a ResNet, which knows how images are prepared for it.\n"
            f"Received: {file}, with a {type(model).__name__}."
        )


def names_of(model: Any, names: Sequence[str] | None) -> Sequence[str]:
    classes = model.output_shape[-1]
    if names is not None and len(names) == classes:
        return names
    from keras_vit.model.classifiers import names_of_outputs

    return names_of_outputs(model)
