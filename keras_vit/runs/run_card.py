"""The model card of a run: what was trained on what, how well it does on images that it did not train on, and limits.

Everything is read off what `config.json` and `result.json` hold. No path of the machine is in it: cards are published.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_vit.config.datasets import HUB_DATASETS
from keras_vit.evaluation.metrics import wilson_interval
from keras_vit.files import json_object
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.pages.cards import (
    CLASSIFICATION,
    NOT_CHOSEN,
    PREPROCESSING,
    USE,
    Card,
    classes_section,
    preprocessing_section,
)
from keras_vit.pages.formatting import markdown_text, table
from keras_vit.runs.own_files import CONFIG, MOST_BYTES, RESULT

_USE = """\
```python
import keras
import keras_vit

model = keras.saving.load_model("best.keras")
photo = keras_vit.read_image("photo.jpg", model.input_shape[-1])
print(model.predict(model.preprocessing(photo)[None]))
```

The answers are logits. `keras-vit predict photo.jpg --model FOLDER` names the classes."""


def run_card(configuration: dict[str, Any], result: dict[str, Any]) -> Card:
    """The card of a run's folder.

    Args:
        configuration: what `config.json` holds.
        result: what `result.json` holds.
    """
    data, origin = configuration["data"], configuration.get("weights_from", {"kind": "model"})
    is_resnet = "stages" in configuration["model"]  # a field of `ResNetConfig` alone
    kind = "ResNet (BiT, arXiv:1912.11370)" if is_resnet else "Vision Transformer (arXiv:2010.11929)"
    if papers := origin.get("papers"):
        kind += f" of {origin['family']} ({', '.join(f'arXiv:{number}' for number in papers)})"
    place = f": {origin['url']}" if origin.get("url") else ""
    licence = markdown_text(origin["license"]) if origin.get("license") else ""
    base = f" Those it began with are under {licence}{place}." if licence else ""
    title = f"{configuration['model']['name']}, {data['name']}"
    preprocessing = Preprocessing(**configuration["preprocessing"])  # fields that an earlier run lacks get defaults
    return Card(
        title=title,
        library="keras",
        sections={
            "Model": _model(configuration, result, origin, kind),
            USE: _USE,
            "Results": _results(data, result),
            "Classes": _classes(data, result),
            "Training": _training(configuration, result, data),
            PREPROCESSING: preprocessing_section(dataclasses.asdict(preprocessing)),
        },
        kind="resnet" if is_resnet else "vision-transformer",
        limits="\n".join(f"- {line}" for line in _limits(configuration, result)),
        licence=f"{NOT_CHOSEN}{base} Mind the licences of the images.",
        metadata=_metadata(title, data, result, origin),
    )


def card_of(folder: Path) -> Card | None:
    """The card of a finished run, or `None` of anything else, and of a run whose files do not say all of it."""
    try:
        return run_card(*(json_object(folder / name, MOST_BYTES) for name in (CONFIG, RESULT)))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _metadata(title: str, data: dict[str, Any], result: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
    """The base model, the data set and the figures, as the Hub has them."""
    set_name = data.get("tensorflow_datasets", "").partition("/")[0]  # of local files none, whatever they are called
    on_hub = HUB_DATASETS.get(set_name)
    metrics = [{"type": metric, "value": value, "name": name} for metric, name, value in _figures(result)]
    measured = {
        "task": {"type": CLASSIFICATION, "name": "Image classification"},
        "dataset": {
            "name": data["name"],
            "type": on_hub or data["kind"],
            "split": result["split"],
            "args": {"images": result["test_images"]},
        },
        "metrics": metrics,
    }
    return {
        **({"base_model": origin["repository"]} if origin.get("repository") else {}),
        **({"datasets": [on_hub]} if on_hub else {}),
        "metrics": [each["type"] for each in metrics],
        "model-index": [{"name": title, "results": [measured]}],
    }


def _figures(result: dict[str, Any]) -> list[tuple[str, str, float]]:
    """The metric of the Hub, its name for people, and its value; without those that there are not."""
    figures = [
        ("accuracy", "Accuracy", result["test_accuracy"]),
        ("top_5_accuracy", "Top-5 accuracy", result["top5_accuracy"]),
        ("loss", "Cross-entropy in nats", result["test_loss"]),
        ("expected_calibration_error", "Calibration error, 15 bins", result["calibration_error"]),
    ]
    return [figure for figure in figures if figure[2] is not None]


def _model(configuration: dict[str, Any], result: dict[str, Any], origin: dict[str, Any], kind: str) -> str:
    height, width, channels = configuration["input_shape"]
    name = markdown_text(origin.get("name"))
    origins = {
        "random": "random weights",
        "model": "the weights of a model that was built before",
        "published": f"the published weights {name}",
        "file": f"the weights {name}",
    }
    return (
        f"A classifier of {result['classes']:,} classes: a {kind}, with {result['parameters']:,} parameters, for "
        f"images of {height} x {width} pixels in {channels} channels. "
        f"keras_vit {configuration['versions']['keras_vit']} trained it from {origins[origin['kind']]}."
    )


def _results(data: dict[str, Any], result: dict[str, Any]) -> str:
    low, high = wilson_interval(result["test_accuracy"], result["test_images"])
    return (
        f"Measured on the {result['test_images']:,} images of the {result['split']} set of "
        f"{markdown_text(data['name'])}, with the weights of epoch {result['best_epoch']}.\n\n"
        f"{table(('figure', 'value'), [(name, f'{value:.4f}') for _, name, value in _figures(result)])}\n\n"
        f"Of that many images, Wilson's 95 % interval of the accuracy is {low:.4f} to {high:.4f}."
    )


def _classes(data: dict[str, Any], result: dict[str, Any]) -> str:
    """The names, with what was measured of each."""
    results = result["per_class"]
    columns = {f"{result['split']} images": [f"{each['count']:,}" for each in results]}
    for name in ("recall", "precision"):
        columns[name] = ["none" if each[name] is None else f"{each[name]:.1%}" for each in results]
    return classes_section(data["class_names"], columns)


def _training(configuration: dict[str, Any], result: dict[str, Any], data: dict[str, Any]) -> str:
    sizes = ", ".join(f"{split} {size:,}" for split, size in data["sizes"].items())
    plan = configuration["plan"]
    growth = configuration.get("image_sizes", {})  # an earlier run does not say, and had one size
    grown = ", ".join(f"{height} x {width} from epoch {epoch}" for epoch, (height, width) in growth.items())
    rows = [
        ("data", markdown_text(data["name"])),
        ("images", sizes),
        ("left out, not readable", f"{len(data['bad_images']):,}"),
        ("recipe", markdown_text(result["recipe"])),
        ("steps", f"{result['steps']:,} of {plan['batch_size']} images"),
        ("epochs", str(result["epochs"])),
        *([("stopped", markdown_text(result["stopped"]))] if "stopped" in result else []),
        *([("image size", grown)] if len(growth) > 1 else []),
        ("learning rate", f"{plan['learning_rate']:g}"),
        ("weights that learned", f"{result['trainable_parameters']:,} of {result['parameters']:,}"),
        ("precision", configuration["precision"]),
        ("seed", str(configuration["seed"])),
    ]
    adapted = "".join(f"\n- {markdown_text(line)}" for line in configuration["weights_report"])
    return table(("what", "value"), rows) + (f"\n\nOf the weights that it began with:\n{adapted}" if adapted else "")


def _limits(configuration: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    data, split = configuration["data"], result["split"]
    yield (
        f"It was trained on {data['sizes']['train']:,} images. It answers every image with one of its "
        f"{result['classes']:,} classes, also one that shows none of them."
    )
    yield (
        f"The {split} set is of the same source as the training set. How well it does on photos of another camera, "
        "place or time was not measured."
    )
    if configuration.get("measured_on", split) == "validation":  # which may be another than the set's own of that name
        yield "The best epoch was chosen on the validation set, so its accuracy is too high for new images."
    yield (
        f"Its confidence is off by {result['calibration_error']:.4f} in the mean (calibration error, arXiv:1706.04599)"
        ", measured on the same images. It was not calibrated."
    )
    seen = [each for each in result["per_class"] if each["count"]]
    worst = min(seen, key=lambda each: each["recall"])
    if worst["recall"] < 1:
        share, count = f"{worst['recall']:.1%}", f"{worst['count']:,}"
        yield f"It recognises {markdown_text(worst['name'])} least: {share} of {count} images."
    if missing := len(result["per_class"]) - len(seen):
        yield f"Classes without an image in the {split} set: {missing:,}. Nothing was measured of these."
    yield "Whether it does worse for some groups of people, places or things than for others was not studied."
