"""Ids of 216 strings by 8 vocabularies are those of OpenAI's, OpenCLIP's, big_vision's and transformers' own code."""

import contextlib
import gzip
import importlib.resources
import io
import json
import pickle
import re
import shutil
import sys

import numpy as np
import pytest
import sentencepiece
from conftest import GOLDEN

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.text import cleaning, templates
from keras_vit.text.opening import open_tokenizer, write_tokenizer_file, write_transformers_tokenizer
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


def test_contractions_and_special_words_are_found_in_capitals_as_openclip_finds_them(tmp_path):
    """With `clean="whitespace"` capitals stay. The ids are those of OpenCLIP 3.3's SimpleTokenizer."""
    expected = {
        "we'll I'D": [649, 1342, 296, 6, 291],
        "DON'T": [35, 46, 301, 6, 307],
        "it'\u017f": [585, 6, 129, 379],  # the long s, which is an s without case
        "<START_OF_TEXT>": [27, 50, 51, 32, 49, 51, 62, 46, 37, 62, 51, 36, 55, 51, 285],
    }
    text = {"context_length": 20, "tokenizer_kwargs": {"clean": "whitespace"}}
    (tmp_path / OPEN_CLIP).write_text(json.dumps({"model_cfg": {"text_cfg": text}}))
    made = open_tokenizer(tmp_path, is_clip=True)
    for words, ids in expected.items():
        assert made(words)[0].tolist() == [49406, *ids, 49407] + [0] * (18 - len(ids))
    words = [*expected][:-1]  # OpenAI spells its special words otherwise
    ids = keras_vit.tokenizer("clip", max_length=20, clean="whitespace")(words)
    np.testing.assert_array_equal(ids, made(words))


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
    words = json.loads((tmp_path / "vocab.json").read_text())
    plain = keras_vit.tokenizer(tmp_path)(["b !!a!"])[0].tolist()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for pad in ("!", {"content": "!"}):  # a word of padding is one id wherever it stands, as transformers has it
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": pad}))
        made = keras_vit.tokenizer(tmp_path)
        ids = [made.start_id, words["b</w>"], words["!"], words["!"], words["a</w>"], words["!"], made.end_id]
        assert made(["b !!a!"])[0].tolist() == ids + [words["!"]] * (made.max_length - len(ids))
        assert plain[:7] != ids
    file = tmp_path / "merges.txt"
    lines = file.read_text().split("\n")
    count, words = sum(map(bool, lines[1:])), len(words)
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
        ids, lengths = keras_vit.tokenizer(tmp_path).ids_and_lengths(STRINGS)
    with np.load(FOLDER / "clip_small" / "ids.npz") as arrays:
        expected = arrays["transformers"]
    for row, right, count in zip(ids, expected, np.minimum(lengths, ids.shape[1]), strict=True):
        np.testing.assert_array_equal(row, np.roll(right, len(right) - count))


RULES = (
    {"normalizer": None},
    {"pre_tokenizer": None},
    {"end_of_word_suffix": None},
    {"dropout": 0.5},
    {"ignore_merges": True},
)


@pytest.mark.parametrize("change", RULES, ids=str)
def test_rules_of_the_class_of_clip_hold_whatever_its_file_says(change, tmp_path):
    """transformers' CLIPTokenizer keeps words and merges of the file; of no class, what gives other ids is refused."""
    found = json.loads((FOLDER / "clip_small" / "tokenizer.json").read_text())
    for name in change:
        (found if name in found else found["model"])[name] = change[name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "CLIPTokenizer", "pad_token": "<|endoftext|>"}'
    )
    with np.load(FOLDER / "clip_small" / "ids.npz") as arrays:
        np.testing.assert_array_equal(keras_vit.tokenizer(tmp_path)(STRINGS), arrays["transformers"])
    (tmp_path / "tokenizer_config.json").unlink()
    if not {"normalizer", "ignore_merges"} & {*change}:
        with pytest.raises(ArgumentError, match=r"the same ids each time(?s:.*)File: .*tokenizer\.json"):
            keras_vit.tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("part", "edit", "received"),
    [
        ("merges", lambda merges: merges.pop(1), "999 merges, which do not make 1, as"),
        ("merges", lambda merges: merges.clear(), "0 merges, which do not make 1,000, as"),
        ("vocab", lambda vocab: vocab.pop("~</w>"), "1,513 words and ids that stand twice or are left out"),
        ("vocab", lambda vocab: vocab.update({"~</w>": vocab["b</w>"]}), "1,514 words and ids that stand twice"),
    ],
)
@pytest.mark.parametrize("named", ["", "CLIPTokenizer"])
def test_damaged_pairs_of_clip_are_refused(part, edit, received, named, tmp_path):
    """The library takes each of them, and gives other ids."""
    found = json.loads((FOLDER / "clip_small" / "tokenizer.json").read_text())
    edit(found["model"][part])
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
    with pytest.raises(ArgumentError, match=rf"of CLIP's kind(?s:.*){received}(?s:.*)File: .*tokenizer\.json"):
        keras_vit.tokenizer(tmp_path)


def written_folder(folder, name, model_type, edit=lambda found: None, special=None, **config):
    """A folder of transformers with the vocabulary of `name`, changed."""
    found = json.loads((FOLDER / name / "tokenizer.json").read_text())
    edit(found)
    (folder / "tokenizer.json").write_text(json.dumps(found))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type} if model_type else {}))
    if special is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(special))
    return keras_vit.tokenizer(folder)


@pytest.mark.parametrize(
    "role", ["pad_token", "unk_token", "mask_token", "additional_special_tokens", "map", "bos_token"]
)
def test_special_words_of_both_configs_are_one_id_wherever_they_stand(role, tmp_path):
    """`!` within a word too; where the older file names it, that is taken, as transformers does."""
    config = {"tokenizer_class": "CLIPTokenizer", "pad_token": "<|endoftext|>"}
    config |= {} if role == "map" else {role: ["!"] if role.startswith("additional") else "!"}
    made = written_folder(
        tmp_path, "clip_small", "clip", special={"pad_token": "!"} if role == "map" else None, **config
    )
    words = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    one, start = words["!"], words["!"] if role == "bos_token" else words["<|startoftext|>"]
    expected = [start, words["b</w>"], one, one, words["a</w>"], one, words["<|endoftext|>"]]
    pad = one if role in ("pad_token", "map") else words["<|endoftext|>"]
    assert made("b!!a !")[0].tolist() == expected + [pad] * (made.max_length - len(expected))
    config["split_special_tokens"] = True
    assert written_folder(tmp_path, "clip_small", "clip", **config)("b!!a")[0].tolist()[:2] == expected[:2]


@pytest.mark.parametrize("name", ["gemma_small", "bert_small"])
@pytest.mark.parametrize("lost", ["normalizer", "pre_tokenizer", "byte_fallback", "continuing_subword_prefix"])
def test_rules_of_the_classes_of_gemma_and_bert_hold_whatever_their_file_says(name, lost, tmp_path):
    """transformers' classes keep words, merges and, of Gemma, the end of the file."""

    def edit(found):
        (found if lost in found else found["model"])[lost] = "" if lost.startswith("continuing") else None
        if lost == "byte_fallback":
            found["model"][lost] = False

    kind, model_type, column = {
        "gemma_small": ("Siglip2Tokenizer", "siglip", "transformers_siglip2"),
        "bert_small": ("BertTokenizerFast", "", "transformers"),
    }[name]
    made = written_folder(tmp_path, name, model_type, edit, tokenizer_class=kind, padding_side="right")
    made.max_length = INDEX[name][column]["length"]
    with np.load(FOLDER / name / "ids.npz") as arrays:
        np.testing.assert_array_equal(made(STRINGS), arrays[column])


@pytest.mark.parametrize("name", ["gemma_small", "bert_small"])
def test_damaged_words_of_gemma_and_bert_are_refused(name, tmp_path):
    for edit in (
        lambda words: words.pop([*words][-9]),
        lambda words: words.update({[*words][-9]: words[[*words][-3]]}),
    ):
        with pytest.raises(ArgumentError, match=r"must have one id(?s:.*)stand twice or are left out(?s:.*)File: "):
            written_folder(tmp_path, name, "", lambda found, edit=edit: edit(found["model"]["vocab"]))


def test_what_a_folder_of_siglip_sets_otherwise_is_followed_with_a_line(tmp_path):
    """Sides, case and padding; ids of padding are those of the pieces."""
    gemma = {"tokenizer_class": "Siglip2Tokenizer"}
    right = written_folder(tmp_path, "gemma_small", "siglip", **gemma, padding_side="right")
    ids, lengths = right.ids_and_lengths(["a red car", "ab" * 99])
    with pytest.warns(UserWarning, match="padding_side 'left'"):
        left = written_folder(tmp_path, "gemma_small", "siglip", **gemma)(["a red car", "ab" * 99])
    np.testing.assert_array_equal(left[0], np.roll(ids[0], 64 - lengths[0]))
    np.testing.assert_array_equal(left[1], ids[1])
    right.max_length = 300
    whole = right("c" + "ab" * 99)[0]
    with pytest.warns(UserWarning, match="truncation_side 'left'"):
        cut = written_folder(tmp_path, "gemma_small", "siglip", **gemma, padding_side="right", truncation_side="left")
    np.testing.assert_array_equal(cut("c" + "ab" * 99)[0], whole[whole != right.pad_id][-64:])
    with pytest.warns(UserWarning, match="capitals(?s:.*)'GemmaTokenizer'"):
        written_folder(tmp_path, "gemma_small", "siglip", tokenizer_class="GemmaTokenizer", padding_side="right")
    (tmp_path / "tokenizer.json").unlink()
    shutil.copy(FOLDER / "siglip_small" / "spiece.model", tmp_path)
    config = {"tokenizer_class": "SiglipTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    usual = keras_vit.tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": False, "pad_token": "<unk>"}))
    with pytest.warns(UserWarning, match="is followed, as transformers does") as lines:
        made = keras_vit.tokenizer(tmp_path)
    assert [str(line.message).split(" of ")[0] for line in lines] == ["do_lower_case False", "pad_token '<unk>'"]
    assert (usual.pad_id, made.pad_id) == (1, 2)
    assert (made("A car")[0] != usual("a car")[0])[0]
    np.testing.assert_array_equal(made("a, car")[0, :3], usual("A car")[0, :3])


def siglip_folder(folder, special=None, config=None, **options):
    """A folder of transformers' SigLIP with a new `spiece.model`: by default unknown is id 0, `</s>` id 2."""
    data, letters = io.BytesIO(), "abcdefghijklmnopqrstuvwxyz"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"a {one}{two}" for one in letters for two in letters]),
        model_writer=data,
        vocab_size=50,
        minloglevel=2,
        **options,
    )
    (folder / "spiece.model").write_bytes(data.getvalue())
    (folder / "config.json").write_text('{"model_type": "siglip"}')
    for file, found in (("special_tokens_map.json", special), ("tokenizer_config.json", config)):
        if found is not None:
            (folder / file).write_text(json.dumps(found))
    return keras_vit.tokenizer(folder)


@pytest.mark.parametrize("config", [None, {"tokenizer_class": "SiglipTokenizer"}])
def test_padding_of_siglip_is_the_id_of_its_piece(config, tmp_path):
    """By the class, or a config; a word that is no piece has an id beyond the vocabulary in transformers."""
    made = siglip_folder(tmp_path, config=config)
    assert (made.end_id, made.pad_id, made("b")[0, -1]) == (2, 2, 2)
    with pytest.warns(UserWarning, match="pad_token '<unk>'"):
        assert siglip_folder(tmp_path, {"pad_token": {"content": "<unk>"}}, config).pad_id == 0
    for wrong in ({"pad_token": "<pad>"}, {"eos_token": "<unk>"}):
        with pytest.raises(ArgumentError, match=r"must be the piece that ends them(?s:.*)has '</s>'(?s:.*)File: "):
            siglip_folder(tmp_path, wrong, config)


@pytest.mark.parametrize(
    ("options", "config", "line"),
    [
        ({}, {"additional_special_tokens": ["<box>", "</s>"]}, "'<box>' is no piece"),
        ({}, {"added_tokens_decoder": {"2": {"content": "</s>"}, "50": {"content": "<box>"}}}, "'<box>' is no piece"),
        ({"user_defined_symbols": "<box>"}, {"extra_special_tokens": {"image_token": "<box>"}}, None),
        ({"add_dummy_prefix": False}, {}, "add_dummy_prefix is not"),
        ({"remove_extra_whitespaces": False}, {}, "remove_extra_whitespaces is not"),
        ({}, {"tokenizer_class": "T5Tokenizer"}, "tokenizer_class 'T5Tokenizer'(?s:.*)than those of SiglipTokenizer"),
        ({}, {"tokenizer_class": "SiglipTokenizer"}, None),
    ],
    ids=str,
)
def test_what_makes_other_ids_of_siglip_in_transformers_is_named(options, config, line, tmp_path, recwarn):
    """Words that are no pieces, a normalizer with other blanks, and a class of other files."""
    siglip_folder(tmp_path, config=config, **options)
    lines = [str(found.message) for found in recwarn]
    assert len(lines) == (line is not None)
    assert line is None or re.search(line, lines[0])


def test_class_of_other_files_than_those_of_clip_is_named(tmp_path):
    with pytest.warns(UserWarning, match=r"tokenizer_class 'GPT2Tokenizer'(?s:.*)than those of CLIPTokenizer"):
        written_folder(tmp_path, "clip_small", "clip", tokenizer_class="GPT2Tokenizer")


def test_siglip_2_that_openclip_opens_by_its_name_has_small_letters(tmp_path):
    """By the class, after the cleaning of OpenCLIP that keeps capitals; one by one, as the sigma at an end."""
    config = {"tokenizer_class": "Siglip2Tokenizer", "padding_side": "right"}
    (tmp_path / OPEN_CLIP).write_text(json.dumps({"model_cfg": {"text_cfg": {"hf_tokenizer_name": "x"}}}))
    made = written_folder(tmp_path, "gemma_small", "", **config)
    assert made.clean == "whitespace"
    np.testing.assert_array_equal(made(["A  Red CAR", "\u039f\u03a3"]), made(["a red car", "\u03bf\u03c3"]))
    other = written_folder(tmp_path, "gemma_small", "", **config | {"tokenizer_class": "GemmaTokenizer"})
    np.testing.assert_array_equal(other("a red car"), made("A red car")[:, : other.max_length])
    assert (other("A red car") != other("a red car")).any()


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.json"])
def test_folder_of_clip_without_its_config_has_words_and_padding_of_the_class(file, tmp_path):
    """By `model_type`, as transformers has it; words of `added_tokens.json` are one id each, wherever they stand."""
    for name in (file, *(["merges.txt"] if file == "vocab.json" else [])):
        shutil.copy(FOLDER / "clip_small" / name, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with np.load(FOLDER / "clip_small" / "ids.npz") as arrays:
        np.testing.assert_array_equal(keras_vit.tokenizer(tmp_path)(STRINGS), arrays["transformers"])
    (tmp_path / "added_tokens.json").write_text('{"blicket": 1514, "<box>": 1515}')
    made = keras_vit.tokenizer(tmp_path)
    assert made.vocabulary_size == 1516
    assert made("ablicket<box>")[0, [0, 2, 3, 4, 76]].tolist() == [made.start_id, 1514, 1515, made.end_id, made.end_id]
    for name, wrong, match in (
        ("added_tokens.json", '{"blicket": "x"}', "must have an id.*\n.*'blicket': 'x' in"),
        ("tokenizer_config.json", "[]", "must hold an object.*\n.*list, .*tokenizer_config.json"),
        ("special_tokens_map.json", "{", "must be JSON.*\n.*special_tokens_map.json"),
    ):
        (tmp_path / name).write_text(wrong)
        with pytest.raises(ArgumentError, match=match):
            keras_vit.tokenizer(tmp_path)
        (tmp_path / name).unlink()


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


@pytest.mark.parametrize("name", ["clip", "clip/B16"])
def test_a_published_name_is_not_looked_for_in_the_working_directory(name, tmp_path, monkeypatch):
    """In which there may be vocabularies, a config, or a folder of that name."""
    for folder in (tmp_path, tmp_path / name):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(FOLDER / "gemma_small" / "tokenizer.json", folder)
        (folder / "config.json").write_text('{"model_type": "siglip2"}')
    monkeypatch.chdir(tmp_path)
    if name == "clip":
        made = keras_vit.tokenizer(name)
        assert (made.vocabulary_size, made.end_id, made.max_length, made.clean) == (49408, 49407, 77, "lower")
    else:
        for builder in (keras_vit.tokenizer, keras_vit.build_text):
            monkeypatch.setattr("keras_vit.text_builders.find_text", lambda *given: pytest.fail(str(given)))
            with pytest.raises(pytest.fail.Exception, match="clip/B16"):
                builder(name)
    with pytest.raises(ArgumentError, match="`source` must be a path or a name"):
        keras_vit.tokenizer("")


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
    with pytest.raises(ArgumentError, match="more than 16,777,216 bytes"):
        clip_pieces(gzip.compress(bytes(1 << 25)))
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
    assert len(set(made.values())) == len(made) == 8


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
    with pytest.raises(ValueError, match=r"prompts with one \{\} each(.|\n)*'no braces', which has no \{\}"):
        templates.find_templates("no braces")
