"""One page for each family of published weights, written from the records of `keras_vit.weights.registry`.

`docs/conf.py` writes the pages into `docs/weights` at every build. A family is named here with its papers; everything
in a table is the record's. As a command this writes the table of all families into docs/weights.md, between its marks:
`python docs/generators/weights_pages.py`. A test holds the page to it.
"""

import dataclasses
import re
from pathlib import Path

from keras_vit.config import variants as encoders
from keras_vit.config.vit import ViTConfig
from keras_vit.pages.formatting import table
from keras_vit.weights.registry import WeightsRecord, all_records, builder_name, find_weights

GUIDE = Path(__file__).parents[1] / "weights.md"
_MARKS = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- families end -->)", re.DOTALL)
PREPARATION = ("resize", "crop_fraction", "interpolation", "antialias", "mean", "std", "rounding")


@dataclasses.dataclass(frozen=True)
class Family:
    """Weights that were trained by one paper, or copied by one library.

    Args:
        page: the name of its page, which is that of the family.
        title: its heading.
        intro: Markdown: what they are.
        example: name and variant of the record in the snippet, one of the smallest.
        papers: arXiv number and title of each.
    """

    page: str
    title: str
    intro: str
    example: tuple[str, str]
    papers: tuple[tuple[str, str], ...] = ()

    @property
    def records(self) -> list[WeightsRecord]:
        """Its records, in the order of the table."""
        return [record for record in all_records() if record.family == self.page]


_OF_THE_PAPER = (
    Family(
        "augreg",
        "How to train your ViT",
        "Trained on ImageNet-21k, with augmentation and regularisation chosen for each model. These are the "
        "recommended weights; B/8's is named by big_vision, and the others by the official README. Any other file of "
        "that study is found by its file name.",
        ("augreg-imagenet21k+imagenet2012-224", "Ti/16"),
        (("2106.10270", "How to train your ViT? Data, Augmentation, and Regularization in Vision Transformers"),),
    ),
    Family(
        "paper",
        "The paper's weights",
        "Trained on ImageNet-21k, and some of them then fine-tuned on ImageNet.",
        ("imagenet21k+imagenet2012", "B/32"),
        (("2010.11929", "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale"),),
    ),
    Family(
        "sharpness",
        "SAM and GSAM",
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
        "S/16 trained on ImageNet alone, in big_vision's layout.",
        ("big_vision-imagenet2012-90ep", "S/16"),
        (("2205.01580", "Better plain ViT baselines for ImageNet-1k"),),
    ),
    Family(
        "flexivit",
        "FlexiViT",
        "Trained with patches of many sizes. `big_vision-imagenet21k-300ep` is the plain B/16 that the paper compares "
        "with.",
        ("flexivit-imagenet2012", "S/16"),
        (("2212.08013", "FlexiViT: One Model for All Patch Sizes"),),
    ),
    Family(
        "deit",
        "DeiT",
        "Trained on ImageNet alone, some of them with a distillation token.",
        ("deit-imagenet2012", "Ti/16"),
        (("2012.12877", "Training data-efficient image transformers & distillation through attention"),),
    ),
    Family(
        "bit",
        "BiT, the ResNets",
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
        "What timm has on the Hugging Face Hub, in its layout. Loading needs huggingface_hub, the extra `hub`.",
        ("hf:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "Ti/16"),
    ),
    Family(
        "transformers_copies",
        "Copies of transformers",
        "What Google has on the Hugging Face Hub, in the layout of transformers. Loading needs huggingface_hub, the "
        "extra `hub`.",
        ("hf:google/vit-base-patch32-384", "B/32"),
    ),
)


TITLES = {
    "2103.00020": "Learning Transferable Visual Models From Natural Language Supervision",
    "2104.14294": "Emerging Properties in Self-Supervised Vision Transformers",
    "2111.06377": "Masked Autoencoders Are Scalable Vision Learners",
    "2204.07118": "DeiT III: Revenge of the ViT",
    "2204.07141": "Masked Siamese Networks for Label-Efficient Learning",
    "2212.07143": "Reproducible scaling laws for contrastive language-image learning",
    "2301.08243": "Self-Supervised Learning from Images with a Joint-Embedding Predictive Architecture",
    "2303.15343": "Sigmoid Loss for Language Image Pre-Training",
    "2304.07193": "DINOv2: Learning Robust Visual Features without Supervision",
    "2304.14108": "DataComp: In search of the next generation of multimodal datasets",
    "2309.12314": "TinyCLIP: CLIP Distillation via Affinity Mimicking and Weight Inheritance",
    "2309.16588": "Vision Transformers Need Registers",
    "2309.16671": "Demystifying CLIP Data",
    "2309.17425": "Data Filtering Networks",
    "2312.14238": "InternVL: Scaling up Vision Foundation Models and Aligning for Generic Visual-Linguistic Tasks",
    "2407.07726": "PaliGemma: A versatile 3B VLM for transfer",
    "2502.14786": "SigLIP 2: Multilingual Vision-Language Encoders",
    "2106.08254": "BEiT: BERT Pre-Training of Image Transformers",
    "2208.06366": "BEiT v2: Masked Image Modeling with Vector-Quantized Visual Tokenizers",
    "2208.10442": "Image as a Foreign Language: BEiT Pretraining for All Vision and Vision-Language Tasks",
    "2211.07636": "EVA: Exploring the Limits of Masked Visual Representation Learning at Scale",
    "2303.11331": "EVA-02: A Visual Representation for Neon Genesis",
    "2303.15389": "EVA-CLIP: Improved Training Techniques for CLIP at Scale",
    "2407.17331": "Multi-label Cluster Discrimination for Visual Representation Learning",
    "2403.13298": "Rotary Position Embedding for Vision Transformer",
    "2410.16512": "TIPS: Text-Image Pretraining with Spatial Awareness",
    "2411.14402": "Multimodal Autoregressive Pre-training of Large Vision Encoders",
    "2412.07679": "RADIOv2.5: Improved Baselines for Agglomerative Vision Foundation Models",
    "2504.13181": "Perception Encoder: The best visual embeddings are not at the output of the network",
    "2508.10104": "DINOv3",
    "2507.14137": "Franca: Nested Matryoshka Clustering for Scalable Visual Representation Learning",
    "2507.22062": "Meta CLIP 2: A Worldwide Scaling Recipe",
}


_ABOUT = {  # family: what it is, in the table of all families
    "augreg": "the recommended classifiers, trained on ImageNet-21k",
    "paper": "the weights of the first paper",
    "sharpness": "trained on ImageNet alone with sharpness-aware minimisation",
    "plain": "trained on ImageNet alone for 90, 150 or 300 epochs",
    "flexivit": "one model for many patch sizes",
    "deit": "trained on ImageNet alone, also with a distillation token",
    "bit": "the ResNets that the first paper compares with",
    "timm_copies": "timm's files on the Hugging Face Hub",
    "transformers_copies": "Google's files on the Hub, for transformers",
    "clip": "image towers trained with texts; zero-shot classification",
    "mlcd": "image towers for language models, with rotary positions",
    "tinyclip": "small image towers, distilled from CLIP",
    "siglip": "image towers trained with texts by a sigmoid loss; zero-shot classification",
    "dino": "self-supervised features",
    "mae": "trained to restore hidden patches; made for fine-tuning",
    "ijepa": "self-supervised, predicts features of hidden parts",
    "dinov2": "self-supervised features of images and patches",
    "franca": "DINOv2's architecture, trained on public data",
    "deit3": "classifiers, trained on ImageNet or ImageNet-21k",
    "internvit": "the image tower of InternVL",
    "sbb": "classifiers of other widths and depths",
    "dinov3": "self-supervised features, strong for each patch",
    "eupe": "small encoders of DINOv3's architecture",
    "lingbot": "DINOv3's architecture, for 512 pixels",
    "sapiens2": "encoders for images of people, 1024 x 768 pixels",
    "rope_vit": "classifiers with rotary positions",
    "eva": "trained to predict CLIP's features of hidden patches",
    "eva02": "EVA's training with rotary positions",
    "eva_clip": "image towers trained with texts",
    "beit": "trained to predict hidden patches as tokens",
    "beitv2": "BEiT with better tokens",
    "beit3": "the image part of a model of images and texts",
    "aimv2": "trained to predict patches and texts one after the other",
    "pe_core": "image towers trained with texts; zero-shot classification",
    "pe_lang": "Perception Encoder for language models",
    "pe_spatial": "Perception Encoder for features of each patch",
    "tips": "trained with texts, for features of each patch",
    "uni2": "self-supervised features of tissue under the microscope",
    "virchow": "self-supervised features of tissue under the microscope",
    "h0_mini": "a small encoder of tissue, distilled from H-optimus-0",
    "pixio": "trained to restore hidden patches, with 8 class tokens",
    "radio": "distilled from several encoders",
}


def _encoder_family(name: str) -> Family | None:
    """The family of encoders with its smallest named model as example; `None` without records."""
    family = encoders.FAMILIES[name]
    records = [record for record in all_records() if record.family == name]
    if not records:
        return None
    named = [record for record in records if not record.name.startswith("hf:")] or records
    example = min(named, key=lambda record: (record.config.hidden_size * record.config.num_layers, record.resolution))
    switches, layouts = ", ".join(_switches(name)), dict.fromkeys(record.layout for record in records if record.layout)
    intro = f"What it is: {_ABOUT[name]}. Fields of `ViTConfig`: {switches or 'those of the plain Vision Transformer'}."
    intro += f" Layouts of the files: {', '.join(f'`{layout}`' for layout in layouts)}." if layouts else ""
    papers = tuple((number, TITLES.get(number, family.title)) for number in family.papers)
    return Family(name, family.title, intro, (example.name, example.variant), papers)


def _switches(name: str) -> list[str]:
    """In what a family of encoders differs from the paper's Vision Transformer, as `field=value`."""
    plain = ViTConfig(16, 768, 12, 12, 3072)
    fields = dict(encoders.FAMILIES[name].fields)
    for of_size in encoders.FAMILIES[name].of_size.values():
        fields |= of_size
    return [f"`{key}={value!r}`" for key, value in fields.items() if getattr(plain, key) != value]


FAMILIES = (*_OF_THE_PAPER, *filter(None, map(_encoder_family, encoders.FAMILIES)))


def pages() -> dict[str, str]:
    """`{name: Markdown}` of every family."""
    return {family.page: page_of(family) for family in FAMILIES}


def snippet(family: Family) -> str:
    """Python that loads the family's example."""
    name, variant = family.example
    builder = f"keras_vit.{builder_name(variant)}"
    top = "" if find_weights(name, variant).classes else ", include_top=False"
    lines = [
        "import keras_vit",
        "",
        "# as it was trained",
        f'model = {builder}(weights="{name}"{top})',
        "# with a new head of ten classes",
        f'mine = {builder}(weights="{name}", classes=10)',
        "print(model.preprocessing, mine.load_report)",
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
        "The accuracy is that on ImageNet's validation set in percent, as its source reports it: top-1 of a head "
        "unless it says otherwise. Parameters are in millions, as the software counts them that the file is for.",
        *_terms(records),
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
FILE_COLUMNS = ("name", "model", "builder", "pixels", "classes", "head", "prepared", "accuracy", "reported by")
FILE_COLUMNS += ("parameters", "licence")
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
        "" if record.accuracy is None else str(record.accuracy) + _measured(record),
        record.accuracy_source,
        "" if record.parameters is None else f"{record.parameters / 1e6:.1f}",
        record.license,
    )


def _measured(record):
    return "" if record.measure == "top-1" else f", {record.measure}"


def _terms(records):
    """A sentence on the licences that forbid something."""
    names = dict.fromkeys(record.license for record in records if record.terms)
    if names:
        yield (
            f"These weights are not free for every use: {', '.join(names)}. It is said before the first download, and "
            "`keras_vit.find_weights(...).terms` has it."
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


def families() -> str:
    """The table of all families, as Markdown."""
    return table(FAMILY_COLUMNS, [_family_row(family) for family in FAMILIES])


FAMILY_COLUMNS = ("family", "what it is", "sizes", "licence")


def _family_row(family):
    records = family.records
    sizes = ", ".join(dict.fromkeys(record.variant.removeprefix(f"{family.page}/") for record in records))
    licences = ", ".join(dict.fromkeys(name for record in records for name in record.license.split(", ")))
    return family.title, _ABOUT[family.page], sizes, licences


def linked(text: str) -> str:
    """The text of a guide, where each family that begins a row of a table leads to its page."""
    for family in FAMILIES:
        text = text.replace(f"\n| {family.title} |", f"\n| [{family.title}](weights/{family.page}.md) |")
    return text


def contents() -> str:
    """What puts the pages into the contents of the documentation."""
    return "```{toctree}\n:hidden:\n" + "\n".join(f"weights/{family.page}" for family in FAMILIES) + "\n```\n"


def rewrite(text: str) -> str:
    """The text of the guide with the table of today's families between its marks."""
    return _MARKS.sub(lambda _: f"\n{families()}\n\n", text)


if __name__ == "__main__":
    GUIDE.write_text(rewrite(GUIDE.read_text()))
