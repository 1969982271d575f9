"""What a run says of its data before it trains."""

from collections.abc import Iterator

from keras_vit.data.source import Source
from keras_vit.images.photo_checks import kinds_in_words
from keras_vit.pages.escaping import printable

_PHOTOS = "photos"  # with which the kinds of ignored files begin that its owner may miss


def data_lines(source: Source) -> Iterator[str]:
    """Its name and size, and how many files of each kind do not count."""
    sizes = ", ".join(f"{split} {size:,}" for split, size in source.sizes.items())
    yield f"data {printable(source.name)}: {len(source.class_names)} classes; {sizes} images"
    if source.bad_images:  # `open_source` has warned of them with examples
        yield f"  {len(source.bad_images):,} files left out: {kinds_in_words(source.bad_images)}"
    ignored = source.facts.get("ignored_kinds")
    kinds = ignored.items() if isinstance(ignored, dict) else ()
    photos = [f"{count:,} {printable(kind)}" for kind, count in kinds if kind.startswith(_PHOTOS)]
    if photos:
        yield f"  ignored: {', '.join(photos)}"
