"""What a checkpoint file must hold before it gets its name: valid members, and the model that the name promises."""

from collections.abc import Callable
from pathlib import Path

from keras_vit.cache import cache_dir
from keras_vit.config.variants import ResNetConfig
from keras_vit.files import file_sha256
from keras_vit.weights.checkpoint import Checkpoint, read_checkpoint
from keras_vit.weights.download.hugging_face import check_json
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import scan_any
from keras_vit.weights.registry import WeightsRecord, all_records
from keras_vit.weights.registry.augreg import FOLDER, augreg_record


def check_file(path: Path) -> Checkpoint:
    """Reads a file wholly; `CheckpointError` unless it is a checkpoint of a known layout, valid in every member."""
    scan_any(path).check()
    return read_checkpoint(path)


def check_for(record: WeightsRecord) -> Callable[[Path], None]:
    """A check that the file is valid, and holds the model of the record and no other."""

    def check(path: Path) -> None:
        if not (sha256 := file_sha256(path) if record.sha256_start else "").startswith(record.sha256_start):
            raise CheckpointError(
                f"the sha256 must begin with {record.sha256_start}, as the authors of {record.name!r} publish it.\n"
                f"Received: {path} with {sha256}."
            )
        if differing := _differing(check_file(path), record):
            raise CheckpointError(
                f"it must be {record.name!r} for {record.model}, and is another model: {differing}.\nReceived: {path}."
            )

    return check


def check_cached(path: Path) -> None:
    """Raises `CheckpointError` unless a file is valid, and at a published place of the cache what belongs there."""
    record = _published_at(path)
    if path.suffix == ".json":
        check_json(path)
    elif record is None:
        check_file(path)
    else:
        size, listed = path.stat().st_size, record.bytes
        if listed is not None and abs(size - listed) > record.bytes_tolerance:
            raise CheckpointError(
                f"the size must be the listed one: expected {listed} +- {record.bytes_tolerance} bytes, got {size}.\n"
                f"Received: {path}."
            )
        check_for(record)(path)


def _differing(checkpoint: Checkpoint, record: WeightsRecord) -> str:
    """What differs, as `"classes: expected 1000, got 10"`; heads only if the file has their number."""
    config = record.config
    if isinstance(config, ResNetConfig):
        rows = list(zip(("stages", "width"), (config.stages, config.width), checkpoint.measured_resnet(), strict=True))
        return _format_differences([("ResNet", True, checkpoint.is_resnet), *rows, _classes(checkpoint, record)])
    names = ("patch size", "width", "blocks", "MLP", "ResNet stages")
    expected = (config.patch_size, config.hidden_size, config.num_layers, config.mlp_dim, config.resnet_stages)
    rows = list(zip(names, expected, checkpoint.measured(), strict=True))
    rows.append(_classes(checkpoint, record))
    rows.append(("heads", config.num_heads, checkpoint.num_heads or config.num_heads))
    rows.append(("registers", config.registers, checkpoint.fields["registers"] if not checkpoint.is_resnet else 0))
    if record.is_flexible:
        rows = rows[1:]
    return _format_differences([("ResNet", False, checkpoint.is_resnet), *rows])


def _classes(checkpoint: Checkpoint, record: WeightsRecord) -> tuple[str, int, int]:
    return "classes", record.classes, checkpoint.classes or 0


def _format_differences(rows: list[tuple]) -> str:
    return ", ".join(f"{name}: expected {wanted}, got {found}" for name, wanted, found in rows if wanted != found)


def _published_at(path: Path) -> WeightsRecord | None:
    """The record of a place in the cache, if it is one of the table's or of AugReg's."""
    if not path.absolute().is_relative_to(cache_dir()):
        return None
    place = path.absolute().relative_to(cache_dir()).as_posix()
    record = next((record for record in all_records() if record.path == place), None)
    if record is None and place.startswith(FOLDER):
        try:
            return augreg_record(place.removeprefix(FOLDER))
        except ValueError:  # not one of AugReg's names
            return None
    return record
