"""What is pushed to the Hub loads from there with the same predictions; huggingface_hub speaks with a stand-in."""

import json
import shutil
import sys

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from hub_server import COMMIT, WEIGHTS, HubServer, turn_to
from huggingface_hub import ModelCard, ModelCardData, constants
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

import keras_vit
from keras_vit import cli, push_to_hub, save_checkpoint
from keras_vit.weights.download import OfflineError

# huggingface_hub 2.4 hands a file to httpx by the name of before, in `_upload_single_part`.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAMES = ["a", "b|<i>", "c", "d", "e", "f", "g"]


@pytest.fixture(scope="module")
def server():
    with HubServer() as server:
        yield server


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    """The server without a file, and huggingface_hub turned to it; hf_xet would speak with a store of its own."""
    turn_to(server, monkeypatch, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server.contents, server.commit, server.status, server.code = {}, COMMIT, 200, None
    for each in (server.repositories, server.store, server.messages, server.asked, server.log):
        each.clear()
    return server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of weights."""
    return save_checkpoint(make_tiny(), tmp_path_factory.mktemp("tiny") / "tiny", "timm").parent


def load(text):
    """The model that the first block of a card makes."""
    names: dict = {}
    exec(text.partition("```python\n")[2].partition("photo = ")[0], names)
    return names["model"]


def pushed_card(hub):
    return hub.contents["README.md"].decode()


# A run


def test_pushed_run_loads_by_the_code_of_its_card_with_the_same_predictions(hub, finished, capfd):
    name = push_to_hub(finished, "me/mine", license="apache-2.0")
    assert name == f"hf:me/mine@{hub.commit}"
    assert capfd.readouterr().err == ""  # no bar where there is no terminal
    again = load(pushed_card(hub))
    assert again.load_report == ()
    assert again.preprocessing == finished.model.preprocessing
    pixels = np.random.default_rng(3).integers(0, 256, (5, 31, 37, 3), "uint8")
    scores = [model.predict(model.preprocessing(pixels), verbose=0) for model in (finished.model, again)]
    np.testing.assert_array_equal(*scores)  # the same float32 weights in the same graph
    pinned = keras_vit.build("Ti/16", weights=name, **sizes_of(again.config))
    np.testing.assert_array_equal(numpy(pinned(again.preprocessing(pixels))), numpy(again(again.preprocessing(pixels))))


def sizes_of(config):
    names = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")
    return {name: getattr(config, name) for name in names}


def test_pushed_run_has_weights_class_names_and_card_alone(hub, finished):
    push_to_hub(finished.out, "me/mine")
    assert set(hub.contents) == {WEIGHTS, "config.json", "PREPROCESSING.md", "README.md"}
    assert json.loads(hub.contents["config.json"])["label_names"] == list(finished.evaluation.class_names)
    everything = b"".join(hub.contents.values())
    assert b"secret place" in hub.contents["README.md"]  # the name of the data set
    assert str(finished.out.parent).encode() not in everything  # and no path of this machine
    assert hub.messages == ["Weights and model card by keras_vit"]


def test_pushed_card_is_that_of_the_run_but_for_how_it_is_loaded(hub, finished, tmp_path):
    push_to_hub(finished, "me/mine", license="mit")
    (tmp_path / "README.md").write_bytes(hub.contents["README.md"])
    card, ours = ModelCard.load(tmp_path / "README.md"), ModelCard.load(finished.out / "README.md")
    assert card.data.to_dict() == ours.data.to_dict() | {"library_name": "timm", "license": "mit"}
    assert card.data.eval_results[0].metric_value == finished.test_accuracy
    assert 'timm.create_model("hf-hub:me/mine", pretrained=True)' in card.text
    assert "best.keras" not in card.text
    assert "These weights are under `mit`." in card.text
    assert "timm prepares photos otherwise, as `PREPROCESSING.md` says." in card.text
    assert card.text.count("\n## ") == ours.text.count("\n## ")
    assert "<!--" not in card.text


def test_pushed_card_is_one_that_the_librarys_own_classes_make_again(hub, finished):
    """`ModelCardData` refuses results without their model's name; `validate` asks the Hub, of which none is here."""
    push_to_hub(finished, "me/mine", license="mit")
    data = ModelCard(pushed_card(hub)).data
    again = ModelCardData(**vars(data))
    assert again.to_dict() == data.to_dict()
    results = eval_results_to_model_index(data.model_name, data.eval_results)
    name, found = model_index_to_eval_results(results)
    assert (name, len(found)) == (data.model_name, 3)
    assert [each.metric_value for each in found] == [each.metric_value for each in data.eval_results]
    assert ModelCard(f"---\n{again.to_yaml()}\n---\n").data.to_dict() == data.to_dict()


def test_what_its_user_wrote_into_the_card_is_pushed(hub, finished):
    card = finished.out / "README.md"
    before = card.read_text()
    card.write_text(before.replace("## Limits\n", "## Limits\n\n- Only by daylight.\n"))
    try:
        push_to_hub(finished, "me/mine")
    finally:
        card.write_text(before)
    assert "- Only by daylight." in pushed_card(hub)
    assert 'weights="hf:me/mine"' in pushed_card(hub)


def test_command_prints_the_name_that_loads_it(hub, finished, capsys):
    assert cli.main(["push", str(finished.out), "me/mine", "--license", "mit", "--private"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"loading {finished.out} ...", f"hf:me/mine@{hub.commit}"]
    assert (hub.repositories, ModelCard(pushed_card(hub)).data.license) == ({"me/mine": "private"}, "mit")
    assert cli.main(["push", str(finished.out), "me/mine", "--private"]) == 0  # private as it is
    capsys.readouterr()
    assert cli.main(["push", str(finished.out), "mine"]) == 1
    assert "owner/name" in capsys.readouterr().err


def test_private_weights_are_not_sent_to_a_public_repository(hub, finished):
    push_to_hub(finished, "me/mine", license="mit")
    before = dict(hub.contents)
    with pytest.raises(ValueError, match="private=True and me/mine"):
        push_to_hub(finished, "me/mine", license="apache-2.0", private=True)
    assert (hub.contents, hub.repositories) == (before, {"me/mine": "public"})


@pytest.mark.parametrize(
    ("arguments", "said", "message"),
    [((None, "me/mine"), {}, "path"), (("run", "me/mine"), {"private": "no"}, "True or False")],
)
def test_values_of_the_wrong_type_are_told(hub, arguments, said, message):
    with pytest.raises(TypeError, match=message):
        push_to_hub(*arguments, **said)
    assert hub.asked == []


# A folder of weights


@pytest.mark.parametrize(
    ("fields", "arguments", "layout"),
    [
        ({}, {}, "timm"),
        ({"distilled": True, "activation": "gelu"}, {}, "timm"),
        ({"layer_norm_epsilon": 1e-12, "activation": "gelu"}, {}, "huggingface"),
        ({"pooling": "map"}, {"include_top": False, "classes": None}, "timm"),
    ],
)
def test_pushed_folder_loads_by_the_code_of_its_card(hub, tmp_path, fields, arguments, layout):
    model = make_tiny(**fields, **arguments)
    labels = None if arguments else NAMES
    folder = save_checkpoint(model, tmp_path / "tiny", layout, labels=labels).parent
    push_to_hub(folder, "me/mine")
    again = load(pushed_card(hub))
    batch = images(3, 20, 28, 3)
    np.testing.assert_array_equal(numpy(again(batch)), numpy(model(batch)))
    task = "image-feature-extraction" if arguments else "image-classification"
    assert ModelCard(pushed_card(hub)).data.pipeline_tag == task


def test_second_push_leaves_no_file_of_the_first_and_keeps_all_else(hub, tmp_path):
    first, second = (save_checkpoint(make_tiny(), tmp_path / d, d).parent for d in ("huggingface", "timm"))
    push_to_hub(first, "me/mine")
    assert "preprocessor_config.json" in hub.contents
    hub.contents["photo.jpg"] = b"of its owner"
    name = push_to_hub(second, "me/mine", message="the layout of timm")
    assert set(hub.contents) == {WEIGHTS, "config.json", "PREPROCESSING.md", "README.md", "photo.jpg"}
    assert hub.messages[-1] == "the layout of timm"
    assert push_to_hub(second, "me/mine") == name  # nothing has changed, so there is no new commit
    assert len(hub.messages) == 2


OWN_CARD = b"---\ntags: [vision]\n---\n# My model"


@pytest.mark.parametrize("theirs", [{WEIGHTS: b"x"}, {"config.json": b"{}"}, {"README.md": OWN_CARD}])
def test_files_of_others_are_not_replaced(hub, folder, theirs):
    hub.contents = dict(theirs)
    with pytest.raises(ValueError, match=f"me/mine, which has {next(iter(theirs))}"):
        push_to_hub(folder, "me/mine")
    assert (hub.contents, hub.messages) == (theirs, [])
    hub.contents = {"README.md": b"---\nlicense: mit\n---\n"}  # as the Hub makes it for a licence
    push_to_hub(folder, "me/new")
    assert WEIGHTS in hub.contents


def test_repository_is_private_if_it_is_asked_for(hub, folder):
    push_to_hub(folder, "me/mine", private=True)
    push_to_hub(folder, "me/open")
    assert hub.repositories == {"me/mine": "private", "me/open": "public"}


# What is refused, before anything is sent


@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, ValueError) for name in ("mine", "hf:me/mine", "me/mine/x", "me/../x", "me/a--b")),
        *((name, ValueError) for name in ("me/mine.git", "me/mine\n", "-me/mine")),
        (None, TypeError),
    ],
)
def test_name_that_the_hub_cannot_have_is_refused(hub, finished, name, error):
    with pytest.raises(error, match="`repository` must be"):
        push_to_hub(finished, name)
    assert hub.asked == []


@pytest.mark.parametrize(("license", "error"), [("Apache 2.0", ValueError), ("mit\nx: y", ValueError), (1, TypeError)])
def test_licence_that_is_no_name_of_the_hub_is_refused(hub, finished, license, error):
    with pytest.raises(error, match="`license` must be"):
        push_to_hub(finished, "me/mine", license=license)
    assert hub.asked == []


def test_folder_of_neither_kind_is_refused(hub, tmp_path):
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ValueError, match=r"best\.keras.* model\.safetensors"):
            push_to_hub(folder, "me/mine")
    assert hub.asked == []


def test_folder_without_its_card_is_refused(hub, folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "copy")
    (folder / "README.md").unlink()
    with pytest.raises(ValueError, match=r"README\.md(.|\n)*No such file"):
        push_to_hub(folder, "me/mine")
    assert hub.asked == []


def test_format_is_for_a_run(hub, finished, folder):
    with pytest.raises(ValueError, match="`format`"):
        push_to_hub(folder, "me/mine", format="timm")
    with pytest.raises(ValueError, match=r"`format`.* 'timm', .*'huggingface'"):
        push_to_hub(finished, "me/mine", format="tim")
    assert hub.asked == []


def test_what_a_layout_cannot_hold_is_refused(hub, finished):
    with pytest.raises(keras_vit.CheckpointError, match="recognised"):
        push_to_hub(finished, "me/mine", format="timm_beit3")
    assert hub.asked == []


def test_damaged_weights_are_not_sent(hub, folder, tmp_path):
    file = shutil.copytree(folder, tmp_path / "copy") / WEIGHTS
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(keras_vit.CheckpointError):
        push_to_hub(file.parent, "me/mine")
    assert hub.asked == []


def test_resnet_has_no_layout_for_the_hub(hub, tmp_path):
    model = keras_vit.build_resnet(keras_vit.ResNetConfig((1,), 0.5), classes=3, input_shape=(20, 28, 3))
    (tmp_path / "run").mkdir()
    model.save(tmp_path / "run" / "best.keras")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"data": {"class_names": ["a", "b", "c"]}}))
    with pytest.raises(keras_vit.CheckpointError, match="timm layout"):
        push_to_hub(tmp_path / "run", "me/mine")


# What the Hub refuses


@pytest.mark.parametrize("status", [401, 403, 500])
def test_refusal_of_the_hub_is_one_error_of_ours(hub, folder, status, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.status = status
    with pytest.raises(keras_vit.UploadError, match=f"{status}(.|\n)*me/mine.*HF_TOKEN"):
        push_to_hub(folder, "me/mine")
    assert hub.contents == {}


def test_offline_says_so_and_opens_no_socket(hub, folder, monkeypatch):
    monkeypatch.setattr("socket.socket", None)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(OfflineError, match="KERAS_VIT_OFFLINE"):
        push_to_hub(folder, "me/mine")


def test_not_installed_names_the_extra(hub, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[hub\]"'):
        push_to_hub(folder, "me/mine")


def test_model_keeps_its_file_after_a_push(hub, finished):
    before = (finished.out / "best.keras").read_bytes()
    push_to_hub(finished, "me/mine")
    assert (finished.out / "best.keras").read_bytes() == before
    assert keras.models.load_model(finished.out / "best.keras", compile=False).config == finished.model.config
