"""A trained model to the Hugging Face Hub: its weights where `hf:` names find them, with its names and its card."""

import os
import tempfile
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import check_choice, check_flag
from keras_vit.files import expand_path
from keras_vit.pages.cards import CARD, NOT_CHOSEN, PREPROCESSING, USE, read_card, with_field, with_section
from keras_vit.renamed import accepts_old_arguments
from keras_vit.runs.load import check_pushed, load_model, read_facts
from keras_vit.runs.results import Result
from keras_vit.runs.run_files import BEST, CONFIG
from keras_vit.weights.checkpoint import SAFETENSORS_NAME
from keras_vit.weights.checkpoint_card import folder_layout, opened_by, photos_section, towers_use_section, use_section
from keras_vit.weights.families import FOLDERS, LAYOUTS
from keras_vit.weights.file_checks import check_file
from keras_vit.weights.save import TOWER_FORMATS, save_checkpoint
from keras_vit.weights.upload import check_license, check_repository, existing_files, upload


@accepts_old_arguments
def push_to_hub(
    folder: FilePath | Result,
    repository: str,
    *,
    license: str | None = None,
    format: str | None = None,
    private: bool = False,
    message: str = "Weights and model card by keras_vit",
) -> str:
    """Publishes a run or a checkpoint folder on the Hugging Face Hub, from where `weights="hf:owner/name"` loads it.

    Only weights, their JSON files, `PREPROCESSING.md` and the card are sent, in one commit. Of a run the weights
    are those of `best.keras`, with the names of its outputs. Its card is sent as it is in the folder, edits included.
    Only how to load the model and how photos are prepared is written anew.

    Args:
        folder: of a finished run, or its `Result`; or one that `save_checkpoint` has written for timm or transformers.
        repository: `"owner/name"`, which is made if it is not there.
        license: of the weights, as the Hub names it, such as `"apache-2.0"`; by default as the card says.
        format: of a run, `"timm"`, the default, or `"huggingface"`: which software opens the repository. Of both
            towers `"open_clip"`, the default, or `"huggingface"`.
        private: whether the repository is to be seen by its owner alone. A new one is made so.
        message: of the commit.

    Returns:
        `"hf:owner/name@commit"`, which is what was sent, also after later changes.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a folder that is neither or has no card, or a name or licence that cannot be. With `private`
            also for a repository that is there and public.
        CheckpointError: if the layout has no place for a weight, or a file is not valid; nothing is sent then.
        UploadError: (an `OSError`) if the Hub does not take the files.
        OfflineError: without a network, or if it may not be used.
        ImportError: without the extra `hub`.

    Warns:
        UserWarning: as `save_checkpoint`, where the other software computes or prepares something otherwise.
    """
    check_repository(repository)
    check_license(license)
    check_flag("private", private)
    place = _place(folder)
    with tempfile.TemporaryDirectory() as temporary:
        file = _weights_file(place, Path(temporary) / "weights", format)
        checkpoint = check_file(file)  # as `hf:` will when it is loaded
        card = Path(temporary) / CARD
        card.write_text(_card(read_card(place), checkpoint, f"hf:{repository}", license), "utf-8")
        files = existing_files(file.parent) | {CARD: card}
        commit = upload(files, repository, private=private, message=message)
    return f"hf:{repository}@{commit}"


def _place(folder: Any) -> Path:
    if isinstance(folder, Result):
        return folder.out
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"`folder` must be a path or the `Result` of a run.\nReceived: folder={folder!r}.")
    return expand_path(folder)


def _weights_file(place: Path, temporary: FilePath, format: str | None) -> Path:
    """The weights: those of a checkpoint's folder, or a run's in a new one."""
    if check_pushed(place, format):
        run = read_facts(place / CONFIG)
        formats = ("timm", *(name for name in FOLDERS if name != "timm")) if run.task.head else TOWER_FORMATS
        check_choice("format", format or formats[0], formats)
        format = format or (formats[0] if run.task.head else None)  # of both towers what the run itself has
        named = run.task.checkpoint_arguments(run.class_names)
        return save_checkpoint(load_model(place / BEST), temporary, format, **named)
    return place / SAFETENSORS_NAME


def _card(text: str, checkpoint: Any, name: str, license: str | None) -> str:
    """The card as it is to be on the Hub."""
    if (opened := opened_by(checkpoint.path)) is not None:
        text = with_section(text, USE, towers_use_section(opened, name))
        text = with_field(text, "library_name", opened or "keras")
    else:
        format = folder_layout(checkpoint)
        text = with_section(text, USE, use_section(checkpoint, format, name))
        text = with_section(text, PREPROCESSING, photos_section(checkpoint, format))
        text = with_field(text, "library_name", LAYOUTS[format].software)
    if license is None:
        return text
    return with_field(text, "license", license).replace(NOT_CHOSEN, f"These weights are under `{license}`.")
