"""Words to ids: cleaning, vocabularies and prompts. Nothing here imports Keras."""

from typing import Any

import numpy as np


class TextEmbeddings(np.ndarray):
    """Rows `(B, E)` that a text tower gave. They are an array like every other, but one that is known to be of texts.

    So `nearest_neighbors` can refuse vectors of photos that have the same width by chance, as features of PE L/14.

    Attributes:
        before_projection: whether they are features before the projection of their tower, which no photo is near to.
    """

    before_projection: bool

    def __array_finalize__(self, rows: Any) -> None:
        self.before_projection = getattr(rows, "before_projection", False)
