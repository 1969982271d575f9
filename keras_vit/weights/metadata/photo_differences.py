"""What the image processors of timm and transformers do otherwise than a `Preprocessing` record.

Figures are differences in grey levels of 255, measured at 224 x 224 pixels. The photos are parts of scikit-learn's two:
landscape, portrait and square, of 120 x 180 to 854 x 1280 pixels. Both processors resize by Pillow's filters.
"""

from keras_vit.annotations import Pair
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import CUTS_CENTRE
from keras_vit.weights.families import FOLDERS, LAYOUTS

DIFFERENCES_FILE = "PREPROCESSING.md"


def differences(layout: str, record: Preprocessing, image_size: Pair | None) -> tuple[str, ...]:
    """A line for each step in which a folder's processor differs from the record by more than 2 grey levels.

    Args:
        layout: `"timm"` or `"huggingface"`.
        record: a `Preprocessing`.
        image_size: `(H, W)` of the model, or `None` if it takes any.
    """
    software, folder = LAYOUTS[layout].software, FOLDERS[layout]
    if record.resize == "none" or record.image_size is None:
        resizes = folder.always_resizes or record.resize != "none"
        return (f"It resizes to {image_size}, this model takes images as they are.",) if resizes else ()
    crop = record.resize in CUTS_CENTRE
    lines = []
    if record.interpolation == "area":
        lines.append(
            "It weights pixels by a triangle, this model averages areas: 4 grey levels in the mean, up to 124."
        )
    elif not record.antialias:
        lines.append(
            "It averages all pixels where a photo shrinks, this model does not (`antialias=False`): 3 to 5 grey levels "
            "in the mean, up to 136, on photos larger than the model takes. On others they agree."
        )
    if crop and record.rounding != software:
        lines.append(
            f"It rounds lengths by its own rules, this model by those of {record.rounding}: photos of some sizes are "
            "shifted by a pixel, which is 6 to 11 grey levels in the mean, up to 179. On others they agree."
        )
    if record.resize == "crop" and folder.has_single_side and image_size is not None and image_size[0] != image_size[1]:
        lines.append(
            "It knows one size for the shorter side of a photo, whatever its aspect. Where a rectangle needs less, it "
            "cuts out a smaller part: 11 to 31 grey levels in the mean, up to 249. On square photos they agree."
        )
    return tuple(lines)


def differences_text(software: str, lines: tuple[str, ...]) -> str:
    """The text of `DIFFERENCES_FILE`, for users of the folder."""
    return (
        f"# Preprocessing\n\nThe image processor of {software} cannot do all that these weights were given by "
        "`keras_vit`. Where photos must be prepared exactly so, prepare them with `model.preprocessing`.\n\n"
        + "".join(f"- {line}\n" for line in lines)
    )
