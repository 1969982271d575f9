"""The model that a command is about: the folder of a run, a file, or a variant and weights."""

from pathlib import Path

from keras_vit.checks import did_you_mean
from keras_vit.cli.printing import path
from keras_vit.files import json_object
from keras_vit.variants import BUILDERS, VARIANTS

_MODEL_FILE = "best.keras"
_MOST_BYTES = 1 << 26  # of a configuration; the names of 21,843 classes take 1 MB
_IMAGENET_WEIGHTS = "augreg-imagenet21k+imagenet2012-224"  # what a variant gets


def model_of(arguments):
    """The model, and the names of its classes if a run knows them."""
    given = arguments.model
    if given not in VARIANTS and given not in BUILDERS:
        if arguments.weights is not None:
            raise ValueError(f"`--weights` is for a variant, as B/16; a file has its own.\nReceived: {given!r}.")
        if not path(given).exists():
            near = did_you_mean(given, [*VARIANTS, *BUILDERS]) or f" Variants are {', '.join(VARIANTS)}."
            raise FileNotFoundError(
                "a model must be the folder of a run, a .keras file, or a variant, as B/16.\n"
                f"Received: {given}; nothing is there, and no variant is called so.{near}"
            )
        return load_run(path(given))[:2]
    from keras_vit.builders import build

    variant = BUILDERS.get(given, given)
    return build(variant, weights=arguments.weights or _IMAGENET_WEIGHTS), None


def load_run(place: Path):
    """Model, class names and configuration of a run's folder or of a `.keras` file."""
    file = place / _MODEL_FILE if place.is_dir() else place
    if not file.exists():
        what = f"it has no {_MODEL_FILE}" if place.is_dir() else "nothing is there"
        raise FileNotFoundError(
            f"a model must be the folder of a run, a .keras file, or as B/16.\nReceived: {place}; {what}."
        )
    if file.suffix != ".keras":
        raise ValueError(
            "a model must be the folder of a run or a .keras file; other formats can run a stranger's program.\n"
            f"Received: {place}."
        )
    import keras

    import keras_vit.api  # noqa: F401  # every layer and optimizer that the file may name

    model = keras.models.load_model(file, compile=False, safe_mode=True)
    _check_loaded(model, file)
    config = file.with_name("config.json")
    run = json_object(config, _MOST_BYTES) if config.is_file() else {}
    names = run.get("data", {}).get("class_names")
    return model, tuple(names) if names else None, run


def _check_loaded(model, file):
    from keras_vit.model.vision_transformer import VisionTransformer

    if not isinstance(model, VisionTransformer) or model.preprocessing is None:
        raise ValueError(
            "the file must hold a VisionTransformer, which knows how images are prepared for it.\n"
            f"Received: {file}, with a {type(model).__name__}."
        )


def names_of(model, names):
    classes = model.output_shape[-1]
    if names is not None and len(names) == classes:
        return names
    from keras_vit.preprocessing import default_names

    return default_names(classes)
