"""What a task must say: its data, its head and loss, its metrics, and how its answers are shown and exported."""

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keras_vit.checks import ArgumentError, check_choice, validate
from keras_vit.pages.html import Panel, Section, picture_uri

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.evaluation.batched_predict import OutputRows
    from keras_vit.training.plan import Plan

MOST_PHOTOS = 24  # of a report
TOP = 5  # classes that an answer names, by default
_THUMBNAIL = 160  # pixels, the longer side


def option(default: Any, help: str, flag: str | None = None, **parser: Any) -> Any:
    """A field, and what the command line says of it; `flag` where that is not its name, `parser` as argparse has it."""
    return dataclasses.field(default=default, metadata={"help": help, "flag": flag, "parser": parser})


def check_options(record: Any) -> None:
    """Checks a record whose fields `option` made: by their annotations, and words by their `choices`."""
    validate(record)
    for each in dataclasses.fields(record):
        value, choices = getattr(record, each.name), each.metadata["parser"].get("choices")
        if choices and (value is not None or each.default is not None):
            check_choice(each.name, value, choices)


def comma_separated(text: str) -> tuple[str, ...]:
    """The parts of an option that is a list on the command line."""
    return tuple(part.strip() for part in text.split(","))


@dataclasses.dataclass(frozen=True)
class CardParts:
    """What a task says in the model card of a run. Texts are Markdown.

    Attributes:
        hub_task: the Hub's name of the task, as `"image-classification"`, and that for people.
        figures: the metric of the Hub, its name for people, and its value.
        subject: what the model is, as `"A classifier of 3 classes"`.
        use: what the answers are, after the code that gets one.
        note: below the table of figures.
        sections: by heading, after the results.
        answers: what it answers to an image that is not of its kind, in a sentence.
        limits: further ones, a line each.
    """

    hub_task: tuple[str, str]
    figures: Sequence[tuple[str, str, float]]
    subject: str
    use: str
    note: str
    sections: Mapping[str, str]
    answers: str
    limits: Sequence[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """What a model is trained for. The fields of the record are the options of the task, each made by `option`.

    Attributes:
        name: in the option `task`, and in a run folder.
        head: the kind of head that the model ends in, of `config.heads`; `None` of a model of embeddings, whose outputs
            have no names.
        metrics: names in the history and columns of `metrics.csv`. The first decides the best epoch, by its value on
            the validation set; of equal ones the lower loss does.
        larger_is_better: of that metric.
        curves: the columns that `curves.png` shows with rate and gradient, two, with the words of their axes.
        files: that the task writes into a run folder, each with the pattern of its beginning.
        ranks: whether outputs are scores, so that `predict` takes how many of the highest to name.
        command: that gives its answers: `predict`, by `answer` and what is next to it; or one that writes maps.
        predict_options: of that command, that a model of the task needs.
        recipe: name of the recipe where none is asked for; by default that of weights or of the small model.
        augmentation: name of that of training images where none is asked for; by default the recipe's.
        splits_batches: whether a batch can be computed in micro-batches.
        trainable: the weights that learn where that is not asked for, as the option of that name has it.
    """

    name: ClassVar[str]
    head: ClassVar[str | None]
    metrics: ClassVar[tuple[str, ...]]
    larger_is_better: ClassVar[bool] = True
    curves: ClassVar[Mapping[str, str]]
    files: ClassVar[Mapping[str, bytes]] = {}
    ranks: ClassVar[bool] = False
    predict_options: ClassVar[str] = ""
    command: ClassVar[str] = "predict"
    recipe: ClassVar[str | None] = None
    augmentation: ClassVar[str | None] = None
    splits_batches: ClassVar[bool] = True
    trainable: ClassVar[str] = "all"

    @property
    def trains_image_model(self) -> bool:
        """Whether the model of images learns, so that LoRA is added to it."""
        return True

    # The record

    @classmethod
    def options(cls) -> tuple[dataclasses.Field, ...]:
        """The fields of the record."""
        return dataclasses.fields(cls)

    def __post_init__(self) -> None:
        check_options(self)

    def __str__(self) -> str:
        """The name, and the options that are not at their defaults."""
        changed = [f"{each.name}={value!r}" for each in self.options() if (value := self._value(each)) != each.default]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    def facts(self) -> dict[str, Any]:
        """What a run folder stores, ready for JSON; `find_task` reads it."""
        return {"name": self.name} | {each.name: self._value(each) for each in self.options()}

    def _value(self, option: dataclasses.Field) -> Any:
        return getattr(self, option.name)

    def check(self, options: Any) -> None:  # noqa: B027  # most have none
        """Refuses `FinetuneOptions` that the task has no use for; called once they are known to be valid."""

    def refuse(self, options: Any, reasons: Mapping[str, str]) -> None:
        """Refuses those of `reasons` that were passed, by their names."""
        for name, reason in reasons.items():
            if (value := getattr(options, name)) not in (None, 1):
                raise ArgumentError(f"`{name}` must be left out: {reason}.\nReceived: {name}={value}, task={self}.")

    # Data

    @abc.abstractmethod
    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        """What examples are labelled with, for `open_source`.

        Args:
            names: of the outputs that a model has, for data to measure it on.
        """

    def targets_of(self, model: Any, names: Sequence[str] | None) -> "Targets":
        """Targets by the names of the outputs of a model; `names` must have their order."""
        from keras_vit.images.preprocessing import check_same_order

        known = getattr(model, "class_names", None)
        if names:
            check_same_order(known, names, "names")
        return self.targets(names or known)

    def of_data(self, **places: str | None) -> "Task":
        """The task for other data than those of its run.

        Args:
            **places: where these have their maps, `masks` or `depths`, if that was given.

        Raises:
            ValueError: for maps that the task has not.
        """
        for name, place in places.items():
            if place is not None:
                raise ArgumentError(
                    f"`{name}` are of models of pixels.\nReceived: {name}={place!r} for a model of {self.name}."
                )
        return self

    def check_source(self, source: "Source") -> None:  # noqa: B027  # most have none
        """Reads and checks what `open_source` has not, before a run."""

    def subset(self, source: "Source", count: int, seed: int) -> "Source":
        """The source with so many training images."""
        return source.subset(count, seed=seed, order="random")

    @abc.abstractmethod
    def size_in_words(self, count: int) -> str:
        """As `"3 classes"`, of the number of outputs."""

    # Training

    def model_arguments(self, source: "Source") -> dict[str, Any]:
        """Arguments of `build` and `build_resnet`."""
        return {"classes": len(source.class_names)}

    def build(self, builder: Any, config: Any, **arguments: Any) -> Any:
        """The model by `build` or `build_resnet`, with these arguments, those of `model_arguments` among them."""
        return builder(config, **arguments)

    def complete(self, model: Any, lora_rank: int | None = None) -> Any:
        """All that is trained, before its memory is estimated and its batch chosen; it may be another model.

        Args:
            model: as it was built, or one of the user's own.
            lora_rank: of the factors that `model` has, for what is put next to it.
        """
        return model

    def prepare(self, model: Any, plan: "Plan", source: "Source", head: str) -> Any:
        """The model with the initial values of its head, to be compiled.

        Args:
            model: of `complete`.
            plan: of the training.
            source: the data.
            head: `"reset"`, or `"keep"` for a model of the user's own, as `Plan.prepare` takes it.
        """
        plan.prepare(model, head)
        model.head_kind = self.head
        return model

    def encoding(self, plan: "Plan", augmentation: Any) -> str:
        """`labels` of `load_dataset`: `"int"` or `"one_hot"`."""
        return "one_hot"

    @abc.abstractmethod
    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        """Arguments of `model.compile`, with those of `plan.compile_arguments` but for loss and metrics."""

    def loss_in_words(self, source: "Source") -> str:
        """What a run prints of the loss, if it is not that of the recipe alone."""
        return ""

    def batches(self, dataset: Any, model: Any) -> Any:
        """Batches of `load_dataset` as `fit` of the model takes them, with the same attributes."""
        return dataset

    def score(self, logs: Mapping[str, float]) -> tuple[float, float] | None:
        """What is compared to find the best epoch, larger is better; `None` without a validation set."""
        if (value := logs.get(f"val_{self.metrics[0]}")) is None:
            return None
        return (value if self.larger_is_better else -value), -logs["val_loss"]

    # A trained model

    def opened(self, model: Any) -> Any:
        """The model of images in what a run trains and saves."""
        return model

    def settle(self, model: Any, source: "Source", batch_size: int) -> "Task":
        """The task with what is chosen on the validation set once the best model is known, as a threshold."""
        return self

    @abc.abstractmethod
    def evaluate(
        self, model: Any, data: Any, split: str | None = None, *, names: Sequence[str] | None = None, **options: Any
    ) -> Any:
        """Measures a model on a split.

        Args:
            model: with a head of this task, or an `Engine` of one.
            data: a `Source`, or what `open_source` takes.
            split: or several, as for `Source.split`.
            names: of the outputs, in order, which the data must have.
            **options: `batch_size`, images at once, 32 by default; `seed` of the division into splits, 0 by default;
                and those of the command that were given, as `real_labels`.

        Returns:
            A record with `count`, `class_names`, `loss`, `seconds`, a `summary()` for JSON, and a `panel()` if it is
            not that of classes.
        """

    @abc.abstractmethod
    def result(self, evaluation: Any, run: Mapping[str, Any]) -> dict[str, Any]:
        """What `result.json` holds.

        Args:
            evaluation: of the best model.
            run: the facts that any run has.

        Returns:
            Those with the task's own. The first key must be `test_` and the first metric, the second how many outputs
            there are.
        """

    def write_files(self, evaluation: Any, folder: Path) -> None:  # noqa: B027  # most have none
        """Writes the task's own files into a run folder, those of `files`."""

    @abc.abstractmethod
    def panel(
        self, evaluation: Any, folder: Path | None = None, source: "Source | None" = None, split: str = "test"
    ) -> Panel:
        """What a report shows.

        Args:
            evaluation: of `evaluate`.
            folder: of the run, with the task's own files.
            source: the data, for photos of its mistakes.
            split: that was measured.
        """

    @abc.abstractmethod
    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Names and texts that are printed as a run ends, of what `result.json` holds; old runs lack some."""

    @abc.abstractmethod
    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        """What the model card says, of `data` in `config.json` and of `result.json`."""

    # Answers

    def answer(self, model: Any, outputs: Any, names: Sequence[str], top: int | None) -> list[dict[str, Any]]:
        """What is on one image, ready for JSON.

        Args:
            model: that answered.
            outputs: its K numbers.
            names: of them.
            top: how many of the highest to name, of a task that ranks; `None` is its own choice.

        Raises:
            ValueError: for numbers that are not finite.
        """
        raise NotImplementedError

    def answer_lines(self, answer: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """That answer in lines."""
        raise NotImplementedError

    def answer_columns(self, names: Sequence[str], top: int | None) -> list[str]:
        """Names of the columns that a table of answers has besides `path` and `status`; arguments as of `answer`."""
        raise NotImplementedError

    def answer_cells(self, answer: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
        """That answer as the cells of those columns; `names` are those of all outputs."""
        raise NotImplementedError

    @abc.abstractmethod
    def evaluation_lines(self, evaluation: Any, split: str, name: str) -> Iterator[str]:
        """What was measured on a split of the data of that name, in lines."""

    # Elsewhere

    def export_arguments(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Arguments of `keras_vit.export`; names are those of the outputs, if they are known."""
        return {"labels": names}

    def look_arguments(self, names: Sequence[str]) -> dict[str, Any]:
        """Arguments of `keras_vit.look`."""
        return {"class_names": names}

    def checkpoint_arguments(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Arguments of `keras_vit.save_checkpoint`, for the Hub."""
        return {"labels": names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowTask(Task):
    """A task whose targets are a row of numbers for each image. One of its own has `measure` in place of `evaluate`."""

    columns: tuple[str, ...] | None = option(
        None,
        "of multi-label and regression: columns of the table that are learned; by default all",
        type=comma_separated,
        metavar="A,B",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = comma_separated(self.columns) if isinstance(self.columns, str) else tuple(self.columns or ())
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ArgumentError(
                f"`columns` must name each column once.\nReceived: {repeated[0]!r} {names.count(repeated[0])} times."
            )
        object.__setattr__(self, "columns", names or None)

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
    ) -> Any:
        from keras_vit.evaluation.batched_predict import output_rows

        return self.measure(output_rows(model, data, split, self.targets_of(model, names), batch_size, seed))

    @abc.abstractmethod
    def measure(self, found: "OutputRows") -> Any:
        """What `evaluate` gives, from the outputs of a model and the targets."""


MAP_HEADS = ("linear", "linear4", "dpt", "upernet", "segmenter", "eomt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapTask(Task):
    """A task with an answer for each pixel, by a head on blocks of an encoder. One of its own has `add_head`."""

    splits_batches: ClassVar[bool] = False  # BatchNorm has other means of parts
    trainable: ClassVar[str] = "head"
    predict_options: ClassVar[str] = " --out answers"

    map_head: str = option(
        "linear",
        "of depth and segmentation: linear, on the last block, by default; linear4, on four; or dpt; of segmentation "
        "also upernet, segmenter or eomt",
        flag="--head",
        choices=MAP_HEADS,
    )

    def check(self, options: Any) -> None:
        reasons = {
            "accumulation_steps": "its head or loss is of the whole batch",
            "lora_rank": "its encoder is frozen or learns whole",
            "start_image_size": "its images have one size",
            "patch_dropout_rate": "its head reads every patch",
        }
        self.refuse(options, reasons)

    def build(self, builder: Any, config: Any, **arguments: Any) -> Any:
        from keras_vit.builders import build

        if builder is not build:
            raise ArgumentError(f"{self.name} needs an encoder of patches.\nReceived: a ResNet. Pass another `model`.")
        classes, name = arguments.pop("classes"), arguments.pop("name")
        arguments |= {"include_top": False, "pooling": "none", "representation_size": None}
        return self.add_head(builder(config, **arguments, **({} if name is None else {"name": name})), classes)

    @abc.abstractmethod
    def add_head(self, encoder: Any, classes: int) -> Any:
        """The model: an encoder, which is not frozen, and the head `map_head` with random weights."""

    def prepare(self, model: Any, plan: "Plan", source: "Source", head: str) -> Any:
        return model  # whose head begins with small random numbers

    def encoding(self, plan: "Plan", augmentation: Any) -> str:
        if not augmentation.moves_masks:
            raise ArgumentError(
                "a mask or depth map must be moved as its photo is: by the crops scale_crop and none, flips and "
                "colors alone.\n"
                f"Received: an augmentation of photos alone. Pass another `augmentation`, as '{self.augmentation}'."
            )
        return "int"


def photos_section(
    title: str, note: str, photos: Sequence[tuple[int, Sequence[tuple[str, bool]]]], source: "Source", split: str
) -> Section:
    """Photos of a split for a report, with the words below each; `True` marks those in bold."""
    shown = [
        {
            "picture": picture_uri(source.pixels(split, index), _THUMBNAIL),
            "alt": "".join(text for text, _ in caption),
            "caption": caption,
            "place": source.split(split).row(index).get("path") or f"image {index}",
        }
        for index, caption in photos
    ]
    return Section(title, note, photos=shown)
