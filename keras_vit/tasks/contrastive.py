"""Contrastive training of both towers on pairs of photo and caption, as CLIP, SigLIP and LiT are trained.

The model has no classes: a photo is near to what is said of it. The best epoch is that of the highest mean of recall at
1, 5 and 10, both ways, on the validation set. The folder `model` of a run has both towers and the tokenizer.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from keras_vit.checks import ArgumentError, did_you_mean
from keras_vit.config.variants import ENCODERS
from keras_vit.config.vit import ViTConfig
from keras_vit.files import expand_path
from keras_vit.pages.formatting import columns, plural, printable
from keras_vit.pages.html import Panel, Section
from keras_vit.tasks.task import MOST_PHOTOS, CardParts, Task, option, photos_section
from keras_vit.weights.checkpoint import TOWERS, TOWERS_FILE
from keras_vit.weights.registry import all_records
from keras_vit.weights.text_tower import SET_ASIDE

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.training.plan import Plan

LOSSES = ("softmax", "sigmoid")
_AT = (1, 5, 10)
_WAYS = {"image_to_text": "text of an image", "text_to_image": "image of a text"}
_NEAREST, _LONGEST = 3, 120  # captions of a photo in a report, and letters of one
_MEANINGS = (
    "Recall at 5 of the text of an image: how often the caption of a photo is among the 5 captions that are nearest to "
    "it. Pairs of an equal photo or an equal caption do not count against each other.",
    "Mean recall: the mean of recall at 1, 5 and 10, both ways.",
    "Chance: what a model has that has learned nothing, as 10 of 28 captions are among the 10 nearest.",
    "Loss: of all pairs as one batch; it grows with their number.",
)
_USE = """\
```python
import keras_vit

model = keras_vit.zero_shot("model", classes=["cat", "dog"])
```

The folder `model` has both towers and the tokenizer. `keras-vit predict PHOTO --model model --classes "cat,dog"` names
what is on a photo, and `keras-vit search` finds photos by words."""
_OPENED = {
    True: "OpenCLIP opens the folder too.",
    False: "OpenCLIP has no such towers: keras_vit alone opens the folder.",
}
_FOR_TRANSFORMERS = (
    '`keras_vit.save_checkpoint(towers, folder, "huggingface")` writes both for transformers, where `towers` is the '
    "model in `best.keras`."
)


@dataclasses.dataclass(frozen=True, eq=False)
class PairEvaluation:
    """What was measured of pairs.

    Attributes:
        ranks: place of the pair's text among the texts of its photo, `image_to_text`, and the reverse; `(n,)` each.
        loss: of all pairs as one batch.
        images: float64 `(n, E)`, of length 1.
        texts: float64 `(n, E)`, of length 1.
        captions: the texts.
        towers: the model.
        class_names: name of the column of the captions.
        seconds: duration.
    """

    ranks: Mapping[str, np.ndarray]
    loss: float
    images: np.ndarray
    texts: np.ndarray
    captions: tuple[str, ...]
    towers: Any
    class_names: tuple[str, ...]
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.images)

    @property
    def recalls(self) -> dict[str, float]:
        """As `keras_vit.recall` gives them."""
        return {f"{way}_{k}": float((self.ranks[way] <= k).mean()) for way in _WAYS for k in _AT}

    @property
    def recall(self) -> float:
        """Their mean."""
        return float(np.mean([*self.recalls.values()]))

    def summary(self) -> dict[str, Any]:
        """The single numbers, ready for JSON."""
        facts = {name: getattr(self, name) for name in ("recall", "loss", "count", "seconds")}
        return facts | {"recalls": self.recalls}

    def panel(self, sections: Sequence[Section] = ()) -> Panel:
        """What a page shows."""
        found = self.recalls
        answer = (
            f"For {found['text_to_image_1']:.1%} of {plural(self.count, 'caption')} the right photo is the nearest "
            f"one, and for {found['text_to_image_5']:.1%} it is among the five nearest."
        )
        chances = [min(k / self.count, 1.0) for k in _AT]
        figures = [("mean recall", f"{self.recall:.4f}"), ("by chance", f"{np.mean(chances):.4f}")]
        figures += [("loss (nats)", f"{self.loss:.4f}"), ("pairs", f"{self.count:,}")]
        table = Section(
            "Recall",
            header=_header(),
            rows=[*_recall_rows(found), ("chance", *(f"{chance:.4f}" for chance in chances))],
        )
        return Panel(answer, figures, _MEANINGS, [table, *sections])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(Task):
    """Both towers on captions: `keras_vit.finetune(pairs, out, task="contrastive", weights=folder)`.

    Args:
        loss: `"softmax"`, CLIP's over the whole batch of all devices, or `"sigmoid"`, SigLIP's; by default that of the
            weights: the sigmoid loss if these have a bias.
        lock_image: whether the text tower alone learns (LiT).
        caption_column: of the table; by default `caption`, else `text`.
        text: the text tower where the weights have none: a folder, a published name, or a `.keras` file of a
            `TextTransformer` with its tokenizer.
    """

    name: ClassVar[str] = "contrastive"
    head: ClassVar[str | None] = None
    metrics: ClassVar[tuple[str, ...]] = ("recall",)
    curves: ClassVar[Mapping[str, str]] = {"loss": "loss (nats)", "recall": "mean recall"}
    files: ClassVar[Mapping[str, bytes]] = {TOWERS_FILE: rb".{8}\{"}
    predict_options: ClassVar[str] = ' --classes "cat,dog"'
    recipe: ClassVar[str | None] = "clip"
    splits_batches: ClassVar[bool] = False

    loss: str | None = option(None, "", choices=LOSSES)  # the help of regression's option has both
    lock_image: bool = option(False, "of contrastive: the text tower alone learns", action="store_true")
    caption_column: str | None = option(
        None, "of contrastive: column of the captions; by default caption or text", metavar="NAME"
    )
    text: str | None = option(
        None,
        "of contrastive: the text tower, a folder, name or .keras file; by default that of --weights",
        metavar="TEXT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is not None:
            object.__setattr__(self, "text", os.fspath(self.text))

    def check(self, options: Any) -> None:
        reasons = {
            "accumulation_steps": "each pair is compared with the whole batch, which cannot be cut into parts",
            "start_image_size": "images of a contrastive training have one size",
            "layer_decay": "the layers of two towers have no common order",
        }
        self.refuse(options, reasons)
        if options.layout != "none":
            raise ArgumentError(
                "a contrastive training has a copy of both towers on each device.\n"
                f"Received: layout={options.layout!r}. Leave it out."
            )
        if self.text is not None and not self._may_be_text():
            raise ArgumentError(
                "`text` must be a folder or file with a text tower, or a published name, as 'clip/B16'.\n"
                f"Received: text={self.text!r}, where nothing is.{did_you_mean(self.text, ENCODERS)}"
            )
        if self.lock_image and options.learning != "all":
            raise ArgumentError(
                "`lock_image` locks the whole image tower, so `trainable` must be left out.\n"
                f"Received: lock_image=True, trainable={options.learning!r}."
            )

    def _may_be_text(self) -> bool:
        """Whether something is at the place of the text tower, or it is a name."""
        text = str(self.text)
        names = {*ENCODERS, *(record.name for record in all_records())}
        return os.path.exists(expand_path(text)) or text.startswith(("hf:", "https://")) or text in names

    # Data

    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        from keras_vit.data.caption_targets import CaptionTargets

        return CaptionTargets(self.caption_column or (names[0] if names else None))

    def check_source(self, source: "Source") -> None:
        import warnings

        captions = _captions(source, ("train",))
        if repeated := len(captions) - len(set(captions)):
            warnings.warn(
                f"{repeated:,} of {len(captions):,} training captions of {source.name} are equal to another one. In a "
                "batch such pairs count as wrong ones of each other (false negatives).",
                UserWarning,
                stacklevel=2,
            )

    def size_in_words(self, count: int) -> str:
        return "a caption for each image"

    # Training

    def model_arguments(self, source: "Source") -> dict[str, Any]:
        return {}

    def build(self, builder: Any, config: Any, **arguments: Any) -> Any:
        from keras_vit.model.layer_access import head_layers
        from keras_vit.weights.read import CheckpointError

        try:
            model = builder(config, **arguments)
            if not head_layers(model) or model.logit_scale is not None:  # a projection, and no classifier
                return model
        except CheckpointError as error:
            if "has no head" not in str(error):
                raise
        return builder(config, **arguments, include_top=False)

    @property
    def trains_image_model(self) -> bool:
        return not self.lock_image

    def prepare(self, model: Any, plan: "Plan", source: "Source", head: str) -> Any:
        if not 2 <= plan.batch_size <= source.sizes["train"]:
            raise ArgumentError(
                "`batch_size` must be from 2 to the number of training pairs, as pairs of a batch are compared.\n"
                f"Received: batch_size={plan.batch_size}, {source.sizes['train']:,} pairs of {source.name}."
            )
        import warnings

        from keras_vit.data.caption_targets import caption_lines

        for line in caption_lines(_captions(source, source.splits), model.text.tokenizer):
            warnings.warn(line, UserWarning, stacklevel=2)
        return model

    def complete(self, model: Any, lora_rank: int | None = None) -> Any:
        from keras_vit.model.freezing import add_lora, set_trainable
        from keras_vit.model.layer_access import head_layers
        from keras_vit.training.contrastive import ContrastiveModel

        text = self._text_tower(model)
        if self.text is None:  # the text tower of the file is taken
            model.load_report = tuple(line for line in model.load_report if not line.startswith(SET_ASIDE))
        if lora_rank is not None:
            add_lora(text, lora_rank)
            for projection in head_layers(model):  # trained, unlike the head of a classifier
                set_trainable(projection, False)
        return ContrastiveModel(model, text, self.loss, lock_image=self.lock_image, name=model.name)

    def _text_tower(self, image: Any) -> Any:
        """The text tower, of which everything that training needs is checked."""
        from keras_vit.text_builders import build_text

        source = self.text or image.weights_source
        if source is None:
            raise ArgumentError(
                "both towers must be known.\n"
                f"Received: an image tower {image.name!r} without weights, and no `text`. Pass weights of both as "
                "`weights`, or a text tower as `text`: to begin with random numbers, one that `build_text` made and "
                "`save` wrote as .keras with its tokenizer."
            )
        if str(source).endswith(".keras"):
            import keras

            text = keras.saving.load_model(source, compile=False)
        else:
            text = build_text(weights=source)
        if text.tokenizer is None or text.tokenizer.vocabulary_size > text.config.vocabulary_size:
            found = "none" if text.tokenizer is None else f"one of {text.tokenizer.vocabulary_size:,} ids"
            raise ArgumentError(
                "captions are read by the tokenizer that the text tower was trained with.\n"
                f"Received: {found}, for a table of {text.config.vocabulary_size:,} rows in {printable(source)}. Put "
                "the tokenizer's file into its folder.",
                parameters=("text",),
            )
        return text

    def encoding(self, plan: "Plan", augmentation: Any) -> str:
        if augmentation.mixes:
            raise ArgumentError(
                "MixUp and CutMix mix two images, and there is no caption of the mixture.\n"
                f"Received: an augmentation with one of them, for {self.name}. Pass another `augmentation`, as "
                "'inception'."
            )
        return "int"

    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        return {"optimizer": plan.optimizer()}

    def batches(self, dataset: Any, model: Any) -> Any:
        from keras_vit.data.caption_targets import caption_batches

        return caption_batches(dataset, model.text.tokenizer)

    # A trained model

    def opened(self, model: Any) -> Any:
        from keras_vit.model.freezing import merge_lora
        from keras_vit.model.layer_access import lora_layers
        from keras_vit.training.contrastive import ContrastiveModel

        scale, bias = model.scale_and_bias()
        image, text = (merge_lora(tower) if lora_layers(tower) else tower for tower in (model.image, model.text))
        if lora_layers(model):
            options = {"logit_scale": scale, "logit_bias": bias or 0.0, "name": model.name}
            model = ContrastiveModel(image, text, model.kind, **options)
        for tower in (image, text):
            tower.logit_scale, tower.logit_bias = scale, bias or 0.0
        object.__setattr__(image, "towers", model)  # past Keras, which would count its weights as the image tower's
        return image

    def evaluate(
        self,
        model: Any,
        data: Any,
        split: str | None = None,
        *,
        names: Sequence[str] | None = None,
        batch_size: int = 32,
        seed: int | None = None,
        **options: Any,
    ) -> PairEvaluation:
        import time

        from keras_vit.data import load_dataset
        from keras_vit.data.pipeline import report_missing_files
        from keras_vit.evaluation.batched_predict import open_to_measure
        from keras_vit.training.contrastive import ContrastiveModel, pair_ranks

        towers = model if isinstance(model, ContrastiveModel) else getattr(model, "towers", None)
        if towers is None:
            raise ValueError(
                "recall is measured with both towers, in Keras.\n"
                f"Received: {model.name!r} of type {type(model).__name__}. Leave `--engine` out."
            )
        source, split = open_to_measure(data, split, seed, self.targets(names))
        examples = source.split(split)
        dataset = load_dataset(
            source, split, batch_size=batch_size, preprocessing=towers.preprocessing, seed=seed or 0, shard=(0, 1)
        )
        began = time.perf_counter()
        with report_missing_files(examples):
            pairs = towers.embed_pairs(self.batches(dataset, towers))
        captions = tuple(examples.labels[:, 0].tolist())
        ranks, seconds = pair_ranks(*pairs), time.perf_counter() - began
        loss = towers.loss_of(pairs)
        return PairEvaluation(ranks, loss, pairs.images, pairs.texts, captions, towers, source.class_names, seconds)

    def result(self, evaluation: PairEvaluation, run: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "test_recall": evaluation.recall,
            "embedding_size": evaluation.images.shape[1],
            **run,
            "test_loss": evaluation.loss,
            "recalls": evaluation.recalls,
            **_opened_by(evaluation.towers),
        }

    def write_files(self, evaluation: PairEvaluation, folder: Path) -> None:
        import shutil
        import warnings

        from keras_vit.weights.read import CheckpointError
        from keras_vit.weights.save import save_towers

        shutil.rmtree(folder / TOWERS, ignore_errors=True)  # of a run that was stopped as it wrote this
        towers = evaluation.towers
        try:
            save_towers(towers.image, towers.text, folder / TOWERS, *towers.scale_and_bias())
        except CheckpointError as error:  # the run has trained; its models are there
            warnings.warn(f"the run has no folder {TOWERS!r}: {error}", UserWarning, stacklevel=2)

    def panel(
        self,
        evaluation: PairEvaluation,
        folder: Path | None = None,
        source: "Source | None" = None,
        split: str = "test",
    ) -> Panel:
        return evaluation.panel([] if source is None else [_photos(evaluation, source, split)])

    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        measured = f"{facts['test_recall']:.4f} on {facts['test_images']:,} pairs, epoch {facts['best_epoch']}"
        yield f"{printable(facts['split'])} mean recall", measured
        for way, *shares in _recall_rows(facts["recalls"]):
            yield way, f"{', '.join(shares)} (recall at 1, 5, 10)"
        yield "loss", f"{facts['test_loss']:.4f}"
        yield "both towers", f"the folder {TOWERS}, for zero_shot and search"

    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        figures = [("recall", "Mean recall at 1, 5 and 10, both ways", result["test_recall"])]
        for way, words in _WAYS.items():
            figures += [("recall", f"Recall at {k}, {words}", result["recalls"][f"{way}_{k}"]) for k in _AT]
        return CardParts(
            hub_task=("zero-shot-image-classification", "Image and text embeddings"),
            figures=[*figures, ("loss", "Contrastive loss in nats", result["test_loss"])],
            subject=f"An image tower and a text tower with embeddings of {result['embedding_size']:,} numbers",
            use=" ".join(_use_parts(result)),
            note=f"Chance at 1 is {1 / result['test_images']:.4f}. Recall falls as the number of pairs grows.",
            sections={},
            answers="It says how near a photo and a text are, and nothing else.",
            limits=["Cosines of different models cannot be compared."],
        )

    # Answers

    def answer(self, model: Any, outputs: Any, names: Sequence[str], top: int | None) -> list[dict[str, Any]]:
        raise _needs_words()

    def answer_lines(self, answer: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        raise _needs_words()

    def answer_columns(self, names: Sequence[str], top: int | None) -> list[str]:
        raise _needs_words()

    def answer_cells(self, answer: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
        raise _needs_words()

    def evaluation_lines(self, evaluation: PairEvaluation, split: str, name: str) -> Iterator[str]:
        yield f"{split} mean recall {evaluation.recall:.4f} on {plural(evaluation.count, 'pair')} of {name}"
        rows = [("loss", f"{evaluation.loss:.4f}"), ("chance at 1", f"{1 / evaluation.count:.4f}")]
        yield from (f"  {line}" for line in columns(rows))
        yield ""
        yield from columns([_header(), *_recall_rows(evaluation.recalls)])

    # Elsewhere

    def export_arguments(self, names: Sequence[str] | None) -> dict[str, Any]:
        raise _needs_words(" Or write the text tower by `--text`.")

    def look_arguments(self, names: Sequence[str]) -> dict[str, Any]:
        return {}

    def checkpoint_arguments(self, names: Sequence[str] | None) -> dict[str, Any]:
        return {}


def _captions(source: "Source", splits: Iterable[str]) -> list[str]:
    return [text for split in splits for text in source.split(split).labels[:, 0].tolist()]


def _opened_by(towers: Any) -> dict[str, Any]:
    """Whether OpenCLIP opens the folder of both towers, and transformers' `model_type` of them, or `None`."""
    from keras_vit.weights.metadata.two_towers import is_usual_clip, transformers_kind
    from keras_vit.weights.read import CheckpointError

    configs = towers.image.config, towers.text.config
    try:
        kind = transformers_kind(*configs)
    except (AttributeError, CheckpointError):  # of a ResNet
        kind = None
    return {"open_clip": isinstance(configs[0], ViTConfig) and is_usual_clip(*configs), "transformers": kind}


def _use_parts(result: Mapping[str, Any]) -> Iterator[str]:
    yield _USE
    if "open_clip" in result:  # not of earlier versions
        yield _OPENED[result["open_clip"]]
    if result.get("transformers"):
        yield _FOR_TRANSFORMERS


def _header() -> tuple[str, ...]:
    return ("recall", *(f"at {k}" for k in _AT))


def _recall_rows(found: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    for way, words in _WAYS.items():
        yield (words, *(f"{found[f'{way}_{k}']:.4f}" for k in _AT))


def _needs_words(more: str = "") -> ValueError:
    return ValueError(
        "a model of both towers names what is on a photo once it knows which classes there may be.\n"
        'Received: none. Pass them as `--classes "cat,dog"`, or find photos by `keras-vit search`.' + more
    )


def _photos(evaluation: PairEvaluation, source: "Source", split: str) -> Section:
    """Photos with the captions that are nearest to each; its own is bold."""
    from keras_vit.data.splits import evenly_spaced

    photos = []
    for index in evenly_spaced(evaluation.count, MOST_PHOTOS).tolist():
        cosines = evaluation.texts @ evaluation.images[index]
        nearest = dict.fromkeys(evaluation.captions[place] for place in np.argsort(-cosines, kind="stable"))
        own, texts = evaluation.captions[index], list(nearest)[:_NEAREST]
        places = {text: place for place, text in enumerate(texts, 1)}
        places.setdefault(own, int(evaluation.ranks["image_to_text"][index]))
        parts = [(f"{place}. {shorten(printable(text), _LONGEST)}", text == own) for text, place in places.items()]
        photos.append((index, [part for each in parts for part in (("\n", False), each)][1:]))
    note = (
        f"The {_NEAREST} captions of the {split} set that are nearest to each photo. Its own is bold, with its place "
        "where it is not among them."
    )
    return photos_section("Photos with their nearest captions", note, photos, source, split)
