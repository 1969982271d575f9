"""The model card of a run: what was trained on what, how well it does on images that it did not train on, and limits.

Everything is read off what `config.json` and `result.json` hold. No path of the machine is in it: cards are published.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from keras_vit.builders import published_variant
from keras_vit.cards import (
    NOT_CHOSEN,
    PREPROCESSING,
    USE,
    Card,
    Measured,
    classes_section,
    preprocessing_section,
    table,
    wilson_interval,
)
from keras_vit.config.datasets import HUB_DATASETS
from keras_vit.config.resnets import ResNetConfig
from keras_vit.escaping import markdown_text
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.model.image_model import ImageModel
from keras_vit.resnet_builders import published_resnet
from keras_vit.runs.preparation import weights_of
from keras_vit.weights.fetch.environment import without_secrets
from keras_vit.weights.hub import find_weights, variant_of
from keras_vit.weights.resolve import is_url

_USE = """\
```python
import keras
import keras_vit

model = keras.saving.load_model("best.keras")
photo = keras_vit.read_image("photo.jpg", model.input_shape[-1])
print(model.predict(model.preprocessing(photo)[None]))
```

The answers are logits. `keras-vit predict photo.jpg --model FOLDER` names the classes."""


def origin_of(options) -> dict[str, Any]:
    """Where the weights came from that training began with.

    Args:
        options: of the run, a `FinetuneOptions`.

    Returns:
        `kind`, which is `"random"`, `"model"`, `"published"` or `"file"`; of the last two `name`, and of the third
        what its record says: `license`, `url`, and `repository` if it is on the Hub.
    """
    if isinstance(options.model, ImageModel):
        return {"kind": "model"}
    if (weights := weights_of(options)) is None:
        return {"kind": "random"}
    name = os.fspath(weights)
    with contextlib.suppress(ValueError):  # of a name that the table does not have
        record = find_weights(name, _variant(options.model))
        said = {"license": record.license, "url": record.url, "repository": record.hf_repo}
        return {"kind": "published", "name": name} | said
    if name.startswith("hf:"):
        return {"kind": "file", "name": name, "repository": name[len("hf:") :].partition("@")[0]}
    return {"kind": "file", "name": without_secrets(name) if is_url(name) else Path(name).name}


def _variant(model):
    if isinstance(model, str):
        return variant_of(model)
    return published_resnet(model) if isinstance(model, ResNetConfig) else published_variant(model)


def run_card(configuration: dict, result: dict) -> Card:
    """The card of a run's folder.

    Args:
        configuration: what `config.json` holds.
        result: what `result.json` holds.
    """
    data, origin = configuration["data"], configuration.get("weights_from", {"kind": "model"})
    sections = [
        ("Model", _model(configuration, result, origin)),
        (USE, _USE),
        ("Results", _results(data, result)),
        ("Classes", _classes(data, result)),
        ("Training", _training(configuration, result, data)),
        (PREPROCESSING, preprocessing_section(Preprocessing(**configuration["preprocessing"]))),
        ("Limits", "\n".join(f"- {line}" for line in _limits(data, result))),
        ("Licence", _licence(origin)),
    ]
    return Card(
        title=f"{configuration['model']['name']}, {data['name']}",
        library="keras",
        sections=tuple(sections),
        kind="resnet" if _is_resnet(configuration) else "vision-transformer",
        base_model=origin.get("repository"),
        datasets=_on_hub(data),
        measured=_measured(data, result),
    )


def _model(configuration, result, origin):
    height, width, channels = configuration["input_shape"]
    origins = {
        "random": "random weights",
        "model": "the weights of a model that was built before",
        "published": f"the published weights {markdown_text(origin.get('name'))}",
        "file": f"the weights {markdown_text(origin.get('name'))}",
    }
    kind = (
        "ResNet (BiT, arXiv:1912.11370)"
        if "stages" in configuration["model"]
        else "Vision Transformer (arXiv:2010.11929)"
    )
    return (
        f"A classifier of {result['classes']:,} classes: a {kind} of {result['parameters']:,} parameters, for "
        f"images of {height} x {width} pixels in {channels} channels. "
        f"keras_vit {configuration['versions']['keras_vit']} trained it from {origins[origin['kind']]}."
    )


def _is_resnet(configuration):
    return "stages" in configuration["model"]  # a field of `ResNetConfig` alone


def _measured(data, result):
    figures = [("accuracy", "Accuracy", result["test_accuracy"])]
    if result["top5_accuracy"] is not None:
        figures.append(("top_5_accuracy", "Top-5 accuracy", result["top5_accuracy"]))
    figures += [("loss", "Cross-entropy in nats", result["test_loss"])]
    figures += [("expected_calibration_error", "Calibration error, 15 bins", result["calibration_error"])]
    kind = next(iter(_on_hub(data)), data["kind"])
    return Measured(data["name"], kind, result["split"], result["test_images"], tuple(figures))


def _on_hub(data):
    """Names on the Hub of the set; nothing for local files, whatever their folder is called."""
    name = data.get("tensorflow_datasets", "").partition("/")[0]
    return (HUB_DATASETS[name],) if name in HUB_DATASETS else ()


def _results(data, result):
    rows = [(name, f"{value:.4f}") for _, name, value in _measured(data, result).figures]
    low, high = wilson_interval(result["test_accuracy"], result["test_images"])
    return (
        f"Measured on the {result['test_images']:,} images of the {result['split']} set of "
        f"{markdown_text(data['name'])}, with the weights of epoch {result['best_epoch']}.\n\n"
        f"{table(('figure', 'value'), rows)}\n\n"
        f"Of that many images, Wilson's 95 % interval of the accuracy is {low:.4f} to {high:.4f}."
    )


def _classes(data, result):
    """The names, with what was measured of each."""
    results = result["per_class"]
    columns = {
        f"{result['split']} images": [f"{each['count']:,}" for each in results],
        "recall": [_percent(each["recall"]) for each in results],
        "precision": [_percent(each["precision"]) for each in results],
    }
    return classes_section(data["class_names"], columns)


def _percent(part):
    return "none" if part is None else f"{part:.1%}"


def _training(configuration, result, data):
    sizes = ", ".join(f"{split} {size:,}" for split, size in data["sizes"].items())
    plan = configuration["plan"]
    rows = [
        ("data", markdown_text(data["name"])),
        ("images", sizes),
        ("left out, not readable", f"{len(data['bad_images']):,}"),
        ("recipe", markdown_text(result["recipe"])),
        ("steps", f"{result['steps']:,} of {plan['batch_size']} images"),
        ("epochs", str(result["epochs"])),
        *_growth(configuration),
        ("learning rate", f"{plan['learning_rate']:g}"),
        ("weights that learned", f"{result['trainable_parameters']:,} of {result['parameters']:,}"),
        ("precision", configuration["precision"]),
        ("seed", str(configuration["seed"])),
    ]
    adapted = "".join(f"\n- {markdown_text(line)}" for line in configuration["weights_report"])
    return table(("what", "value"), rows) + ("\n\nOf the weights that it began with:\n" + adapted) * bool(adapted)


def _growth(configuration):
    """A row for images that grew; earlier runs do not say, and had one size."""
    sizes = configuration.get("image_sizes", {})
    if len(sizes) > 1:
        said = (f"{height} x {width} from epoch {epoch}" for epoch, (height, width) in sizes.items())
        yield "image size", ", ".join(said)


def _limits(data, result):
    split, classes = result["split"], result["classes"]
    yield (
        f"It was trained on {data['sizes']['train']:,} images. It answers every image with one of its {classes:,} "
        "classes, also one that shows none of them."
    )
    yield (
        f"The {split} set is of the same source as the training set. How well it does on photos of another camera, "
        "place or time was not measured."
    )
    if split == "validation":
        yield "The best epoch was chosen on the validation set, so its accuracy is too high for new images."
    yield (
        f"Its confidence is off by {result['calibration_error']:.4f} in the mean (calibration error, arXiv:1706.04599)"
        ", measured on the same images. It was not calibrated."
    )
    yield from _weakest(result)
    yield "Whether it does worse for some groups of people, places or things than for others was not studied."


def _weakest(result):
    """The class that is recognised least, and those of which there was no image."""
    seen = [each for each in result["per_class"] if each["count"]]
    worst = min(seen, key=lambda each: each["recall"])
    if worst["recall"] < 1:
        share, count = f"{worst['recall']:.1%}", f"{worst['count']:,}"
        yield f"It recognises {markdown_text(worst['name'])} least: {share} of {count} images."
    if missing := len(result["per_class"]) - len(seen):
        yield f"Classes without an image in the {result['split']} set: {missing:,}. Nothing was measured of these."


def _licence(origin):
    base = f" Those it began with are under {origin['license']}: {origin['url']}." if origin.get("license") else ""
    return f"{NOT_CHOSEN}{base} Mind the licences of the images."
