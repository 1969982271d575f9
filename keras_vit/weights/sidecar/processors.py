"""What the image processors of transformers and timm can do of a `Preprocessing` record, and what they do otherwise.

Figures are grey levels of 255 between theirs and ours, measured at 224 x 224 on parts of scikit-learn's two photos:
landscape, portrait and square, of 120 x 180 to 854 x 1280 pixels. Both processors resize by Pillow's filters.
"""

DIFFERENCES_FILE = "PREPROCESSING.md"


def nearest_filter(record) -> str:
    """The filter that comes nearest among those that Pillow and torchvision have, which are the processors' two ways.

    In the mean: for bilinear without antialias bicubic 3.2, bilinear 3.4 and nearest 3.7; but bilinear is exact where a
    photo grows, and bicubic is off by 25 there. For bicubic without antialias likewise. For areas bilinear 3.8, bicubic
    3.9. Hamming's window, with 2.7 for the first, is unknown to torchvision.
    """
    return "bilinear" if record.interpolation == "area" else record.interpolation


def differences(dialect: str, record, image_size) -> tuple[str, ...]:
    """A line for each thing that a folder's processor does otherwise than the record; none where both agree within 2.

    Args:
        dialect: `"timm"` or `"huggingface"`.
        record: a `Preprocessing`.
        image_size: `(H, W)` of the model.
    """
    if record.resize == "none" or record.image_size is None:
        resizes = dialect == "timm" or record.resize != "none"
        return (f"It resizes to {image_size}, this model takes images as they are.",) if resizes else ()
    crop = record.resize == "crop"
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
    if crop and record.rounding != {"timm": "timm", "huggingface": "transformers"}[dialect]:
        lines.append(
            f"It rounds lengths by its own rules, this model by those of {record.rounding}: photos of some sizes are "
            "shifted by a pixel, which is 6 to 11 grey levels in the mean, up to 179. On others they agree."
        )
    if crop and dialect == "huggingface" and image_size[0] != image_size[1]:
        lines.append(
            "It knows one size for the shorter side of a photo, whatever its aspect. Where a rectangle needs less, it "
            "cuts out a smaller part: 11 to 31 grey levels in the mean, up to 249. On square photos they agree."
        )
    return tuple(lines)


def differences_text(software: str, lines) -> str:
    """The file for those who open the folder."""
    return (
        f"# Preprocessing\n\nThe image processor of {software} cannot do all that these weights were given by "
        "`keras_vit`. Where photos must be prepared exactly so, prepare them with `model.preprocessing`.\n\n"
        + "".join(f"- {line}\n" for line in lines)
    )
