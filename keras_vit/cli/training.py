"""`keras-vit finetune|evaluate|predict|recipes`; Keras is imported when one of the first three runs."""

import contextlib
import datetime
import json
import re
import sys
import warnings
from pathlib import Path

from keras_vit.cli.models import load_run, model_of, names_of, quiet_start
from keras_vit.cli.printing import columns, path, printable
from keras_vit.recipes import RECIPES, find_recipe
from keras_vit.variants import check_positive_int

FORMATS = ("WEBP", "BMP")  # beside JPEG and PNG


def add_commands(top, command):
    """Adds these commands to the parser; `command` makes one."""
    _add_finetune(command(top, "finetune", finetune, "train on a folder of photos, measure, and write a report"))
    _add_evaluate(command(top, "evaluate", evaluate, "measure a trained model on labelled images"))
    _add_predict(command(top, "predict", predict, "what is on images, by a trained or a published model"))
    new = command(top, "recipes", recipes, "the published hyper-parameters, or one set of them with its sources")
    new.add_argument("name", metavar="NAME", nargs="?")


def finetune(arguments):
    given = dict(vars(arguments))
    for name in ("command", "debug"):
        given.pop(name, None)
    out = given.pop("out") or _new_run(given["data"], given["model"])
    given["weights"] = {"none": None}.get(given["weights"], given["weights"])
    with quiet_start():
        from keras_vit.training.finetune import finetune
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # each epoch is seen as it ends, in a file too
    finetune(given.pop("data"), out, **given)
    yield from ()


def evaluate(arguments):
    check_positive_int("batch_size", arguments.batch_size)
    with quiet_start():
        from keras_vit.data import open_source
        from keras_vit.evaluation import evaluate
    model, names, run = load_run(arguments.run)
    seed = run.get("seed", 0) if arguments.seed is None else arguments.seed
    data = arguments.data or _data_of(run)
    source = open_source(data, seed=seed, on_bad_image=arguments.on_bad_image)
    result = evaluate(model, source, arguments.split, batch_size=arguments.batch_size, class_names=names, seed=seed)
    if arguments.json:
        yield json.dumps({"split": arguments.split, **result.summary()}, indent=2)
        return
    yield f"{arguments.split} accuracy {result.accuracy:.4f} on {result.count:,} images of {printable(source.name)}"
    if result.top5_accuracy is not None:
        yield f"top-5 accuracy {result.top5_accuracy:.4f}"
    yield f"loss {result.loss:.4f}  calibration error {result.calibration_error:.4f}"
    yield from columns([("class", "images", "recall", "precision"), *map(_class_row, result.classes)])


def predict(arguments):
    """Answers for every image that can be read before it fails, so that one bad file costs the others nothing."""
    check_positive_int("top", arguments.top)
    with quiet_start():
        import keras
    model, names = model_of(arguments)
    names = names_of(model, names)
    bad, found = [], []
    for image in arguments.images:
        try:
            pixels = read_image(image, model.input_shape[-1])
        except (OSError, ValueError) as error:
            bad.append(f"{image}: {error}")
            continue
        scores = keras.ops.convert_to_numpy(model(model.preprocessing(pixels[None]), training=False))[0]
        answer = {"image": str(image), "predictions": _best(_probabilities(model, scores), names, arguments.top)}
        found.append(answer)
        if not arguments.json:
            yield from _answer_lines(answer)
    if arguments.json:
        yield json.dumps(found, indent=2, ensure_ascii=False)
    if bad:
        raise ValueError(f"images that could not be read: {'; '.join(bad)}")


def recipes(arguments):
    yield str(find_recipe(arguments.name)) if arguments.name else repr(RECIPES)


def read_image(path, channels: int = 3):
    """Pixels of a file, upright; of a JPEG or PNG exactly those that training reads and a SavedModel serves.

    Args:
        path: of a JPEG, PNG, WebP or BMP.
        channels: 3 for RGB, 1 for grey.

    Returns:
        uint8 `(H, W, channels)`.

    Raises:
        ValueError: for a folder, another format, a damaged file, more than 64 Mpx, or other channels.
        FileNotFoundError: if nothing is there.
        ImportError: for a WebP or BMP without Pillow.
    """
    from keras_vit.data.check import BadImage, check_image
    from keras_vit.data.decode import JPEG_START, PNG_START, decode_image, grey

    if channels not in (1, 3):
        raise ValueError(f"the model takes {channels} channels, which no photo has")
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError("no such file") from None
    except IsADirectoryError:
        raise ValueError("a folder, not an image") from None
    if not data.startswith((JPEG_START, PNG_START)):
        pixels = _by_pillow(path)
        return pixels if channels == 3 else grey(pixels).numpy()
    found = check_image(path)
    if isinstance(found, BadImage):
        raise ValueError(found.reason)
    return decode_image(data, found.orientation, channels).numpy()


def _by_pillow(path):
    """uint8 `(H, W, 3)` of a format that only Pillow knows."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ImportError('WebP and BMP need Pillow, which is missing: pip install "keras-vit-zoo[data]"') from error
    import numpy as np

    from keras_vit.data.decode import MAX_PIXELS

    try:
        with open(path, "rb") as file, _no_warning_of_size(), Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, more than {MAX_PIXELS >> 20} Mpx")
            image.load()
            return np.asarray(ImageOps.exif_transpose(image).convert("RGBA").convert("RGB"))
    except UnidentifiedImageError:
        raise ValueError("not a JPEG, PNG, WebP or BMP image") from None
    except Image.DecompressionBombError:
        raise ValueError(f"more than {MAX_PIXELS >> 20} Mpx") from None
    except (OSError, SyntaxError) as error:
        raise ValueError(f"damaged or cut short ({error})") from None


@contextlib.contextmanager
def _no_warning_of_size():
    """Pillow warns from 89 Mpx on; we refuse from 64 on."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _data_of(run):
    data = run.get("arguments", {}).get("data")
    if data is None:
        raise ValueError("`--data` must say which images, since the model has no run that knows them.")
    return data


def _probabilities(model, scores):
    import numpy as np

    from keras_vit.evaluation import _ends_in_logits

    if not np.isfinite(scores).all():
        raise ValueError("the model's scores are not finite, so its weights are damaged.")
    if not _ends_in_logits(model):
        return scores
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _best(probabilities, names, top):
    order = (-probabilities).argsort(kind="stable")[:top]
    return [{"class": names[number], "probability": float(probabilities[number])} for number in order]


def _answer_lines(answer):
    yield printable(answer["image"])
    rows = [(f"  {item['probability']:7.2%}", printable(item["class"])) for item in answer["predictions"]]
    yield from columns(rows)


def _class_row(result):
    parts = ("none" if part is None else f"{part:.4f}" for part in (result.recall, result.precision))
    return printable(result.name), f"{result.count:,}", *parts


def _new_run(data, model):
    """A name below `runs/` that is not taken."""
    plain = "-".join(re.sub(r"\W+", "_", Path(str(name)).name or "data") for name in (data, model))
    stem = f"{plain}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 100))]
    return next(Path("runs", name) for name in names if not Path("runs", name).exists())


def _add_finetune(new):
    new.add_argument("--data", default="digits", help="a folder of class folders, a .csv, a name; digits by default")
    new.add_argument("--model", default="small", help="a builder as ViTB16, a variant as B/16, or small (default)")
    new.add_argument("--weights", default="default", metavar="NAME", help="published weights, a file, or none")
    new.add_argument("--out", metavar="RUN", type=path, help="new folder of the run; by default one below runs/")
    new.add_argument("--recipe", metavar="NAME", help="as in `keras-vit recipes`")
    new.add_argument("--batch-size", type=int, metavar="B", help="images of one optimizer step")
    new.add_argument("--steps", type=int, help="optimizer steps in all")
    new.add_argument("--epochs", type=int, help="the same as passes over the images")
    new.add_argument("--learning-rate", type=float, metavar="RATE")
    new.add_argument("--image-size", type=int, metavar="PIXELS", help="side of the images")
    new.add_argument("--augmentation", metavar="NAME", help="as inception or augreg-medium1")
    new.add_argument("--accumulate", dest="accumulation_steps", type=int, metavar="K", help="micro-batches of a batch")
    new.add_argument("--layer-decay", type=float, metavar="FACTOR", help="of the rate, from a layer to that below")
    new.add_argument("--ema", dest="ema_momentum", type=float, metavar="MOMENTUM", help="of an average of the weights")
    new.add_argument("--lora", dest="lora_rank", type=int, metavar="RANK", help="train low-rank factors only")
    new.add_argument("--trainable", default="all", help="all, head, or last_blocks:K")
    new.add_argument("--seed", type=int, default=0)
    new.add_argument(
        "--precision", dest="policy", default="float32", choices=("float32", "mixed_bfloat16", "mixed_float16")
    )
    new.add_argument("--on-bad-image", default="skip", choices=("skip", "raise"))
    new.add_argument("--strategy", default="none", choices=("none", "mirrored"), help="mirrored: all GPUs together")


def _add_evaluate(new):
    new.add_argument("run", metavar="RUN", type=path, help="folder of a run, or a .keras file")
    new.add_argument("--data", help="as for finetune; by default that of the run")
    new.add_argument("--split", default="test", help="train, validation, test, or several, as train+test")
    new.add_argument("--batch-size", type=int, default=32, metavar="B")
    new.add_argument("--seed", type=int, help="of the division into splits; by default that of the run")
    new.add_argument("--on-bad-image", default="skip", choices=("skip", "raise"))
    new.add_argument("--json", action="store_true", help="for programs")


def _add_predict(new):
    new.add_argument("images", metavar="IMAGE", nargs="+", type=path)
    new.add_argument("--model", required=True, metavar="RUN", help="folder of a run, a .keras file, or as B/16")
    new.add_argument("--weights", metavar="NAME", help="for a variant; by default ImageNet's 1,000 classes")
    new.add_argument("--top", type=int, default=5, help="classes to name")
    new.add_argument("--json", action="store_true", help="for programs")
