"""Learning from images without labels, then from few labels: masked patch prediction of arXiv:2010.11929, B.1.2.

    python examples/masked_patches.py [--seed 0] [--target mean_color] [--epochs 60]

A small ViT is pre-trained on 1,257 of scikit-learn's handwritten digits at 16 pixels, without their labels: half of the
patches are hidden, and it predicts their colours. Its checkpoint then starts a classifier, which is fine-tuned on few
labels. The same classifier from random initialisation is trained for comparison, on the same labels and with as many
steps. Each start takes the learning rate at which it does best on 180 validation digits. The subsets of labels are
nested. All are tested on 360 other digits. The last line is one JSON object.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit
from keras_vit.training.masked_patches import TARGETS

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_size=64, num_layers=4, num_heads=4, mlp_dim=128, pooling="gap")
SHAPE = (16, 16, 1)
PRETRAIN_BATCH, FINETUNE_BATCH = 64, 25
PRETRAIN_RATE = 2e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, default="mean_color")
    parser.add_argument("--epochs", type=int, default=60, help="of the pre-training")
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 200], help="images of each fine-tuning")
    parser.add_argument("--steps", type=int, default=160, help="of each fine-tuning")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3], help="that a fine-tuning tries")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    source = digits()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "pretrained.npz"
        found["pretraining"] = pretrain(source, arguments, weights)
        print("pre-training", found["pretraining"], flush=True)
        for labels in arguments.labels:
            found[labels] = {}
            for start, file in (("pretrained", weights), ("scratch", None)):
                found[labels][start] = best(source, labels, file, arguments)
            print(labels, "labels", found[labels], flush=True)
    print(json.dumps(found | {"seconds": round(time.monotonic() - began, 1)}))


def digits():
    """1,257 digits to train, 180 to choose by and 360 to test, 16 x 16 pixels in [0, 255]."""
    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images, "float32").reshape(-1, 8, 8, 1) * (255 / 16)
    images = np.clip(keras.ops.convert_to_numpy(keras.ops.image.resize(images, SHAPE[:2])), 0, 255)
    parts = {}
    for name, count in (("test", 360), ("validation", 180)):
        split = train_test_split(images, labels, test_size=count, stratify=labels, random_state=0)
        images, parts[name], labels = split[0], (split[1], split[3]), split[2]
    return keras_vit.open_source({"train": (images, labels), **parts})


def optimizer(rate, steps):
    """AdamW with a cosine decay after a linear warm-up over a tenth of the steps."""
    schedule = keras_vit.WarmupCosine(rate, steps, steps // 10)
    return keras_vit.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0)


def pretrain(source, arguments, path):
    """Writes a checkpoint; returns how well hidden patches of the test images are predicted, before and after."""
    keras.utils.set_random_seed(arguments.seed)
    model = keras_vit.build(CONFIG, input_shape=SHAPE, include_top=False)
    masked = keras_vit.MaskedPatchPrediction(model, arguments.target, seed=arguments.seed)
    images, test = (model.preprocessing(source.split(split).images) for split in ("train", "test"))
    steps = arguments.epochs * -(-len(images) // PRETRAIN_BATCH)
    masked.compile(optimizer(PRETRAIN_RATE, steps), jit_compile=False)
    before = masked.evaluate(test, verbose=0, return_dict=True)
    masked.fit(images, batch_size=PRETRAIN_BATCH, epochs=arguments.epochs, verbose=0)
    after = masked.evaluate(test, verbose=0, return_dict=True)
    keras_vit.save_checkpoint(model, path)
    return {name: [round(before[name], 4), round(after[name], 4)] for name in after}


def best(source, labels, weights, arguments):
    """Test accuracy at the rate with the best validation accuracy."""
    accuracies = [finetuned(source, labels, weights, rate, arguments) for rate in arguments.rates]
    return max(accuracies, key=lambda pair: pair[0])[1]


def finetuned(source, labels, weights, rate, arguments):
    """Accuracy on the validation and the test images."""
    keras.utils.set_random_seed(arguments.seed)
    model = keras_vit.build(CONFIG, weights=weights, input_shape=SHAPE, classes=10)
    few = source.subset(labels, seed=arguments.seed).split("train")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(rate, arguments.steps), loss, jit_compile=False)
    epochs = arguments.steps // -(-labels // FINETUNE_BATCH)
    model.fit(model.preprocessing(few.images), few.labels, batch_size=FINETUNE_BATCH, epochs=epochs, verbose=0)
    return [round(keras_vit.evaluate(model, source, split).accuracy, 4) for split in ("validation", "test")]


if __name__ == "__main__":
    main()
