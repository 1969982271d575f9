"""Words to ids: cleaning, vocabularies and prompts. Nothing here imports Keras."""

import numpy as np


class TextEmbeddings(np.ndarray):
    """Rows `(B, E)` that a text tower gave. They are an array like every other, but one that is known to be of texts.

    So `nearest_neighbors` can refuse vectors of photos that have the same width by chance, as features of PE L/14.
    """
