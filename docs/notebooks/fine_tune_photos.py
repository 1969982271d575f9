"""
Title: Fine-tune on a folder of photos
Author: The keras_vit authors
Date created: 2026/11/23
Last modified: 2026/11/23
Description: From a checkpoint and a folder of image files to a classifier with its report.
Accelerator: None
"""

"""
## What this shows

A Vision Transformer learns new classes from few images better when it begins with trained weights.
Here the images are scikit-learn's handwritten digits, so that nothing is downloaded:

1. a small model learns the digits 0 to 4 and how they are turned, and is written as a checkpoint;
2. the digits 5 to 9 become image files, one folder for each class: 30 files to train on, the others to test;
3. one call fine-tunes the checkpoint on that folder.

With a network, steps 1 and 2 are your photos and `model="B/16", weights="augreg-imagenet21k"`.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

from pathlib import Path

import keras
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import keras_vit

keras.utils.set_random_seed(0)

"""
## A checkpoint

The digits have 8 x 8 pixels. They are drawn at 32 x 32, so that each has 16 patches of 8 pixels.
The four orientations of each of the five digits make 20 classes.
"""

digits, labels = load_digits(return_X_y=True)
digits = digits.reshape(-1, 8, 8, 1).repeat(3, axis=-1) * (255 / 16)
digits = np.uint8(keras.ops.clip(keras.ops.image.resize(digits, (32, 32)), 0, 255))
print(digits.shape, digits.dtype)

config = keras_vit.ViTConfig(patch_size=8, hidden_size=64, num_layers=4, num_heads=4, mlp_dim=128)
upstream = keras_vit.build(config, classes=20, input_shape=(32, 32, 3))

known = labels < 5
images = np.concatenate([np.rot90(digits[known], turns, axes=(1, 2)) for turns in range(4)])
answers = np.concatenate([labels[known] + 5 * turns for turns in range(4)])

epochs, batch_size = 20, 32
steps = epochs * -(-len(images) // batch_size)
upstream.compile(
    keras_vit.AdamW(keras_vit.WarmupCosine(3e-3, steps, steps // 10), weight_decay=0.03, global_clipnorm=1.0),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = upstream.fit(upstream.preprocessing(images), answers, batch_size=batch_size, epochs=epochs, verbose=0)
print(f"accuracy in training: {history.history['accuracy'][-1]:.2f}")
print(keras_vit.save_checkpoint(upstream, "pretrained.npz"))

"""
## A folder of image files

Folders `train` and `test`, each with one folder for each class, are all that a data set needs.
"""

names = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
for label, name in names.items():
    places = np.flatnonzero(labels == label)
    for split, chosen in (("train", places[:30]), ("test", places[30:])):
        folder = Path("photos") / split / name
        folder.mkdir(parents=True)
        for place in chosen:
            Image.fromarray(digits[place]).save(folder / f"{place}.png")

source = keras_vit.open_source("photos")
print(source.class_names, source.sizes)

"""
## Fine-tuning

`finetune` checks the images, builds the model with a new head, and trains it by a recipe.
Here that is `"digits"`, for images as small as these; for photos leave it out.
The best epoch is chosen on a part of the training images, and measured on the test images.
"""

result = keras_vit.finetune(
    "photos",
    "run",
    model=config,
    weights="pretrained.npz",
    image_size=32,
    recipe="digits",
    batch_size=16,
    epochs=40,
    print_fn=lambda line: None,
)
print(f"test accuracy {result.test_accuracy:.3f} on {result.evaluation.count} images")
print(*sorted(path.name for path in result.out.iterdir()), sep="\n")

"""
`run/report.html` has all figures, `run/README.md` is a model card, and `run/best.keras` is the model.
This is the picture of the answers:
"""

Image.open("run/confusion_matrix.png")

"""
## What the checkpoint is worth

The same call without `weights` begins with random ones. Each figure is of one run with one seed.
"""

scratch = keras_vit.finetune(
    "photos",
    "scratch",
    model=config,
    image_size=32,
    recipe="digits",
    batch_size=16,
    epochs=40,
    print_fn=lambda line: None,
)
print(f"with the checkpoint {result.test_accuracy:.3f}, without {scratch.test_accuracy:.3f}")

"""
## Use it

A saved model knows its preprocessing, and the run knows the names of its classes.
"""

model = keras.saving.load_model("run/best.keras")
photo = keras_vit.read_image(min(Path("photos/test/seven").iterdir()))
scores = keras.ops.softmax(model.predict(model.preprocessing(photo)[None], verbose=0))[0]
for name, score in zip(result.evaluation.class_names, scores, strict=True):
    print(f"{name:5} {score:.3f}")

"""
The same from a command line, for photos and published weights:
"""

"""shell
keras-vit finetune --data photos --model B/16 --weights augreg-imagenet21k --out run
keras-vit predict photo.jpg --model run
"""
