"""`look`: its folder and its page, which is used in a real browser as a person uses it."""

import base64
import io
import json
import re

import numpy as np
import pytest
from conftest import randomise, tiny_config

import keras_vit
from keras_vit import cli
from keras_vit.analysis.look import _sprite, _visible_part
from keras_vit.images.preprocessing import Preprocessing

Image = pytest.importorskip("PIL.Image")
WIDTHS = (1400, 360)
MODELS = {  # fields, size and channels of the images
    "rectangular": ({"num_layers": 5}, (20, 28, 3)),
    "digit": ({"num_layers": 2, "pooling": "gap"}, (20, 20, 1)),
    "hybrid": ({"patch_size": 1, "resnet_stages": (1, 1), "resnet_width_factor": 0.5}, (32, 48, 3)),
    "deit": ({"distilled": True}, (20, 20, 3)),
}
NAMES = ["<b>one</b>", "two & 3", *"cdefg"]


def model_of(kind):
    fields, shape = MODELS[kind]
    return randomise(keras_vit.build(tiny_config(**fields), input_shape=shape, classes=7))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """By kind: the model, the photo and the page."""
    folder, found = tmp_path_factory.mktemp("look"), {}
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype="uint8")
    photo = folder / "a <i> photo.png"
    Image.fromarray(pixels).save(photo)
    for kind in MODELS:
        model = model_of(kind)
        found[kind] = (
            model,
            photo,
            keras_vit.look(model, [photo], folder / kind, class_names=NAMES, top=7, theme="dark"),
        )
    return found


def opened(browser, page, width):
    """The page, ready to be used, and a list of whatever is wrong or asks for something elsewhere."""
    tab, wrong = browser.new_page(viewport={"width": width, "height": 900}), []
    tab.on("console", lambda message: wrong.append(message.text))
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda asked: asked.url.startswith(("data:", "file:")) or wrong.append(asked.url))
    tab.goto(page.as_uri())
    tab.wait_for_selector("body[data-ready=yes]")
    return tab, wrong


def brightest(tab, selector):
    """Place of the yellow pixel, the highest value, on a canvas."""
    address = tab.locator(selector).first.evaluate("canvas => canvas.toDataURL()")
    with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as picture:
        red, _, blue = np.moveaxis(np.asarray(picture.convert("RGB"), int), -1, 0)
    return int((red - blue).argmax())


@pytest.mark.parametrize(
    ("kind", "width"),
    [  # each kind once and each width twice; the product is nightly
        pytest.param(kind, width, marks=() if (row + column) % len(WIDTHS) == 0 else pytest.mark.nightly)
        for row, kind in enumerate(MODELS)
        for column, width in enumerate(WIDTHS)
    ],
)
def test_page_answers_for_the_patch_that_is_pointed_at(browser, seen, kind, width):
    model, photo, page = seen[kind]
    tab, wrong = opened(browser, page, width)
    pixels = keras_vit.read_image(photo, model.input_shape[-1])
    maps = keras_vit.attention_maps(model, np.asarray(model.preprocessing(pixels[None])))
    last, (h, w), prefix = len(maps.blocks), maps.grid, maps.num_prefix_tokens
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.locator("h2").text_content() == photo.name
    assert "<b>one</b>" in tab.locator("fieldset").text_content()
    assert tab.locator("canvas.head").count() == 3
    answer = maps.read_rows()[-1, 0, 0, prefix:]
    assert brightest(tab, ".head") == answer.argmax()

    stage = tab.locator(".stage")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    row, column = 1, w - 1
    tab.mouse.move(box["x"] + (column + 0.5) * box["width"] / w, box["y"] + (row + 0.5) * box["height"] / h)
    assert f"row {row + 1} and column {column + 1}" in tab.locator(".note").text_content()
    patch = row * w + column
    assert brightest(tab, ".head") == maps.blocks[-1, 0, 0, prefix + patch, prefix:].argmax()
    assert brightest(tab, ".similar") == patch

    tab.mouse.down()
    tab.mouse.up()
    tab.mouse.move(box["x"] + 2, box["y"] + 2)
    assert ", held" in tab.locator(".note").text_content()
    stage.press("ArrowLeft")
    assert f"row {row + 1} and column {column}, held" in tab.locator(".note").text_content()
    stage.press("Escape")
    assert "what the model's answer reads" in tab.locator(".note").text_content()
    assert "answer" in stage.get_attribute("aria-label")

    slider = tab.locator("input.block")
    slider.focus()
    slider.press("ArrowLeft")
    assert tab.locator("h3 .number").text_content() == str(last - 1)
    assert brightest(tab, ".head") == maps.read_rows()[-2, 0, 0, prefix:].argmax()
    assert f"block {last - 1}" in tab.locator(".head").first.get_attribute("aria-label")

    def drawn():
        return stage.evaluate("canvas => canvas.toDataURL()")

    before = drawn()
    tab.locator("fieldset input").nth(3).check()
    relevant = drawn()
    assert relevant != before
    tab.locator("input.strength").focus()
    tab.keyboard.press("Home")
    assert drawn() not in (before, relevant)  # the photo as it is
    assert wrong == []
    assert all(alt for alt in tab.eval_on_selector_all("img", "images => images.map(image => image.alt)"))
    tab.close()


def test_patches_of_a_block_that_the_page_has_not_say_so(browser, seen):
    page = seen["rectangular"][2]
    tab, wrong = opened(browser, page, 1400)
    facts = json.loads(re.search(r'id="photos">(.*?)</script>', page.read_text(), re.DOTALL)[1])[0]
    (missing,) = set(range(1, 6)) - set(facts["whole"])
    tab.locator("input.block").fill(str(missing))
    tab.locator(".stage").press("ArrowUp")
    assert f"of block {missing} the page has no more" in tab.locator(".note").text_content()
    assert wrong == []
    tab.close()


def test_sprites_hold_rows_by_their_own_largest_value():
    rows = np.random.default_rng(1).random((2, 3, 35)) * [[[1.0], [1e-3], [0.0]]]
    found = _sprite(rows)
    with Image.open(io.BytesIO(base64.b64decode(found["picture"].partition(",")[2]))) as picture:
        levels = np.asarray(picture)
    assert levels.shape == (6, 35)
    near = levels / 255 * np.array(found["peaks"])[:, None]
    np.testing.assert_allclose(near, rows.reshape(6, 35), atol=0.51 / 255, rtol=0.01)
    assert (levels.max(axis=1) == [255, 255, 0] * 2).all()


def test_folder_has_pictures_of_the_model_and_of_each_photo(seen):
    page = seen["rectangular"][2]
    assert {path.name for path in page.parent.iterdir()} == {
        "index.html",
        "attention_distance.png",
        "filters.png",
        "positions.png",
        *(f"01_a_i_photo_{kind}.png" for kind in ("relevance", "heads", "colours")),
    }
    assert not (seen["hybrid"][2].parent / "filters.png").exists()
    text = page.read_text()
    assert "<i>" not in text
    assert "<b>one" not in text
    assert "http" not in text


def test_command_writes_the_same_page(seen, tmp_path, capsys):
    model, photo, _ = seen["digit"]
    model.save(tmp_path / "m.keras")
    assert cli.main(["look", str(tmp_path / "m.keras"), str(photo), "--out", str(tmp_path / "out"), "--top", "7"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"open {tmp_path / 'out' / 'index.html'}"
    expected = keras_vit.look(model, [photo], tmp_path / "again", top=7)
    assert (tmp_path / "out" / "index.html").read_text() == expected.read_text()


def test_command_takes_a_checkpoint_and_says_which_weights_need_a_variant(seen, tmp_path, capsys):
    photo, out = str(seen["digit"][1]), str(tmp_path / "out")
    model = keras_vit.ViTTi16(classes=2, input_shape=(32, 48, 3))
    keras_vit.save_checkpoint(model, tmp_path / "ti.npz")
    assert cli.main(["look", str(tmp_path / "ti.npz"), photo, "--out", out]) == 0
    assert "12 blocks of 3 heads" in (tmp_path / "out" / "index.html").read_text()
    keras_vit.save_checkpoint(seen["digit"][0], tmp_path / "tiny.npz")
    assert cli.main(["look", str(tmp_path / "tiny.npz"), photo, "--out", str(tmp_path / "tiny")]) == 0
    assert "2 blocks of 3 heads" in (tmp_path / "tiny" / "index.html").read_text()
    assert cli.main(["look", "augreg-imagenet21k", photo, "--out", str(tmp_path / "other")]) == 1
    assert "Ti/16 --weights augreg-imagenet21k" in capsys.readouterr().err


def test_nothing_is_written_over_and_wrong_words_are_named(seen, tmp_path):
    model, photo, page = seen["rectangular"]
    free = keras_vit.build(tiny_config(), input_shape=(None, None, 3), classes=7)
    out = tmp_path / "out"
    for given, options, error, words in [
        ((model, [photo], page.parent), {}, ValueError, "`out`"),
        ((model, [photo], out), {"class_names": ["one"]}, ValueError, "7 outputs"),
        *(((model, [photo], out), {"blocks": b}, ValueError, "from 1 to 5") for b in ((0,), (6,), (True,), ())),
        ((model, [photo, tmp_path / "none.png"], out), {}, FileNotFoundError, "none.png"),
        ((free, [photo], out), {}, ValueError, "one image size"),
        ((model.layers[2], [photo], out), {}, TypeError, "VisionTransformer"),
        ((model, [], out), {}, ValueError, "`photos`"),
        ((model, str(photo), out), {}, ValueError, "`photos`"),
        ((model, [photo], out), {"theme": "sepia"}, ValueError, "`theme`"),
    ]:
        with pytest.raises(error, match=words):
            keras_vit.look(*given, **options)
    assert list(tmp_path.iterdir()) == []


def test_model_of_two_patches_and_one_output_is_looked_into(seen, tmp_path):
    model = randomise(keras_vit.build(tiny_config(pooling="gap"), input_shape=(4, 8, 3), classes=1))
    page = keras_vit.look(model, [seen["digit"][1]], tmp_path / "out", blocks=2)
    (score,) = re.findall(r"score ([\d.]+)", page.read_text())
    assert 0 < float(score) < 1


@pytest.mark.parametrize("task", ["segmentation", "depth"])
def test_segmenter_shows_the_classes_of_most_pixels_and_depths_show_none(seen, tmp_path, task):
    encoder = randomise(keras_vit.build(tiny_config(pooling="none"), input_shape=(20, 28, 3), include_top=False))
    build, more = {
        "segmentation": (keras_vit.segmenter, {"classes": 7}),
        "depth": (keras_vit.depth_estimator, {"depth_range": (0.1, 10)}),
    }[task]
    model = build(encoder, "linear", **more)
    model.head.trainable_weights[0].assign(
        np.random.default_rng(3).normal(0, 0.5, model.head.trainable_weights[0].shape)
    )
    photo = seen["rectangular"][1]
    page = keras_vit.look(
        model, [photo], tmp_path / "out", **({"class_names": NAMES} if task == "segmentation" else {})
    )
    found = re.findall(r"<b>share of pixels ([\d.]+)", page.read_text())
    if task == "depth":
        assert not found
        return
    prepared = model.preprocessing(keras_vit.read_image(photo)[None])
    best = np.asarray(model.predict(prepared, verbose=0)).argmax(axis=-1)
    shares = np.sort(np.bincount(best.ravel(), minlength=7) / best.size)[::-1]
    assert found == [f"{share:.3f}" for share in shares[:5] if share]


def test_registers_stand_apart_from_what_the_answer_reads(browser, tmp_path):
    model = randomise(keras_vit.build(tiny_config(registers=2), input_shape=(20, 28, 3), classes=7))
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 28, 3), dtype="uint8")).save(tmp_path / "photo.png")
    page = keras_vit.look(model, [tmp_path / "photo.png"], tmp_path / "seen")
    assert (page.parent / "01_photo_registers.png").exists()
    prepared = model.preprocessing(np.asarray(Image.open(tmp_path / "photo.png"))[None])
    last = keras_vit.attention_maps(model, np.asarray(prepared, "float32")).blocks[-1, 0].mean(axis=0)
    tab, wrong = opened(browser, page, 900)
    assert tab.locator(".register").count() == 2
    assert brightest(tab, ".register") == last[1, 3:].argmax()  # behind the class token and both registers
    tab.close()
    assert wrong == []
    assert "2 register tokens, which no answer reads" in page.read_text()


@pytest.mark.parametrize(
    ("record", "photo", "size", "part"),
    [
        ({"image_size": (16, 24)}, (80, 90), (80, 90), np.s_[:]),
        ({"image_size": (16, 16), "resize": "crop", "crop_fraction": 0.5}, (80, 120), (40, 40), np.s_[20:60, 40:80]),
        ({"image_size": (16, 24), "resize": "none"}, (16, 24), (16, 24), np.s_[:]),
        ({"image_size": (16, 24)}, (1000, 2000), (320, 640), None),
        ({"image_size": (16, 24)}, (4, 6), (16, 24), None),  # not fewer than the model gets
    ],
)
def test_photo_is_shown_with_its_own_pixels(record, photo, size, part):
    pixels = np.random.default_rng(3).integers(0, 256, (*photo, 3), "uint8")
    shown = _visible_part(Preprocessing(**record), pixels)
    assert (shown.dtype, shown.shape) == (np.uint8, (*size, 3))
    if part is not None:
        np.testing.assert_array_equal(shown, pixels[part])
