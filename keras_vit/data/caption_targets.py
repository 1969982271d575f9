"""A caption for each photo: a column of a table or of Parquet, or a `.txt` next to the photo in a tar.

Labels are texts, an array of objects `(n, 1)`, and the one name of a `Source` is that of the column.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.checks import did_you_mean
from keras_vit.data.row_targets import Row, RowTargets, tar_members
from keras_vit.data.shards.index import IndexedShard
from keras_vit.data.shards.tars import member_key
from keras_vit.files import parse_json
from keras_vit.pages.formatting import printable
from keras_vit.text.tokenizer import Tokenizer, cut_and_equal_texts

COLUMNS = ("caption", "text")  # of which the first that is there is taken
_SHOWN = 40  # last letters of a caption


class CaptionTargets(RowTargets):
    """A text for each photo, as it is: also "nan" and "1.5". A photo may have several, each in a row of its own.

    Args:
        column: of the captions; by default `caption`, else `text`.
    """

    noun, example, member = "captions", ("path,caption", "1.jpg,a red car"), ".txt"
    are_texts = True

    def __init__(self, column: str | None = None) -> None:
        super().__init__(None)
        self.column = column
        self.also = COLUMNS if column is None else (column,)

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        found = self._column(header)
        if found is None:
            wanted = self.column or COLUMNS[0]
            raise ValueError(
                f"a table of captions must have a column {wanted!r} in addition to the path.\n"
                f"Received: {str(path)!r} with the columns {list(header)}.{did_you_mean(wanted, header)} Another name "
                "goes to `caption_column` (`--caption-column`)."
            )
        return (found,)

    def of_rows(self, rows: Sequence[Row]) -> tuple[Sequence[str], np.ndarray]:
        column = self._column(rows[0].cells) or self.column or COLUMNS[0]
        found = np.empty((len(rows), 1), object)
        for number, row in enumerate(rows):
            cell = row.cells.get(column)
            if cell is not None and not isinstance(cell, str):
                kind = f"{row.shown(column)[:60]} of type {type(cell).__name__}"
                raise row.error("a caption must be text", column, kind, "Write it as text, or leave the row out.")
            if cell is None or not cell.strip():
                raise row.error("a caption must not be empty", column, row.shown(column), "Leave the row out.")
            found[number, 0] = cell.strip()
        return (column,), found

    def of_array(
        self, split: str, values: np.ndarray, names: Sequence[str] | None
    ) -> tuple[Sequence[str], np.ndarray] | None:
        if values.ndim != 1:
            raise ValueError(
                "captions must be a list of texts, one for each image.\n"
                f"Received: shape {values.shape} of {values.dtype} for {split}."
            )
        column = self.column or COLUMNS[0]
        return self.of_rows([Row(split, f"row {place}", {column: text}) for place, text in enumerate(values.tolist())])

    def check_source(self, source: Any) -> None:
        if any(np.ndim(split.labels) != 2 or split.labels.dtype != object for split in source.splits.values()):
            raise self.needs_table(source)

    def _column(self, header: Any) -> str | None:
        return next((name for name in self.also if name in header), None)

    def tar_cells(self, path: str, shard: IndexedShard) -> Iterator[tuple[str, dict[str, Any]]]:
        """The text of each photo's `.txt`, else the field of its `.json`."""
        texts, fields = tar_members(path, self.member, _decoded), tar_members(path, ".json", parse_json)
        column = self.column or COLUMNS[0]
        for row in shard.rows.rows:
            key = member_key(row.key)[0]
            name, text = texts.get(key, fields.get(key, ("", None)))
            if isinstance(text, dict):
                text = text.get(self._column(text) or column)
            elif key not in texts:
                raise ValueError(
                    "every photo of a tar must have its caption, in a .txt of its name.\n"
                    f"Received: {printable(path)}, photo {row.key!r} without {key + self.member!r}."
                )
            yield name, {column: text}


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig")


def caption_lines(captions: Sequence[str], tokenizer: Tokenizer) -> Iterator[str]:
    """Lines on captions that are cut, and on different ones that have the same ids."""
    counts = Counter(captions)
    total, (cut, groups) = sum(counts.values()), cut_and_equal_texts(list(counts), tokenizer)
    if longer := sum(counts[text] for text in cut):
        yield f"{longer:,} of {total:,} captions are longer than {tokenizer.max_length} tokens and are cut."
    if groups:
        same = sum(counts[text] for group in groups for text in group)
        first, second = (repr(text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}") for text in groups[0][:2])
        yield (
            f"{same:,} of {total:,} captions have the ids of another text, as {first} and {second}. The text tower "
            "cannot tell them apart, so each counts as a wrong one of the other, in training and in recall."
        )


def caption_batches(dataset: Any, tokenizer: Tokenizer) -> Any:
    """Batches of `load_dataset` for a `ContrastiveModel`, with the same attributes.

    They are `{"images": (B, H, W, C), "ids": (B, T), "captions": (B, 2)}`, where the last is a digest of the text as
    int32: different texts may have the same ids. Captions become ids batch by batch, in a thread of the pipeline, so
    those of all pairs need no memory.
    """
    import tensorflow as tf

    def ids(captions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        texts = captions[:, 0].tolist()
        digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        return tokenizer([text.decode() for text in texts]), np.frombuffer(digests, "<i4").reshape(-1, 2)

    def pairs(images: Tensor, captions: Tensor) -> dict[str, Tensor]:
        found = tf.numpy_function(ids, [captions], (tf.int32, tf.int32), stateful=False)
        widths = {"ids": tokenizer.max_length, "captions": 2}
        shaped = (tf.ensure_shape(each, (captions.shape[0], n)) for each, n in zip(found, widths.values(), strict=True))
        return {"images": images, **dict(zip(widths, shaped, strict=True))}

    found = dataset.map(pairs).prefetch(2)
    for name in ("class_names", "num_examples", "preprocessing", "start_step"):
        setattr(found, name, getattr(dataset, name))
    return found
