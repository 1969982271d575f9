"""What a model sees, as arrays: tokens, attention, relevance. The forward pass gets no slower by it."""

from keras_vit.analysis.attention_weights import (
    AttentionMaps,
    attention_maps,
    drop_smallest,
    mean_attention_distance,
    rollout,
)
from keras_vit.analysis.embeddings import (
    linear_cka,
    outlier_tokens,
    patch_filters,
    pca_to_rgb,
    position_similarity,
    principal_components,
    token_norms,
    token_similarity,
)
from keras_vit.analysis.features import Features, features, logit_lens
from keras_vit.analysis.overlay import overlay
from keras_vit.analysis.relevance import class_relevance

__all__ = [
    "features",
    "Features",
    "attention_maps",
    "AttentionMaps",
    "rollout",
    "drop_smallest",
    "mean_attention_distance",
    "class_relevance",
    "patch_filters",
    "position_similarity",
    "token_similarity",
    "pca_to_rgb",
    "principal_components",
    "token_norms",
    "outlier_tokens",
    "linear_cka",
    "logit_lens",
    "overlay",
]
