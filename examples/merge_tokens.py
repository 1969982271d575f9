"""How accurate a trained model stays as its tokens are merged, and how much less it computes.

    keras-vit finetune --data digits --out digits
    python examples/merge_tokens.py digits/model.keras --data digits [--per-block 1 2 4 8]

For each number of merged pairs a block: the share of the FLOPs, accuracy on the test images, how often the answer is
that of the model without merging, and the largest difference of logits in deviations of these.
"""

import argparse

import keras
import numpy as np

import keras_vit


def main():
    arguments = parse()
    original = keras.saving.load_model(arguments.model)
    source = keras_vit.open_source(arguments.data)
    test = keras_vit.load_dataset(source, "test", batch_size=32, preprocessing=original.preprocessing)
    labels = np.concatenate([labels.numpy() for _, labels in test])
    plain = original.predict(test, verbose=0)
    print(f"{'per block':>9}{'FLOPs':>8}{'accuracy':>10}{'agreement':>11}{'difference':>12}")
    for per_block in (0, *arguments.per_block):
        model = keras_vit.merge_tokens(original, per_block)
        logits = model.predict(test, verbose=0)
        share = keras_vit.flops(model).total / keras_vit.flops(original).total
        accuracy = (logits.argmax(1) == labels).mean()
        agreement = (logits.argmax(1) == plain.argmax(1)).mean()
        difference = np.abs(logits - plain).max() / plain.std()
        print(f"{per_block:9}{share:8.2f}{accuracy:10.3f}{agreement:11.3f}{difference:12.2g}")
    print(f"{len(labels)} test images")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a .keras file, as a run has")
    parser.add_argument("--data", default="digits", help="what it is measured on, with the split of seed 0")
    parser.add_argument("--per-block", type=int, nargs="+", default=[1, 2, 4, 8])
    return parser.parse_args()


if __name__ == "__main__":
    main()
