"""One page for each family of published weights, written from the records of `keras_vit.weights.hub`.

`docs/conf.py` writes the pages into `docs/weights` at every build. A family is named here with its paper; everything in
a table is the record's.
"""

import dataclasses

from keras_vit.pages.cards import table
from keras_vit.weights.hub import RECORDS, WeightsRecord, builder_name

PREPARATION = ("resize", "crop_fraction", "interpolation", "antialias", "mean", "std", "rounding")


@dataclasses.dataclass(frozen=True)
class Family:
    """Weights that were trained by one paper, or copied by one library.

    Args:
        page: the name of its page.
        title: its heading.
        prefixes: what the names of its records begin with.
        intro: Markdown: what they are.
        example: name and variant of the record in the snippet, one of the smallest.
        papers: arXiv number and title of each.
    """

    page: str
    title: str
    prefixes: tuple[str, ...]
    intro: str
    example: tuple[str, str]
    papers: tuple[tuple[str, str], ...] = ()

    @property
    def records(self) -> list[WeightsRecord]:
        """Its records, in the order of the table."""
        return [record for record in RECORDS if family_of(record) is self]


FAMILIES = (
    Family(
        "augreg",
        "How to train your ViT",
        ("augreg-",),
        "Trained on ImageNet-21k, with augmentation and regularisation chosen for each model. These are the "
        "recommended weights; B/8's is named by big_vision, and the others by the official README. Any other file of "
        "that study is found by its file name.",
        ("augreg-imagenet21k+imagenet2012-224", "Ti/16"),
        (("2106.10270", "How to train your ViT? Data, Augmentation, and Regularization in Vision Transformers"),),
    ),
    Family(
        "paper",
        "The paper's weights",
        ("imagenet21k",),
        "Trained on ImageNet-21k, and some of them then fine-tuned on ImageNet.",
        ("imagenet21k+imagenet2012", "B/32"),
        (("2010.11929", "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"),),
    ),
    Family(
        "sharpness",
        "SAM and GSAM",
        ("sam", "gsam"),
        "Trained on ImageNet alone, from random weights, with sharpness-aware minimisation: `sam` by the first paper, "
        "`gsam` by the second.",
        ("gsam", "S/32"),
        (
            (
                "2106.01548",
                "When Vision Transformers Outperform ResNets without Pre-training or Strong Data Augmentations",
            ),
            ("2203.08065", "Surrogate Gap Minimization Improves Sharpness-Aware Training"),
        ),
    ),
    Family(
        "plain",
        "Plain baselines of big_vision",
        ("big_vision-imagenet2012",),
        "S/16 trained on ImageNet alone, in big_vision's layout.",
        ("big_vision-imagenet2012-90ep", "S/16"),
        (("2205.01580", "Better plain ViT baselines for ImageNet-1k"),),
    ),
    Family(
        "flexivit",
        "FlexiViT",
        ("flexivit-", "big_vision-imagenet21k"),
        "Trained with patches of many sizes. `big_vision-imagenet21k-300ep` is the plain B/16 that the paper compares "
        "with.",
        ("flexivit-imagenet2012", "S/16"),
        (("2212.08013", "FlexiViT: One Model for All Patch Sizes"),),
    ),
    Family(
        "deit",
        "DeiT",
        ("deit-",),
        "Trained on ImageNet alone, some of them with a distillation token.",
        ("deit-imagenet2012", "Ti/16"),
        (("2012.12877", "Training data-efficient image transformers & distillation through attention"),),
    ),
    Family(
        "deit3",
        "DeiT III",
        ("deit3-",),
        "Trained by the recipe of DeiT III, in big_vision's layout.",
        ("deit3-imagenet2012-224", "S/16"),
        (("2204.07118", "DeiT III: Revenge of the ViT"),),
    ),
    Family(
        "bit",
        "BiT, the ResNets",
        ("bit-",),
        "The ResNets that the Vision Transformer was compared with. The distilled ones and their teachers are of the "
        "second paper. timm measured the accuracies of `bit-imagenet21k+imagenet2012` at 448 pixels, and R152x4's at "
        "480.",
        ("bit-distilled-imagenet2012-160", "R50x1"),
        (
            ("1912.11370", "Big Transfer (BiT): General Visual Representation Learning"),
            ("2106.05237", "Knowledge distillation: A good teacher is patient and consistent"),
        ),
    ),
    Family(
        "timm_copies",
        "Copies of timm",
        ("hf:timm/",),
        "What timm has on the Hugging Face Hub, in its layout. Loading needs huggingface_hub, the extra `hub`.",
        ("hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "Ti/16"),
    ),
    Family(
        "transformers_copies",
        "Copies of transformers",
        ("hf:google/",),
        "What Google has on the Hugging Face Hub, in the layout of transformers. Loading needs huggingface_hub, the "
        "extra `hub`.",
        ("hf:google/vit-base-patch32-384", "B/32"),
    ),
)


def family_of(record: WeightsRecord) -> Family:
    """The family of a record.

    Raises:
        ValueError: if none or more than one has it.
    """
    found = [family for family in FAMILIES if record.name.startswith(family.prefixes)]
    if len(found) != 1:
        raise ValueError(
            "each record must belong to one family, or it has no page.\n"
            f"Received: {record.name}, with {[family.page for family in found]}. Give `FAMILIES` a prefix for it."
        )
    return found[0]


def pages() -> dict[str, str]:
    """`{name: Markdown}` of every family, and of the index."""
    written = {family.page: page_of(family) for family in FAMILIES}
    return {"index": _index()} | written


def snippet(family: Family) -> str:
    """Python that loads the family's example."""
    name, variant = family.example
    builder = f"keras_vit.{builder_name(variant)}"
    lines = [
        "import keras_vit",
        "",
        "# as it was trained",
        f'model = {builder}(weights="{name}")',
        "# with a new head of ten classes",
        f'mine = {builder}(weights="{name}", classes=10)',
        "print(model.preprocessing, mine.weights_report)",
    ]
    return "\n".join(lines)


def page_of(family: Family) -> str:
    """The page of one family, as Markdown."""
    records = family.records
    ways = _preparations(records)
    name, variant = family.example
    parts = [
        f"# {family.title}",
        family.intro,
        *(f"- [{title}](https://arxiv.org/abs/{number}), arXiv:{number}" for number, title in family.papers),
        f"```python\n{snippet(family)}\n```",
        f"```sh\nkeras-vit weights info {name} --model {builder_name(variant)}\n```",
        "## Models",
        "The accuracy is top-1 on ImageNet's validation set in percent, as its source reports it.",
        "{.one-line}\n" + table(FILE_COLUMNS, [_file_row(record, ways) for record in records]),
        "## How photos are prepared",
        "`model.preprocessing` does this. The number is that of the table above.",
        table(("number", *PREPARATION), [(str(index), *map(_shown, way)) for way, index in ways.items()]),
        "## Where the files are",
        "Sizes are in MB of a million bytes. A mirror has the file under the path of the fourth column.",
        "{.wide}\n" + table(PLACE_COLUMNS, [_place_row(record) for record in records]),
    ]
    return "\n\n".join(parts) + "\n"


# Above, `{.one-line}` and `{.wide}` are classes of the table, for docs/_static/tables.css.
FILE_COLUMNS = ("name", "model", "builder", "pixels", "classes", "head", "prepared", "top-1", "reported by", "licence")
PLACE_COLUMNS = ("name", "model", "address", "path", "MB", "known from", "differs from the model by", "note")


def _file_row(record, ways):
    return (
        f"`{record.name}`",
        record.variant,
        f"`{builder_name(record.variant)}`",
        str(record.resolution),
        str(record.classes),
        record.head,
        str(ways[_preparation(record)]),
        "" if record.accuracy is None else str(record.accuracy),
        record.accuracy_source,
        record.license,
    )


def _place_row(record):
    size = "" if record.bytes is None else f"{record.bytes / 1e6:.1f} ± {record.bytes_tolerance / 1e6:.1f}"
    fields = dict(record.fields) | ({"resize_method": record.resize_method} if record.resize_method else {})
    differs = ", ".join(f"`{key}={value!r}`" for key, value in fields.items())
    place = f"<{record.url}>", f"`{record.path}`"
    return f"`{record.name}`", record.variant, *place, size, record.bytes_source, differs, record.note


def _preparation(record):
    return tuple(getattr(record.preprocessing, field) for field in PREPARATION)


def _preparations(records):
    """`{preparation: its number}`, in the order of the records; the size of the image is not part of it."""
    return {way: index for index, way in enumerate(dict.fromkeys(map(_preparation, records)), 1)}


def _shown(value):
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _index():
    rows = []
    for family in FAMILIES:
        records = family.records
        models = dict.fromkeys(record.variant for record in records)
        rows.append((f"[{family.title}]({family.page}.md)", str(len(records)), ", ".join(models)))
    parts = [
        "# Published weights",
        f"All {len(RECORDS)} records of `keras_vit.list_weights()`, one page for each family. "
        "How they are loaded, adapted and kept is in [weights](../weights.md).",
        table(("family", "records", "models"), rows),
        "```{toctree}\n:hidden:\n" + "\n".join(family.page for family in FAMILIES) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"
