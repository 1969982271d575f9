"""The model card of a run: what was trained on what, how well it does on images that it did not train on, and limits.

Everything is read off what `config.json` and `result.json` hold. No path of the machine is in it: cards are published.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_vit.config.datasets import HUB_DATASETS
from keras_vit.files import json_object
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.pages.cards import NOT_CHOSEN, PREPROCESSING, USE, Card, preprocessing_section
from keras_vit.pages.formatting import markdown_text, plural, table
from keras_vit.runs.run_files import CONFIG, MOST_BYTES, RESULT
from keras_vit.tasks import find_task
from keras_vit.tasks.task import CardParts

_FORMATS = {"mae": ".5g", "rmse": ".5g"}  # by the Hub's metric, of those in a unit of the data
_USE = """\
```python
import keras
import keras_vit

model = keras.saving.load_model("best.keras")
photo = keras_vit.read_image("photo.jpg", model.input_shape[-1])
print(model.predict(model.preprocessing(photo)[None]))
```

"""


def run_card(configuration: dict[str, Any], result: dict[str, Any]) -> Card:
    """The card of a run's folder, by what its `config.json` and `result.json` hold."""
    data, origin = configuration["data"], configuration.get("weights_from", {"kind": "model"})
    is_resnet = "stages" in configuration["model"]  # a field of `ResNetConfig` alone
    kind = "ResNet (BiT, arXiv:1912.11370)" if is_resnet else "Vision Transformer (arXiv:2010.11929)"
    if papers := origin.get("papers"):
        kind += f" of {origin['family']} ({', '.join(f'arXiv:{number}' for number in papers)})"
    place = f": {origin['url']}" if origin.get("url") else ""
    licence = markdown_text(origin["license"]) if origin.get("license") else ""
    base = f" Those it began with are under {licence}{place}." if licence else ""
    title = f"{configuration['model']['name']}, {data['name']}"
    parts = find_task(result.get("task", configuration.get("task"))).card(data, result)
    preprocessing = Preprocessing(**configuration["preprocessing"])  # fields that an earlier run lacks get defaults
    return Card(
        title=title,
        library="keras",
        sections={
            "Model": _model(configuration, result, origin, kind, parts.subject),
            USE: _USE + parts.use,
            "Results": _results(data, result, parts),
            **parts.sections,
            "Training": _training(configuration, result, data),
            PREPROCESSING: preprocessing_section(dataclasses.asdict(preprocessing)),
        },
        kind="resnet" if is_resnet else "vision-transformer",
        limits="\n".join(f"- {line}" for line in _limits(configuration, result, parts)),
        licence=f"{NOT_CHOSEN}{base} Mind the licences of the images.",
        metadata=_metadata(title, data, result, origin, parts),
    )


def read_run_card(folder: Path) -> Card | None:
    """The card of a finished run, or `None` of anything else, and of a run whose files do not say all of it."""
    try:
        return run_card(*(json_object(folder / name, MOST_BYTES) for name in (CONFIG, RESULT)))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _metadata(
    title: str, data: dict[str, Any], result: dict[str, Any], origin: dict[str, Any], parts: CardParts
) -> dict[str, Any]:
    """The base model, the data set and the figures, as the Hub has them."""
    set_name = data.get("tensorflow_datasets", "").partition("/")[0]  # of local files none, whatever they are called
    on_hub = HUB_DATASETS.get(set_name)
    metrics = [{"type": metric, "value": value, "name": name} for metric, name, value in parts.figures]
    measured = {
        "task": {"type": parts.hub_task[0], "name": parts.hub_task[1]},
        "dataset": {
            "name": data["name"],
            "type": on_hub or data["kind"],
            "split": result["split"],
            "args": {"images": result["test_images"]},
        },
        "metrics": metrics,
    }
    return {
        "pipeline_tag": parts.hub_task[0],
        **({"base_model": origin["repository"]} if origin.get("repository") else {}),
        **({"datasets": [on_hub]} if on_hub else {}),
        "metrics": [*dict.fromkeys(each["type"] for each in metrics)],
        "model-index": [{"name": title, "results": [measured]}],
    }


def _model(
    configuration: dict[str, Any], result: dict[str, Any], origin: dict[str, Any], kind: str, subject: str
) -> str:
    height, width, channels = configuration["input_shape"]
    name = markdown_text(origin.get("name"))
    origins = {
        "random": "random weights",
        "model": "the weights of a model that was built before",
        "published": f"the published weights {name}",
        "file": f"the weights {name}",
    }
    return (
        f"{subject}: a {kind}, with {result['parameters']:,} parameters, for "
        f"images of {height} x {width} pixels in {channels} channels. "
        f"keras_vit {configuration['versions']['keras_vit']} trained it from {origins[origin['kind']]}."
    )


def _results(data: dict[str, Any], result: dict[str, Any], parts: CardParts) -> str:
    figures = [(name, f"{value:{_FORMATS.get(kind, '.4f')}}") for kind, name, value in parts.figures]
    return (
        f"Measured on the {result['test_images']:,} images of the {result['split']} set of "
        f"{markdown_text(data['name'])}, with the weights of epoch {result['best_epoch']}.\n\n"
        f"{table(('figure', 'value'), figures)}" + (f"\n\n{parts.note}" if parts.note else "")
    )


def _training(configuration: dict[str, Any], result: dict[str, Any], data: dict[str, Any]) -> str:
    sizes = ", ".join(f"{split} {size:,}" for split, size in data["sizes"].items())
    plan = configuration["plan"]
    growth = configuration.get("image_sizes", {})  # a run of an earlier version had one size and does not say it
    grown = ", ".join(f"{height} x {width} from epoch {epoch}" for epoch, (height, width) in growth.items())
    rows = [
        ("data", markdown_text(data["name"])),
        ("images", sizes),
        ("left out, not readable", f"{len(data['bad_images']):,}"),
        ("recipe", markdown_text(result["recipe"])),
        ("steps", f"{result['steps']:,} of {plural(plan['batch_size'], 'image')}"),
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


def _limits(configuration: dict[str, Any], result: dict[str, Any], parts: CardParts) -> Iterator[str]:
    data, split = configuration["data"], result["split"]
    yield f"It was trained on {data['sizes']['train']:,} images. {parts.answers}"
    yield (
        f"The {split} set is of the same source as the training set. How well it does on photos of another camera, "
        "place or time was not measured."
    )
    if configuration.get("measured_on", split) == "validation":  # which may be another than the set's own of that name
        metric = next(iter(result)).removeprefix("test_").replace("_", " ")
        yield f"The best epoch was chosen on the validation set, so its {metric} is too high for new images."
    yield from parts.limits
    yield "Whether it does worse for some groups of people, places or things than for others was not studied."
