"""A page is valid HTML that needs nothing else, and runs nothing of a name that it shows."""

import base64
import html.parser
import io
import re

import numpy as np
import pytest

from keras_vit.pages.html import Panel, Section, figure_uri, picture_uri, png_uri, write_page

Image = pytest.importorskip("PIL.Image")
jinja2 = pytest.importorskip("jinja2")


class Reader(html.parser.HTMLParser):
    """Notes tags and text, and that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources, self.text = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def report_of(name):
    """Facts of a report with every part, in which all that comes from outside is `name`."""
    picture = picture_uri(np.zeros((3, 5), "uint8"))
    photo = {"picture": picture, "alt": name, "caption": [(name, True), (name, False)], "place": name}
    section = Section(name, name, (name, name), [(name, "0")], [photo, photo], picture, name, [name])
    return {
        "title": name,
        "subtitle": name,
        "panel": Panel(name, [(name, "0.3333")], [name], [section]),
        "curves": Section("Training", picture=picture, alt=name),
        "left_out": [(name, name)],
        "configuration": [name],
    }


def page_of(path, **facts):
    write_page(path / "page.html", "report", **facts)
    return (path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "shown"),
    [('<i>a</i><script>"1"</script> & $x$',) * 2, ("b\x1b[31mred\x85\n\udcff", r"b\x1b[31mred\x85\n\udcff")],
)
def test_page_is_well_formed_and_no_name_does_anything(tmp_path, name, shown):
    page = page_of(tmp_path, **report_of(name))
    reader = Reader(page)
    assert "script" not in reader.tags
    assert all(each.isprintable() or each == "\n" for each in page)  # so that it steers no terminal
    assert reader.text.count(shown) == 21  # each place that shows a name, but for the words of pictures
    assert len(reader.sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in reader.sources)
    assert not re.search(r"https?://|url\(|@import", page)


def test_sections_without_facts_are_left_out(tmp_path):
    facts = report_of("a") | {"left_out": []}
    assert re.findall("<h2>(.*?)</h2>", page_of(tmp_path, **facts)) == ["a", "Training", "Configuration"]
    needed = {name: facts[name] for name in ("title", "subtitle", "panel")}
    assert re.findall("<h2>(.*?)</h2>", page_of(tmp_path, **needed)) == ["a"]


@pytest.mark.parametrize("name", ["title", "panel"])
def test_page_is_there_whole_or_not_at_all(tmp_path, name):
    """A fact that is missing is an error, not a gap, and what was there stays."""
    page_of(tmp_path, **report_of("before"))
    before = (tmp_path / "page.html").read_bytes()
    with pytest.raises(jinja2.UndefinedError, match=name):
        page_of(tmp_path, **{key: value for key, value in report_of("after").items() if key != name})
    assert (tmp_path / "page.html").read_bytes() == before


def opened(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize(
    ("shape", "mode"), [((30, 41), "L"), ((30, 41, 1), "L"), ((30, 41, 3), "RGB"), ((30, 41, 5), "RGB")]
)
def test_picture_holds_its_pixels_and_a_small_one_its_aspect(shape, mode):
    pixels = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    picture = opened(picture_uri(pixels))
    assert (picture.mode, picture.size) == (mode, (41, 30))
    np.testing.assert_array_equal(np.asarray(picture), pixels.reshape(30, 41, -1)[..., :3].squeeze())
    assert opened(picture_uri(pixels, 20)).size == (20, 15)


def test_figure_is_a_picture():
    figure = pytest.importorskip("matplotlib.figure").Figure((2, 1), dpi=50)
    assert opened(figure_uri(figure)).size == (100, 50)
    assert png_uri(b"abc") == "data:image/png;base64,YWJj"


def test_long_class_name_in_a_caption_keeps_its_last_letters_together(tmp_path):
    name, short = "a_very_long_name_of_a_class_0017", "a short name of 24 signs"
    facts = report_of("x")
    facts["panel"].sections[0].photos[0]["caption"] = [(name, True), (short, True)]
    page = page_of(tmp_path, **facts)
    assert f'<b>{name[:-8]}<span class="ending">{name[-8:]}</span></b><b>{short}</b>' in page
