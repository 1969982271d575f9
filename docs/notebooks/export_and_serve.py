"""
Title: Export and serve
Author: The keras_vit authors
Date created: 2026/11/23
Last modified: 2026/11/23
Description: A model becomes files that TensorFlow and ONNX Runtime open without Keras.
Accelerator: None
"""

"""
## A model to serve

A small model learns to tell crops of scikit-learn's two photos: a pagoda and a flower.
The crops that it is tested on are drawn from the same two photos, so some overlap with those it has seen.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import io
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import onnxruntime
from PIL import Image
from sklearn.datasets import load_sample_images

import keras_vit

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
names = ["pagoda", "flower"]


def crops(count):
    """Crops of 48 x 64 pixels, drawn anywhere, and which photo each is of."""
    labels = rng.integers(0, 2, count)
    corners = rng.integers(0, (427 - 48, 640 - 64), (count, 2))
    photos = load_sample_images().images
    places = zip(labels, corners, strict=True)
    return np.stack([photos[label][y : y + 48, x : x + 64] for label, (y, x) in places]), labels


images, labels = crops(600)
config = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)
model = keras_vit.build(config, classes=2, input_shape=(48, 64, 3))
model.compile(keras_vit.AdamW(1e-3, weight_decay=0.03), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(model.preprocessing(images), labels, batch_size=32, epochs=8, verbose=0)
test_images, test_labels = crops(200)
answers = model.predict(model.preprocessing(test_images), verbose=0).argmax(axis=-1)
print(f"accuracy on other crops {np.mean(answers == test_labels):.3f}")

"""
## A SavedModel for TensorFlow Serving

`export` opens the file with the runtime that will serve it, and compares its numbers with the model's on real photos.
Only then does the file get its name.
"""

report = keras_vit.export(model, "served", labels=names)
print(report.path, f"top-1 agreement {report.top1_agreement}", report.max_difference < 1e-5)

"""
The default signature takes JPEG or PNG files as bytes. It needs TensorFlow alone, as this process shows:
"""

buffer = io.BytesIO()
Image.fromarray(test_images[0]).save(buffer, "JPEG", quality=95)
Path("photo.jpg").write_bytes(buffer.getvalue())

lines = [
    "import tensorflow as tf",
    'served = tf.saved_model.load("served/1")',
    'photo = tf.constant([open("photo.jpg", "rb").read()])',
    'found = served.signatures["serving_default"](photo)',
    'print(found["labels"][0, 0].numpy().decode(), found["status"][0].numpy().decode())',
]
said = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
print(said.strip(), "- and it is the", names[test_labels[0]])

"""
To serve it, give the folder to TensorFlow Serving, or to the stand-in of `examples/` that answers the same calls:
"""

"""shell
docker run -p 8501:8501 -v "$PWD/served:/models/mine" -e MODEL_NAME=mine tensorflow/serving
python examples/serve.py served
python examples/serve.py served --ask photo.jpg
"""

"""
## ONNX

The same call writes ONNX, LiteRT and OpenVINO. These take pixels, uint8, of the model's size.
"""

report = keras_vit.export(model, "mine.onnx", "onnx", labels=names)
print(report.path, f"top-1 agreement {report.top1_agreement}", report.max_difference < 1e-5)

session = onnxruntime.InferenceSession("mine.onnx", providers=["CPUExecutionProvider"])
(scores,) = session.run(["scores"], {"pixels": test_images})
expected = keras.ops.softmax(model.predict(model.preprocessing(test_images), verbose=0))
print(scores.shape, float(np.abs(scores - expected).max()) < 1e-5)

"""
In int8 this file has about half the size. Its answers were compared with the model's as well, on photos:
"""

report = keras_vit.export(model, "mine.int8.onnx", "onnx", precision="int8", labels=names)
sizes = [Path(name).stat().st_size for name in ("mine.onnx", "mine.int8.onnx")]
print(f"{sizes[1] / sizes[0]:.2f} of the size, top-1 agreement {report.top1_agreement}")
