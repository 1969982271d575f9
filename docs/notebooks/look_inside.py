"""
Title: Look inside a Vision Transformer
Author: The keras_vit authors
Date created: 2026/11/23
Last modified: 2026/11/23
Description: Attention, rollout, relevance, features and positions of a model, as arrays and pictures.
Accelerator: None
"""

"""
## A model to look into

A small model learns scikit-learn's handwritten digits.
Everything below works in the same way for `keras_vit.ViTB16(weights="augreg-imagenet21k")`.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import io

import keras
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import plots

keras.utils.set_random_seed(0)
digits, labels = load_digits(return_X_y=True)
digits = keras.ops.image.resize(np.float32(digits.reshape(-1, 8, 8, 1) * (255 / 16)), (32, 32))
digits = np.clip(keras.ops.convert_to_numpy(digits), 0, 255)
train, test, train_labels, test_labels = train_test_split(
    digits, labels, test_size=360, stratify=labels, random_state=0
)

config = keras_vit.ViTConfig(patch_size=4, hidden_size=64, num_layers=4, num_heads=4, mlp_dim=128)
model = keras_vit.build(config, classes=10, input_shape=(32, 32, 1))
epochs, batch_size = 20, 32
steps = epochs * -(-len(train) // batch_size)
model.compile(
    keras_vit.AdamW(keras_vit.WarmupCosine(3e-3, steps, steps // 10), weight_decay=0.03, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(model.preprocessing(train), train_labels, batch_size=batch_size, epochs=epochs, verbose=0)
_, accuracy = model.evaluate(model.preprocessing(test), test_labels, verbose=0)
print(f"test accuracy {accuracy:.3f}")


def show(figure):
    """A figure as a picture of moderate size."""
    file = io.BytesIO()
    figure.savefig(file, dpi=70)
    return Image.open(file)


"""
## Attention

`attention_maps` gives the weights of every block, image and head, as the forward pass computes them.
Each row sums to 1.
"""

photos = [np.uint8(image) for image in test[:6]]
images = model.preprocessing(test[:6])
maps = keras_vit.attention_maps(model, images)
print(maps.blocks.shape, "block, image, head, token, token")
print(float(abs(maps.blocks.sum(axis=-1) - 1).max()) < 1e-5)

"""
What the class token reads of the first image in the last block, by each head:
"""

heads = maps.over_patches(maps.blocks[-1, 0, :, 0])
show(plots.draw_maps(heads, [f"head {number}" for number in range(1, 5)], "attention of the class token", photos[0]))

"""
Rollout multiplies the attention of all blocks, with half of each block's input passed by.
"""

show(plots.draw_overlays(photos, maps.rollout()))

"""
## Relevance

Relevance weights attention by the gradient of a class, so it answers for that class.
Unless you name one, that is the class the model answers.
"""

show(plots.draw_overlays(photos, keras_vit.class_relevance(model, images)))

"""
## How far a head looks

The mean distance, in pixels, between a patch and what it reads.
"""

distances = maps.mean_distance()
print(distances.shape, "block, head")
show(plots.draw_attention_distance(distances))

"""
## Features

`features` gives the patch tokens of any blocks as a grid. The first three principal components of
the last block's tokens are drawn as colours.
"""

tokens = keras_vit.features(model, images, blocks=(1, 4))
print(tokens[1].shape, tokens[4].shape)
show(plots.draw_colours(photos, analysis.pca_to_rgb(tokens[4])))

"""
## Positions

The cosine similarity of each position to all others.
In this small model the positions at the left edge are alike, and little else shows.
The paper's models have rows and columns there (arXiv:2010.11929, figure 7).
"""

similarity = analysis.position_similarity(model)
print(similarity.shape)
show(plots.draw_position_similarity(similarity))

"""
## A page for everybody

`look` writes attention, similarity, colours, rollout and relevance as one page that opens from the file system.
Pictures of positions and of attention distance lie beside it: `keras-vit look run photo.jpg --out seen`.
"""
