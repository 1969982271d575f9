"""The paper's main job in small: pre-train, write a checkpoint, fine-tune it at twice the resolution.

A small ViT learns scikit-learn's handwritten digits 0-4 at 16 pixels, each in four orientations, which are
20 classes: more classes make features that serve another task better. Its official-format file then
becomes a new model at 32 pixels with a new head, which learns the digits 5-9 from 60 images of each, with
the fine-tuning settings of arXiv:2010.11929 (section 4.1, table 4) scaled down: SGD with momentum 0.9, a
smaller batch than in pre-training, cosine decay, no weight decay, gradients clipped at norm 1, a
zero-initialised head. It is tested on the other 596 images. The same model without the file is trained for
comparison. A terminal shows a table of what came out; in a pipe or a file one line of JSON follows it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
errors = os.dup(2)  # the error stream, on which TensorFlow begins with lines about the processor
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try:
    import keras

    import keras_vit

    keras.ops.zeros(1)
finally:
    os.dup2(errors, 2)

CONFIG = keras_vit.ViTConfig(patch_size=4, hidden_size=96, num_layers=4, num_heads=4, mlp_dim=192)
PRETRAIN_SIZE, FINETUNE_SIZE = 16, 32  # pixels of a side
PRETRAIN_BATCH, FINETUNE_BATCH = 32, 16
PREDICT = "import sys, keras, keras_vit, numpy as np; np.save(sys.argv[3], keras.saving.load_model(sys.argv[1])\
.predict(np.load(sys.argv[2]), verbose=0))"


def digits_as_images(size):
    """The 1,797 digits, 8x8 with 17 grey levels, as `(B, size, size, 1)` pixels in [0, 255] and labels."""
    images, labels = load_digits(return_X_y=True)
    images = np.asarray(images, "float32").reshape(-1, 8, 8, 1) * (255 / 16)
    images = keras.ops.image.resize(images, (size, size), interpolation="bilinear")
    return np.clip(keras.ops.convert_to_numpy(images), 0, 255), labels


class Progress(keras.callbacks.Callback):
    """One line on each training, with the time that all of them still take: elsewhere than on a terminal one an epoch.

    Args:
        pixels: that all trainings see together, with which their time goes.
    """

    def __init__(self, pixels):
        super().__init__()
        self.pixels, self.done, self.first_step = pixels, 0, None

    def begin(self, title, pixels_of_a_step):
        """Names the training that comes next."""
        self.title, self.pixels_of_a_step, self.began = title, pixels_of_a_step, time.monotonic()

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = f"epoch {epoch + 1}/{self.params['epochs']}"

    def on_train_batch_end(self, batch, logs=None):
        self.first_step = self.first_step or time.monotonic()  # which compiles, so the time left does not count it
        self.done += self.pixels_of_a_step
        if sys.stdout.isatty():
            self.show(logs, "\r", "")

    def on_epoch_end(self, epoch, logs=None):
        if not sys.stdout.isatty():
            self.show(logs, "", "\n")

    def on_train_end(self, logs=None):
        if sys.stdout.isatty():
            self.show(logs, "\r", "\n", f"took {minutes(time.monotonic() - self.began)}")

    def show(self, logs, before, after, time_of_it=None):
        left = (time.monotonic() - self.first_step) * max(self.pixels / self.done - 1, 0)
        words = time_of_it or f"about {minutes(left)} left in all"
        line = f"{self.title:14}{self.epoch}   training accuracy {logs['accuracy']:.4f}   {words}"
        print(f"{before}{line:78}" if before else line, end=after, flush=True)


def minutes(seconds):
    """Seconds as `1:05`."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02}"


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


def train(model, images, labels, optimizer, epochs, copies, batch_size, progress):
    """Softmax cross-entropy on logits through `model.fit`."""
    images, labels = variations(images, labels, copies)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    images = model.preprocessing(images)
    model.fit(images, labels, batch_size=batch_size, epochs=epochs, verbose=0, callbacks=[progress])


def pretrain(config, path, epochs, copies, progress):
    """Trains on the digits 0-4 at 16 pixels, turned, and writes the weights in the official layout."""
    model = keras_vit.build(config, input_shape=(PRETRAIN_SIZE, PRETRAIN_SIZE, 3), classes=20, dropout_rate=0.1)
    images, labels = digits_as_images(PRETRAIN_SIZE)
    images, labels = images[labels < 5], labels[labels < 5]
    images = np.concatenate([np.rot90(images, quarters, axes=(1, 2)) for quarters in range(4)])
    labels = np.concatenate([labels + 5 * quarters for quarters in range(4)])
    rate = cosine(1e-3, epochs, copies * len(images), PRETRAIN_BATCH)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=1.0)
    progress.begin("pre-training", PRETRAIN_BATCH * PRETRAIN_SIZE**2)
    train(model, images, labels, optimizer, epochs, copies, PRETRAIN_BATCH, progress)
    keras_vit.save_checkpoint(model, path)


def finetune(config, weights, base_rate, epochs, copies, images_per_class, progress):
    """Trains on few digits 5-9 at 32 pixels, from a file or from scratch; gives model, accuracy, test images."""
    shape = (FINETUNE_SIZE, FINETUNE_SIZE, 3)
    # Ten classes are not the file's 20, so the head is new and starts from zeros.
    model = keras_vit.build(config, weights=weights, input_shape=shape, classes=10, name="digits")
    images, labels = digits_as_images(FINETUNE_SIZE)
    images, labels = images[labels >= 5], labels[labels >= 5]
    split = train_test_split(images, labels, train_size=5 * images_per_class, stratify=labels, random_state=0)
    images, test_images, labels, test_labels = split
    rate = cosine(base_rate, epochs, copies * len(images), FINETUNE_BATCH)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=1.0)
    progress.begin("fine-tuning" if weights else "from scratch", FINETUNE_BATCH * FINETUNE_SIZE**2)
    train(model, images, labels, optimizer, epochs, copies, FINETUNE_BATCH, progress)
    test_images = model.preprocessing(test_images)
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    return model, accuracy, test_images


def predict_elsewhere(model, images, folder):
    """Saves the model, reloads it in a fresh process, and gives that process' predictions."""
    model.save(folder / "digits.keras")
    np.save(folder / "images.npy", images)
    arguments = [str(folder / name) for name in ("digits.keras", "images.npy", "predictions.npy")]
    done = subprocess.run([sys.executable, "-c", PREDICT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
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
    pretrained = (arguments.pretrain_epochs, arguments.pretrain_copies)
    settings = (arguments.base_rate, arguments.finetune_epochs, arguments.finetune_copies, arguments.images_per_class)
    progress = Progress(pixels_of_all(arguments))
    print("Pre-train a small Vision Transformer, fine-tune its checkpoint, save and reload\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        pretrain(config, folder / "pretrained.npz", *pretrained, progress)
        model, accuracy, images = finetune(config, folder / "pretrained.npz", *settings, progress)
        _, scratch_accuracy, _ = finetune(config, None, *settings, progress)
        print("reloading     in a fresh process", flush=True)
        difference = np.abs(predict_elsewhere(model, images, folder) - model.predict(images, verbose=0)).max()
    result = {
        "transfer_accuracy": round(accuracy, 4),
        "scratch_accuracy": round(scratch_accuracy, 4),
        "reload_difference": float(difference),
        "seconds": round(time.time() - start, 1),
    }
    print_table(result, model.load_report, len(images))
    if not sys.stdout.isatty():
        print(json.dumps(result))


def pixels_of_all(arguments):
    """That the three trainings see together."""
    _, labels = load_digits(return_X_y=True)
    pretrained = arguments.pretrain_epochs * arguments.pretrain_copies * 4 * np.sum(labels < 5)
    finetuned = arguments.finetune_epochs * arguments.finetune_copies * 5 * arguments.images_per_class
    return pretrained * PRETRAIN_SIZE**2 + 2 * finetuned * FINETUNE_SIZE**2


def print_table(result, load_report, test_images):
    """What came out, and what to do next."""
    difference = result["reload_difference"]
    rows = [
        ("accuracy", f"{result['transfer_accuracy']:.4f} on {test_images} test images of the digits 5-9"),
        ("from scratch", f"{result['scratch_accuracy']:.4f}, without the checkpoint"),
        ("checkpoint", "\n".ljust(16).join(load_report)),
        ("reloading", f"changes predictions by {difference:.1g}" if difference else "changes no prediction"),
        ("time", minutes(result["seconds"])),
    ]
    print("\nResults", *(f"  {name:13}{text}" for name, text in rows), sep="\n")
    print("\nNext\n  keras-vit finetune --data digits --out run")


if __name__ == "__main__":
    main()
