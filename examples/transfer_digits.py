"""The paper's main job in small: pre-train, write a checkpoint, fine-tune it at twice the resolution.

A small ViT learns scikit-learn's handwritten digits 0-4 at 16 pixels, each in four orientations, which are
20 classes: more classes make features that serve another task better. Its official-format file then
becomes a new model at 32 pixels with a new head, which learns the digits 5-9 from 60 images of each, with
the fine-tuning settings of arXiv:2010.11929 (section 4.1, table 4) scaled down: SGD with momentum 0.9, a
smaller batch than in pre-training, cosine decay, no weight decay, gradients clipped at norm 1, a
zero-initialised head. It is tested on the other 596 images. The same model without the file is trained for
comparison. The last line is one JSON object.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_vit

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_size=96, num_layers=4, num_heads=4, mlp_dim=192)
PRETRAIN_BATCH, FINETUNE_BATCH = 32, 16
PREDICT = "import sys, keras, keras_vit, numpy as np; np.save(sys.argv[3], keras.saving.load_model(sys.argv[1])\
.predict(np.load(sys.argv[2]), verbose=0))"


def digits_as_images(size):
    """The 1,797 digits, 8x8 with 17 grey levels, as `(B, size, size, 1)` pixels in [0, 255] and labels."""
    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images, "float32").reshape(-1, 8, 8, 1) * (255 / 16)
    images = keras.ops.image.resize(images, (size, size), interpolation="bilinear")
    return np.clip(keras.ops.convert_to_numpy(images), 0, 255), labels


def cosine(base_rate, epochs, num_images, batch_size):
    """Cosine decay to zero after a linear warm-up over a tenth of the steps, as in table 4."""
    steps = epochs * -(-num_images // batch_size)
    warmup_steps = max(steps // 10, 1)
    return keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup_steps, warmup_target=base_rate, warmup_steps=warmup_steps
    )


def variations(images, labels, copies):
    """Every image once as it is, and else shifted, turned and zoomed a little, in random order."""
    change = keras.Sequential(
        [
            keras.layers.RandomTranslation(0.08, 0.08, fill_mode="constant", fill_value=0.0),
            keras.layers.RandomRotation(0.03, fill_mode="constant", fill_value=0.0),
            keras.layers.RandomZoom(0.1, fill_mode="constant", fill_value=0.0),
        ]
    )
    changed = [keras.ops.convert_to_numpy(change(images, training=True)) for _ in range(copies - 1)]
    order = np.random.permutation(copies * len(images))
    return np.concatenate([images, *changed])[order], np.tile(labels, copies)[order]


def train(model, images, labels, optimizer, epochs, copies, batch_size):
    """Softmax cross-entropy on logits through `model.fit`."""
    images, labels = variations(images, labels, copies)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(model.preprocessing(images), labels, batch_size=batch_size, epochs=epochs)


def pretrain(config, path, epochs, copies):
    """Trains on the digits 0-4 at 16 pixels, turned, and writes the weights in the official layout."""
    model = keras_vit.build(config, input_shape=(16, 16, 3), classes=20, dropout_rate=0.1, name="pretrained")
    images, labels = digits_as_images(16)
    images, labels = images[labels < 5], labels[labels < 5]
    images = np.concatenate([np.rot90(images, quarters, axes=(1, 2)) for quarters in range(4)])
    labels = np.concatenate([labels + 5 * quarters for quarters in range(4)])
    rate = cosine(1e-3, epochs, copies * len(images), PRETRAIN_BATCH)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=1.0)
    train(model, images, labels, optimizer, epochs, copies, PRETRAIN_BATCH)
    keras_vit.save_checkpoint(model, path)


def finetune(config, weights, base_rate, epochs, copies, images_per_class):
    """Trains on few digits 5-9 at 32 pixels, from a file or from scratch; gives model, accuracy, test images."""
    # Ten classes are not the file's 20, so the head is new and starts from zeros.
    model = keras_vit.build(config, weights=weights, input_shape=(32, 32, 3), classes=10, name="digits")
    images, labels = digits_as_images(32)
    images, labels = images[labels >= 5], labels[labels >= 5]
    split = train_test_split(images, labels, train_size=5 * images_per_class, stratify=labels, random_state=0)
    images, test_images, labels, test_labels = split
    rate = cosine(base_rate, epochs, copies * len(images), FINETUNE_BATCH)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=1.0)
    train(model, images, labels, optimizer, epochs, copies, FINETUNE_BATCH)
    test_images = model.preprocessing(test_images)
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    return model, accuracy, test_images


def predict_elsewhere(model, images, folder):
    """Saves the model, reloads it in a fresh process, and gives that process' predictions."""
    model.save(folder / "digits.keras")
    np.save(folder / "images.npy", images)
    arguments = [str(folder / name) for name in ("digits.keras", "images.npy", "predictions.npy")]
    subprocess.run([sys.executable, "-c", PREDICT, *arguments], check=True)
    return np.load(folder / "predictions.npy")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrain-epochs", type=int, default=6)
    parser.add_argument("--pretrain-copies", type=int, default=2, help="of every image, all but one of them changed")
    parser.add_argument("--images-per-class", type=int, default=60, help="that the second task is learned from")
    parser.add_argument("--finetune-epochs", type=int, default=1)
    parser.add_argument("--finetune-copies", type=int, default=20)
    parser.add_argument("--base-rate", type=float, default=0.03)
    parser.add_argument("--layers", type=int, default=CONFIG.num_layers)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start, config = time.time(), CONFIG.replace(num_layers=arguments.layers)
    keras.utils.set_random_seed(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        print("Pre-training on the digits 0-4 at 16 pixels", flush=True)
        pretrain(config, folder / "pretrained.npz", arguments.pretrain_epochs, arguments.pretrain_copies)
        print("Fine-tuning on the digits 5-9 at 32 pixels", flush=True)
        settings = (arguments.base_rate, arguments.finetune_epochs, arguments.finetune_copies)
        settings += (arguments.images_per_class,)
        model, accuracy, images = finetune(config, folder / "pretrained.npz", *settings)
        print(*model.weights_report, sep="\n", flush=True)
        print("The same from scratch", flush=True)
        _, scratch_accuracy, _ = finetune(config, None, *settings)
        print("Saving, and predicting in a fresh process", flush=True)
        difference = np.abs(predict_elsewhere(model, images, folder) - model.predict(images, verbose=0)).max()
    result = {
        "transfer_accuracy": round(accuracy, 4),
        "scratch_accuracy": round(scratch_accuracy, 4),
        "reload_difference": float(difference),
        "seconds": round(time.time() - start, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
