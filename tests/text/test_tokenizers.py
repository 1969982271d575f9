"""Ids of 216 strings by 8 vocabularies are those of OpenAI's, OpenCLIP's, big_vision's and transformers' own code."""

import contextlib
import gzip
import importlib.resources
import json
import pickle
import shutil
import sys

import numpy as np
import pytest
from conftest import GOLDEN

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.text import cleaning, templates
from keras_vit.text.opening import write_tokenizer_file, write_transformers_tokenizer
from keras_vit.text.tokenizer import clip_pieces

FOLDER = GOLDEN / "text" / "tokenizers"
INDEX = json.loads((FOLDER / "index.json").read_text())
STRINGS = [entry["text"] for entry in json.loads((FOLDER / "strings.json").read_text())]
COLUMNS = [(name, column) for name, columns in INDEX.items() for column in columns]
OPEN_CLIP = "open_clip_config.json"


def opened(name, column, folder):
    """The tokenizer of a column: by its file and words, or by a folder of OpenCLIP where that decides something."""
    facts = INDEX[name][column]
    source, length, clean = FOLDER / name / facts["file"], facts["length"], facts["clean"]
    if name == "clip_real":
        if "open_clip" not in column:
            return keras_vit.tokenizer("clip", max_length=length)
        text = {"vocab_size": 49408}
    elif not (name == "clip_small" and column == "open_clip") and column != "open_clip_clipa":
        return keras_vit.tokenizer(source, max_length=length, clean=clean)
    else:
        text = {"hf_tokenizer_name": "x", "tokenizer_kwargs": {"strip_sep_token": True}} if name == "bert_small" else {}
        for file in source.parent.glob("*.gz" if name == "clip_small" else "tokenizer*.json"):
            shutil.copy(file, folder)
    config = {"model_cfg": {"text_cfg": {"context_length": length, **text}}}
    (folder / OPEN_CLIP).write_text(json.dumps(config))
    if name == "clip_real":
        from keras_vit.text.opening import open_tokenizer

        return open_tokenizer(folder, is_clip=True)
    return keras_vit.tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "column"), [pair for pair in COLUMNS if pair[0] != "clip_real" or "transformers" not in pair[1]]
)
def test_ids_are_those_of_the_software(name, column, tmp_path):
    """Of each text, with padding and end; also out of a pickle."""
    facts = INDEX[name][column]
    tokenizer = pickle.loads(pickle.dumps(opened(name, column, tmp_path)))
    with np.load(FOLDER / name / "ids.npz") as arrays:
        expected = arrays[column]
    ids = tokenizer(STRINGS)
    assert ids.dtype == np.int32
    differing = set(np.flatnonzero((ids != expected).any(axis=1))) - set(facts.get("left_open", ()))
    assert not differing, [STRINGS[row] for row in differing]
    assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.max_length) == (facts["pad"], facts["end"], facts["length"])


def test_lines_after_the_merges_of_clip_are_not_read():
    """OpenAI's file has 262,146 lines, of which a header and 48,894 are read: all that is shipped."""
    path = importlib.resources.files("keras_vit.text") / "vocabulary" / "clip.txt.gz"
    lines = gzip.decompress(path.read_bytes())
    assert lines.count(b"\n") == 48_894
    assert clip_pieces(lines + b"\nx y\nz w").data == clip_pieces().data


@pytest.mark.parametrize(
    "text",
    [
        *({"tokenizer_kwargs": {word: value}} for word, value in (("context_length", 8), ("reduction_mask", "simple"))),
        *({"tokenizer_kwargs": {word: value}} for word, value in (("clean", "lowercase"), ("strip_sep_token", True))),
        {"hf_tokenizer_name": "x", "tokenizer_kwargs": {"reduction_mask": "simple"}},
        {"hf_tokenizer_name": "x", "tokenizer_mode": "clips"},
    ],
)
def test_words_by_which_openclip_makes_other_ids_are_refused(text, tmp_path):
    """Or by which it opens no tokenizer: its own class has no `strip_sep_token`, and gets `context_length` twice."""
    (tmp_path / OPEN_CLIP).write_text(json.dumps({"model_cfg": {"text_cfg": text}}))
    shutil.copy(FOLDER / "bert_small" / "tokenizer.json", tmp_path)
    word = next(iter(text.get("tokenizer_kwargs", {"tokenizer_mode": 0})))
    with pytest.raises(ArgumentError, match=f"tokenizer_kwargs(?s:.*)Received: {word}="):
        keras_vit.tokenizer(tmp_path)


def test_two_files_of_transformers_give_what_its_one_file_gives(tmp_path):
    for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(FOLDER / "clip_small" / file, tmp_path)
    with np.load(FOLDER / "clip_small" / "ids.npz") as arrays:
        np.testing.assert_array_equal(keras_vit.tokenizer(tmp_path)(STRINGS), arrays["transformers"])
    file = tmp_path / "merges.txt"
    lines = file.read_text().split("\n")
    count, words = sum(map(bool, lines[1:])), len(json.loads((tmp_path / "vocab.json").read_text()))
    file.write_text("\n".join(lines[: 1 + count // 2]))
    received = rf"{words:,} words and {count // 2} merges, which do not make {count - count // 2}, .*File: .*vocab.json"
    with pytest.raises(ArgumentError, match=received):
        keras_vit.tokenizer(tmp_path)


def test_rules_of_a_class_hold_where_its_file_is_silent_and_left_sides_are_named(tmp_path):
    """transformers' CLIPTokenizer cleans whatever `normalizer` is; padding on the left is not how CLIP was trained."""
    found = json.loads((FOLDER / "clip_small" / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(found | {"normalizer": None}))
    config = json.loads((FOLDER / "clip_small" / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"tokenizer_class": "CLIPTokenizer", "padding_side": "left"})
    )
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.warns(UserWarning, match="padding_side 'left'"):
        ids = keras_vit.tokenizer(tmp_path)(STRINGS)
    with np.load(FOLDER / "clip_small" / "ids.npz") as arrays:
        np.testing.assert_array_equal(ids, arrays["transformers"])


def test_pieces_in_the_order_of_fairseq(tmp_path):
    """A model of sentencepiece alone, which cleans some blanks otherwise than its JSON, and has no spelled-out ids."""
    shutil.copy(FOLDER / "xlm_small" / "sentencepiece.bpe.model", tmp_path)
    ids = keras_vit.tokenizer(tmp_path, max_length=77, clean="none")(STRINGS)
    with np.load(FOLDER / "xlm_small" / "ids.npz") as arrays:
        assert (ids == arrays["transformers"]).all(axis=1).sum() == len(STRINGS) - 10


@pytest.mark.parametrize("model_type", ["siglip", "siglip2"])
def test_gemma_for_transformers_gives_the_same_ids(model_type, tmp_path):
    """SigLIP 2 strips nothing. The class of `siglip2` makes all letters small, and the authors those of ASCII."""
    tokenizer = keras_vit.tokenizer(FOLDER / "gemma_small" / "tokenizer.model", max_length=64)
    warned = pytest.warns(UserWarning, match="otherwise than clean='lower_ascii'")
    with warned if model_type == "siglip2" else contextlib.nullcontext():
        config = write_transformers_tokenizer(tokenizer, tmp_path, model_type)
    texts = [*STRINGS, "a photo of the number 7.", "<MASK> <mask>", "a <eos>  b", "ab" * 99]
    own = {"siglip": "PreTrainedTokenizerFast", "siglip2": "Siglip2Tokenizer"}
    assert (config["tokenizer_class"], config["pad_token"], config["eos_token"]) == (own[model_type], "<pad>", "<eos>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    read = keras_vit.tokenizer(tmp_path)
    differing = np.flatnonzero((read(texts) != tokenizer(texts)).any(axis=1))
    assert all(model_type == "siglip2" and not texts[row].isascii() for row in differing)
    again = tmp_path / "again"
    again.mkdir()
    assert write_transformers_tokenizer(read, again, model_type) == config
    assert (again / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_long_text_keeps_its_end_and_a_short_one_is_padded():
    tokenizer = keras_vit.tokenizer("clip", max_length=8)
    ids = tokenizer(["cat " * 50, "cat", ""])
    assert ids[0, -1] == ids[1, 2] == ids[2, 1] == tokenizer.end_id
    assert list(ids[1, 3:]) == [0] * 5
    assert tokenizer([]).shape == (0, 8)
    for cat in ("cat", np.array("cat")):
        np.testing.assert_array_equal(tokenizer(cat), ids[1:2])
    np.testing.assert_array_equal(tokenizer(np.array(["cat", ""])), ids[1:])


@pytest.mark.parametrize(
    "texts",
    [None, 7, b"cat", ["cat", None], ["cat", 1.5], {"cat": 1}, {"cat": 1}.keys(), {"cat"}, [["cat"]], "\ud800"],
)
def test_what_is_no_text_is_refused(texts):
    with pytest.raises((TypeError, ArgumentError), match="`texts` must be"):
        keras_vit.tokenizer("clip")(texts)


def test_wrong_sources_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must have a tokenizer's file"):
        keras_vit.tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match="must be a folder"):
        keras_vit.tokenizer(tmp_path / "nothing")
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ArgumentError, match="library `tokenizers`"):
        keras_vit.tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ArgumentError, match="must be JSON"):
        keras_vit.tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(ArgumentError, match=r"(?s)library `tokenizers`.*Missing vocab"):
        keras_vit.tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "vocab.json")
    with pytest.raises(FileNotFoundError, match=r"needs the merges\.txt"):
        keras_vit.tokenizer(tmp_path)
    for content in (b"version https://git-lfs", b""):
        (tmp_path / "spiece.model").write_bytes(content)
        with pytest.raises(ArgumentError, match=r"library `sentencepiece`(?s:.*)File: .*spiece\.model"):
            keras_vit.tokenizer(tmp_path)
    (merges,) = (FOLDER / "clip_small").glob("*.gz")
    whole = merges.read_bytes()
    damaged = whole[: len(whole) // 2], whole[:2] + b"x" + whole[3:], whole[:40] + bytes(9) + whole[49:], b"", b"\xff"
    for content in damaged:
        (tmp_path / merges.name).write_bytes(content)
        with pytest.raises(ArgumentError, match=rf"library `open_clip`(?s:.*)File: .*{merges.name}"):
            keras_vit.tokenizer(tmp_path / merges.name)
    for wrong in (None, 5):
        with pytest.raises(TypeError, match="`source` must be a path or a name"):
            keras_vit.tokenizer(wrong)
    with pytest.raises(ArgumentError, match="`max_length` must be at least 1"):
        keras_vit.tokenizer("clip", max_length=0)
    for wrong in ("upper", ""):
        with pytest.raises(ArgumentError, match="`clean` must be one of"):
            keras_vit.tokenizer("clip", clean=wrong)
    with pytest.raises(ArgumentError, match="leave room"):
        keras_vit.tokenizer("clip", max_length=1)


@pytest.mark.parametrize(
    "change", [("facts", {}), ("kind", "other"), ("pieces", "!"), ("keras_vit_tokenizer", 2), None]
)
def test_damaged_file_of_an_export_is_refused(change, tmp_path):
    file = tmp_path / "words.tokenizer.json"
    write_tokenizer_file(keras_vit.tokenizer("clip"), file)
    content = file.read_text()
    file.write_text(content[:-9] if change is None else json.dumps(json.loads(content) | dict([change])))
    with pytest.raises(ArgumentError, match="must be whole"):
        keras_vit.tokenizer(file)


def test_without_ftfy_plain_texts_have_their_ids_and_others_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    tokenizer = keras_vit.tokenizer("clip")
    plain = [text for text in STRINGS if text.isascii() and text.isprintable() and "&" not in text]
    with np.load(FOLDER / "clip_real" / "ids.npz") as arrays:
        np.testing.assert_array_equal(tokenizer(plain), arrays["openai"][[STRINGS.index(text) for text in plain]])
    for text in ("café", "a &amp; b", "a\tb"):
        with pytest.raises(ImportError, match=r"(?s)ftfy must be installed.*\[text\]"):
            tokenizer(text)


def test_letters_are_made_small_as_each_software_does():
    assert cleaning.CLEANINGS["lowercase"]("ΟΔΟΣ") == "οδοσ"  # and not the sigma that ends a word
    assert cleaning.CLEANINGS["lower_ascii"]("ÉA") == "Éa"
    assert cleaning.CLEANINGS["lower"]("<b> &amp;amp; c") == "<b> & c"  # entities twice; ftfy reads none next to a tag
    assert cleaning.CLEANINGS["canonicalize"]("snow_leopard (big cat)") == "snow leopard big cat"
    assert cleaning.CLEANINGS["siglip_transformers"]("snow_leopard") == "snowleopard"


def test_each_rule_of_cleaning_makes_other_texts():
    """So that the ids of the columns above tell which rule was taken."""
    made = {name: tuple(map(clean, STRINGS)) for name, clean in cleaning.CLEANINGS.items()}
    assert len(set(made.values())) == len(made) == 7


def test_prompts_of_imagenet():
    assert [len(templates.find_templates(name)) for name in ("imagenet", "imagenet-7")] == [80, 7]
    assert len(set(templates.imagenet_classes())) == 998  # of 1,000: two stand twice, as OpenAI has it
    found = templates.prompts(["kite (bird of prey), kite"], ["itap of a {}."], canonical=True)
    assert found == ["itap of a kite bird of prey"]
    assert templates.prompts(["a", "b"], ["x {}", "{}."]) == ["x a", "a.", "x b", "b."]
    assert templates.find_templates("one {}") == ("one {}",)
    for wrong in ([], ["no place"], ["{} {}"], "{} {}", "imagenet-9", ["{{}}"], {"a {}"}):
        with pytest.raises((TypeError, ValueError), match="templates"):
            templates.find_templates(wrong)
