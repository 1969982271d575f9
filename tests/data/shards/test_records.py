"""TFRecords and Parquet as others write them, and words about those that are no good."""

import base64
import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pictures import encoded, picture
from shard_sets import write_tar

from keras_vit.cache import cache_dir
from keras_vit.data import open_source
from keras_vit.data.shards import parquet
from keras_vit.data.shards.index import NAME
from keras_vit.data.shards.opening import shard_photos
from keras_vit.embedding.photo_lists import list_photos
from keras_vit.images.byte_ranges import photo_bytes

JPEGS = [encoded(picture(20, 28, seed=seed)) for seed in range(6)]
LABELS = [0, 1, 0, 1, 1, 0]


def example(**fields):
    """A record; names have `_` for `/`."""
    found = {}
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(values[0], float):
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        found[name.replace("__", "/")] = feature
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()


def write_tfrecord(path, records):
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)
    return path


def read(path):
    """Bytes and class name of every photo of the training split, in the order of the shard's keys."""
    source = open_source(path)
    found = {}
    for split in source.splits.values():
        for place, label in zip(split.paths, split.labels, strict=True):
            found[str(place)] = (photo_bytes(place), source.class_names[label])
    return [found[name] for name in sorted(found)]


def pairs(names="01"):
    return [(photo, names[label]) for photo, label in zip(JPEGS, LABELS, strict=True)]


FIELDS = {
    "TF-Slim": lambda photo, label, number: {
        "image__encoded": photo,
        "image__class__label": label,
        "image__class__text": b"tench, Tinca",
        "image__object__bbox__xmin": [0.5, 0.25],
        "image__height": 20,
    },
    "tensorflow-datasets": lambda photo, label, number: {
        "image": photo,
        "label": label,
        "file_name": b"%d.jpg" % number,
    },
    "img2dataset": lambda photo, label, number: {
        "jpg": photo,
        "key": b"%09d" % number,
        "txt": b"a photo",
        "cls": str(label).encode(),
        "similarity": 0.5,
        "sizes": [1, 2, 300, -1],
    },
}


@pytest.mark.filterwarnings("ignore:the names next to class numbers")  # one name for both
@pytest.mark.parametrize("kind", FIELDS)
def test_fields_of_others_are_found_in_records(kind, tmp_path):
    records = [example(**FIELDS[kind](JPEGS[n], LABELS[n], n)) for n in range(6)]
    assert read(write_tfrecord(tmp_path / "a.tfrecord-00000-of-00001", records)) == pairs()


def test_names_alone_are_labels(tmp_path):
    records = [example(image__encoded=JPEGS[n], image__class__text=b"ab"[label:][:1]) for n, label in enumerate(LABELS)]
    assert read(write_tfrecord(tmp_path / "a.tfrec", records)) == pairs("ab")


@pytest.mark.parametrize("kind", ["tfrecord", "tar"])
@pytest.mark.parametrize(
    ("texts", "names", "words"),
    [
        ("ba", "ba", None),
        (["", "a"], "01", "class 0 has none"),
        (["a", "a"], "01", "classes 0 and 1 both have 'a'"),
        ("bac", "01", "class 0 has 'b' and 'c'"),
    ],
)
def test_names_beside_class_numbers_are_used_unless_they_contradict(tmp_path, recwarn, kind, texts, names, words):
    """A third text is that of the last photo, which is of class 0."""
    of_photo = [texts[-1] if n == 5 and len(texts) == 3 else texts[label] for n, label in enumerate(LABELS)]
    if kind == "tar":
        members = {f"{n:03}.json": {"label": LABELS[n], "class": text} for n, text in enumerate(of_photo)}
        members = [(name, json.dumps(facts).encode()) for name, facts in members.items()]
        write_tar(tmp_path / "a.tar", [*((f"{n:03}.jpg", photo) for n, photo in enumerate(JPEGS)), *members])
    else:
        fields = [{"image__class__label": LABELS[n], "image__class__text": of_photo[n].encode()} for n in range(6)]
        records = [example(image__encoded=photo, **own) for photo, own in zip(JPEGS, fields, strict=True)]
        write_tfrecord(tmp_path / "a.tfrecord", records)
    for _ in range(2):  # the second time by the index
        assert read(tmp_path) == pairs(names)
    found = {str(each.message) for each in recwarn if "next to class numbers" in str(each.message)}
    assert len(found) == (1 if words else 0)
    assert all(words in line for line in found)
    (tmp_path / "labels.json").write_text('["x", "y"]')  # other words for the classes
    assert read(tmp_path) == pairs("xy")
    (tmp_path / "labels.json").write_text('["a", "b"]')
    if texts != ["", "a"]:
        with pytest.raises(ValueError, match=r"must be equal.*\n.*, class \d is '[ab]', and '[ab]' in the list"):
            open_source(tmp_path)


@pytest.mark.parametrize(
    ("texts", "names", "words"),
    [
        (("001", "010"), ("001", "010"), ""),
        (("01", "1"), ("01", "1"), "'01' and '1' are one number"),
        (("-0", "0"), ("-0", "0"), "are one number"),
        (("2", "10"), ("2", "10"), ""),
    ],
)
@pytest.mark.parametrize("kind", ["tar", "tfrecord", "parquet"])
def test_labels_with_zeros_in_front_stay_as_they_are_written(tmp_path, recwarn, kind, texts, names, words):
    of_photo = [texts[label] for label in LABELS]
    if kind == "tar":
        members = [(f"{n:03}.cls", text.encode()) for n, text in enumerate(of_photo)]
        write_tar(tmp_path / "a.tar", [*((f"{n:03}.jpg", photo) for n, photo in enumerate(JPEGS)), *members])
    elif kind == "tfrecord":
        fields = [{"image__class__label": text.encode()} for text in of_photo]
        records = [example(image__encoded=photo, **own) for photo, own in zip(JPEGS, fields, strict=True)]
        write_tfrecord(tmp_path / "a.tfrecord", records)
    else:
        pq.write_table(pa.table({"image": JPEGS, "label": of_photo}), tmp_path / "a.parquet")
    assert read(tmp_path) == [(photo, text) for photo, text in zip(JPEGS, of_photo, strict=True)]
    assert open_source(tmp_path).class_names == names
    found = {str(each.message) for each in recwarn if "one number" in str(each.message)}
    assert len(found) == (1 if words else 0)
    assert all(words in line for line in found)


def records_of(*labels):
    return [example(image__encoded=JPEGS[n], image__class__label=label) for n, label in enumerate(labels)]


def length(number):
    """The length of a record as it stands before it, with its checksum, a masked CRC-32C."""
    data, crc = number.to_bytes(8, "little"), 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return data + (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


BAD_RECORDS = {
    "of 2**36 bytes": (lambda whole: whole + length(1 << 36) + bytes(99), "record 3, which is cut short"),
    "of 2**64 - 1 bytes": (lambda whole: whole + length((1 << 64) - 1) + bytes(99), "record 3, which is cut short"),
    "wrong checksum": (
        lambda whole: whole.replace(JPEGS[1][-60:-40], bytes(20)),
        "record 1, which has a wrong checksum",
    ),
    "wrong length": (lambda whole: whole[:-1] + b"\xff", "record 2, which has a wrong checksum"),
    "cut": (lambda whole: whole[:-100], "record 2, which is cut short"),
    "cut in a length": (lambda whole: whole + whole[:1], "record 3, which is cut short"),
    "cut in a header": (lambda whole: whole + whole[:11], "record 3, which is cut short"),
    "compressed": (lambda whole: b"\x1f\x8b" + whole, "compressed"),
}


@pytest.mark.parametrize("how", BAD_RECORDS)
def test_broken_tfrecord_is_named_with_its_record(tmp_path, how):
    change, words = BAD_RECORDS[how]
    path = write_tfrecord(tmp_path / "a.tfrecord", records_of(0, 1, 0))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"a\.tfrecord, {words}" if how != "compressed" else words):
        open_source(path)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"no protobuf", "record 2, which is none"),
        (example(image__encoded=JPEGS[2])[:-30], "record 2, which is none"),
        (example(caption=b"a"), "record 2 with the fields caption"),
        (example(image__encoded=[JPEGS[2], JPEGS[3]], label=1), "record 2 with the fields"),
        (example(image__encoded=JPEGS[2]), "record 2 with image/encoded, no label, and"),
        (
            example(image__encoded=JPEGS[2], image__class__label=1, label=2),
            "record 2 with '1' in .*label and '2' in label",
        ),
        (
            example(image__encoded=JPEGS[2], image__class__label=1.0),
            "record 2 with image/encoded, image/class/label of floats, and",
        ),
        (
            example(image__encoded=JPEGS[2], image__class__label=[1, 2]),
            "row '000000002', read from image/encoded, image/class/label. A label is one",
        ),
        (example(image__encoded=JPEGS[2], image__class__label=[b"a", b"b"]), "row '000000002'"),
        (example(image=JPEGS[2], label=1), "record 2 with image, label, and image/encoded, image/class/label before"),
    ],
)
def test_record_that_is_no_good_is_named(tmp_path, record, words):
    path = write_tfrecord(tmp_path / "a.tfrecord", [*records_of(0, 1), record])
    with pytest.raises(ValueError, match=rf"a\.tfrecord, {words}"):
        open_source(path)


def table(photos=None, **columns):
    image = photos or [{"bytes": photo, "path": f"{number}.jpg"} for number, photo in enumerate(JPEGS)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if isinstance(image[0], dict) else pa.binary()
    given = {"image": pa.array(image, kind), "label": pa.array(LABELS)} | columns
    return pa.table({name: column for name, column in given.items() if column is not None})


NAMED = json.dumps(
    {"info": {"features": {"img": {"_type": "Image"}, "kind": {"_type": "ClassLabel", "names": ["a", "b"]}}}}
)
WAYS = {
    "snappy": {"compression": "snappy"},
    "zstd, small groups": {"compression": "zstd", "row_group_size": 2},
    "plain": {"compression": "NONE", "use_dictionary": False, "row_group_size": 4},
    "dictionary": {"compression": "NONE", "use_dictionary": True},
    "small pages": {"compression": "NONE", "use_dictionary": False, "data_page_size": 64, "data_page_version": "2.0"},
}


@pytest.mark.parametrize("way", WAYS)
def test_photos_of_parquet_are_found_however_it_is_written(way, tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet", **WAYS[way])
    assert read(tmp_path / "a.parquet") == pairs()
    copies = set((cache_dir() / "shards").glob("*.photos"))
    assert bool(copies) == ("zstd" in way or way == "snappy")
    if copies:
        copies.pop().unlink()  # from a cache that was cleared
        assert read(tmp_path / "a.parquet") == pairs()
        pq.write_table(table(label=pa.array([1 - label for label in LABELS])), tmp_path / "a.parquet", **WAYS[way])
        with pytest.warns(UserWarning, match="1 shard.* changed"):
            assert read(tmp_path / "a.parquet") == pairs("10")
        assert len(set((cache_dir() / "shards").glob("*.photos"))) == 1


def test_columns_of_others_are_found_in_parquet(tmp_path):
    renamed = table().rename_columns(["img", "kind"]).replace_schema_metadata({"huggingface": NAMED})
    pq.write_table(renamed, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == pairs("ab")
    for number, kinds in enumerate(([0.0, 1.0], [b"0", b"1"], [["0"], ["1"]], [False, True])):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table(label=pa.array([kinds[label] for label in LABELS])), path)
        assert read(path) == pairs("01" if number < 3 else ["False", "True"])
    pq.write_table(table(JPEGS).rename_columns(["jpg", "cls"]), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == pairs()
    pq.write_table(table(label=pa.array(["cd"[label] for label in LABELS])), tmp_path / "c.parquet")
    assert read(tmp_path / "c.parquet") == pairs("cd")
    assert len(list(shard_photos(f"{tmp_path}/a.par*"))) == 6
    pq.write_table(table([{"bytes": photo, "path": "photo.jpg"} for photo in JPEGS]), tmp_path / "d.parquet")
    assert read(tmp_path / "d.parquet") == pairs()
    assert len(dict(shard_photos(tmp_path / "d.parquet"))) == 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": None}, r"a\.parquet, with the columns label \(int64\)"),
        ({"label": None}, r"must have a label.*a\.parquet, row '0.jpg'"),
        ({"label": pa.array([0, 1, None, 1, 1, 1])}, r"must have a label.*a\.parquet, row '2.jpg'"),
        ({"label": pa.array([0.5] * 6)}, "must have a label.*row '0.jpg', read from image, label double. A label is"),
        (
            {"label": pa.array([b"\xff"] * 6)},
            "must have a label.*row '0.jpg', read from image, label binary",
        ),
        ({"label": pa.array([[0, 1]] * 6)}, "must have a label.*label list.*--task multi-label"),
        ({"image": None, "path": pa.array(["0.jpg"] * 6)}, r"path \(string\). Photos are read by paths.*\.csv"),
        (
            {"photos": [{"bytes": None, "path": "0.jpg"}] * 6},
            "whose column image has none. Photos are read by",
        ),
    ],
)
def test_parquet_that_is_no_good_is_named(tmp_path, given, words):
    pq.write_table(table(**given), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"(?s){words}"):
        open_source(tmp_path)


def test_second_column_of_photos_or_labels_is_reported(tmp_path):
    more = {"jpg": pa.array(JPEGS[::-1]), "target": pa.array([1] * 6), "Split": pa.array(["train"] * 6)}
    more["Label"] = pa.array([1] * 6)
    pq.write_table(table(**more), tmp_path / "a.parquet")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read(tmp_path) == pairs()
    assert [str(each.message) for each in caught] == [
        "Parquet shards have several columns of photos: image is read, and jpg left out.",
        "Parquet shards have several columns of labels: label is read, and target, Label left out.",
        "Parquet shards have a column split, which is not read: names of files or folders say the split.",
    ]


def test_second_photo_of_a_record_is_reported(tmp_path):
    records = [example(image=photo, png=JPEGS[0], jpg=b"a path", label=n % 2) for n, photo in enumerate(JPEGS)]
    write_tfrecord(tmp_path / "a.tfrecord", records)
    with pytest.warns(UserWarning, match=r"1 member\(s\) or field\(s\) of shards not read, .* as .*a\.tfrecord:png\."):
        assert len(read(tmp_path)) == len(JPEGS)


def test_damaged_parquet_and_shards_of_other_schemas_are_named(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    pq.write_table(table(label=pa.array(["a"] * 6)), tmp_path / "b.parquet")
    with pytest.raises(
        ValueError, match=r"b\.parquet, with image, label string, and a\.parquet with image, label int64"
    ):
        open_source(tmp_path)
    pq.write_table(table(), tmp_path / "b.parquet")
    whole = (tmp_path / "b.parquet").read_bytes()
    with pytest.warns(UserWarning, match="1 shard"):
        assert sum(open_source(tmp_path, on_bad_image="raise").sizes.values()) == 12
    for damaged in (whole[:-200], whole[:300], b""):
        (tmp_path / "b.parquet").write_bytes(damaged)
        (tmp_path / NAME).unlink(missing_ok=True)
        with pytest.raises(ValueError, match=r"b\.parquet, .*[^.]\. Bring it again(, or remove it)?\.$"):
            open_source(tmp_path)


def test_labels_of_numpy_and_text_are_one(tmp_path):
    records = [example(image=JPEGS[n], label=np.int64(label)) for n, label in enumerate(LABELS)]
    write_tfrecord(tmp_path / "a.tfrecord", records)
    (tmp_path / "classes.txt").write_text("a\nb\n\n")
    assert read(tmp_path) == pairs("ab")
    (tmp_path / "classes.txt").write_text("a\n\nb\n")
    with pytest.raises(ValueError, match=r"classes\.txt, whose line 2 is empty"):
        read(tmp_path)
    (tmp_path / "classes.txt").write_text("a\nb\0c\n")
    with pytest.raises(ValueError, match=r"has no NUL.\n.*'b\\x00c' for class 1"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("lines", "warns"),
    [
        (["0 cat", "1 dog"], 1),
        (["1: cat", "2: dog"], 1),
        (["1\tdog", "0\tcat"], 1),
        (["1,cat", "2,dog"], 1),
        (["0 cat", "dog"], 0),
        (["3 series", "5 series"], 0),
        (["0", "1"], 0),
        (["1st", "2nd"], 0),
    ],
)
@pytest.mark.parametrize("name", ["classes.txt", "labels.json"])
def test_names_that_begin_with_numbers_are_read_with_them_and_a_line_says_so(tmp_path, recwarn, lines, warns, name):
    records = [example(image=JPEGS[n], label=label) for n, label in enumerate(LABELS)]
    write_tfrecord(tmp_path / "a.tfrecord", records)
    (tmp_path / name).write_text(json.dumps(lines) if name.endswith("json") else "\n".join(lines))
    assert open_source(tmp_path).class_names == tuple(lines)
    found = [str(each.message) for each in recwarn if "begin with numbers" in str(each.message)]
    assert len(found) == warns
    assert all(name in words and ascii(lines[0]) in words for words in found)


@pytest.mark.parametrize("form", ["plain", "snappy"])
def test_row_without_a_photo_is_a_bad_image_like_any_other(tmp_path, form):
    rows = table().to_pylist()
    rows[2], rows[4]["image"] = {"image": None, "label": None}, {"bytes": None, "path": "x.jpg"}
    pq.write_table(pa.Table.from_pylist(rows, table().schema), tmp_path / "a.parquet", **WAYS.get(form, {}))
    with pytest.warns(UserWarning, match="2 empty file, as .*a.parquet"):
        source = open_source(tmp_path)
    assert (sum(source.sizes.values()), len(source.bad_images)) == (4, 2)
    assert [read() for _, read in shard_photos(tmp_path)] == [*JPEGS[:2], b"", JPEGS[3], b"", JPEGS[5]]


def test_parquet_whose_photos_inflate_is_refused_before_they_are_read(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    photos_of, read_photos = parquet._photos, []
    monkeypatch.setattr(parquet, "_ROOM", 2**20)
    monkeypatch.setattr(parquet, "_photos", lambda *given: read_photos.append(given) or photos_of(*given))
    noise = JPEGS[0] + np.random.default_rng(0).bytes(2**18)  # so that the whole inflates to less than 50 times
    inflating = JPEGS[0] + bytes(2**22)
    for photos, form in (([inflating] * 6, "gzip"), ([inflating], "zstd"), ([noise, inflating], "zstd")):
        pq.write_table(table(photos, label=None), path, compression=form, use_dictionary=False)
        with pytest.raises(
            ValueError, match=r"(?s)group of rows of more.*8 times.*columns inflate from.*smaller groups"
        ):
            open_source(path)
    assert not read_photos
    monkeypatch.setattr(parquet, "_photos", photos_of)
    monkeypatch.setattr(parquet, "_LARGE_PHOTO", 2**18)
    pq.write_table(table([noise] * 40, label=None), path, dictionary_pagesize_limit=2**20)
    with pq.ParquetFile(path) as file:
        assert parquet._rows_at_once(file, "image", 0) == 1  # as each row is 2**18 bytes, whatever the mean
    pq.write_table(table([JPEGS[0]] * 6000, label=None), path)  # 6000 times by a dictionary
    with pytest.raises(ValueError, match="columns inflate from"):
        list(shard_photos(path))
    assert not list((cache_dir() / "shards").glob("*.photos"))


def test_names_of_a_parquet_that_no_column_or_another_list_has_are_named(tmp_path):
    renamed = table().rename_columns(["img", "kind"]).replace_schema_metadata({"huggingface": NAMED})
    pq.write_table(renamed, tmp_path / "a.parquet")
    (tmp_path / "labels.json").write_text('["a", "b"]')
    assert read(tmp_path) == pairs("ab")
    (tmp_path / "labels.json").write_text('["b", "a"]')
    with pytest.raises(ValueError, match=r"must be equal.*\n.*labels\.json, which differs from .*a\.parquet"):
        open_source(tmp_path)
    (tmp_path / "labels.json").unlink()
    pq.write_table(table().replace_schema_metadata({"huggingface": NAMED}), tmp_path / "a.parquet")
    (tmp_path / NAME).unlink()
    with pytest.warns(UserWarning, match="a column 'kind' that is not there, and not read. Call it 'label'"):
        assert read(tmp_path) == pairs()


@pytest.mark.parametrize("column", ["image", "label"])
def test_doubled_column_of_a_parquet_is_named(tmp_path, column):
    pq.write_table(table().append_column(column, table()[column]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"names of their own.*\n.*two columns '{column}'"):
        open_source(tmp_path)


def test_encrypted_parquet_and_metadata_of_strangers_are_no_foreign_errors(tmp_path):
    path = tmp_path / "a.parquet"
    for text in ("[]", '{"info": []}', '{"info": {"features": [1]}}', "[" * 100_000):
        pq.write_table(table().replace_schema_metadata({"huggingface": text}), path)
        (tmp_path / NAME).unlink(missing_ok=True)
        assert read(tmp_path) == pairs()
    names = {"label": {"_type": "ClassLabel", "names": ["a", "a"]}}
    text = json.dumps({"info": {"features": names}})
    pq.write_table(table().replace_schema_metadata({"huggingface": text}), path)
    (tmp_path / NAME).unlink()
    with pytest.raises(ValueError, match="class names must differ"):
        open_source(tmp_path)
    for names in (["a", None], ["a", 1], {"0": "a"}, "ab"):
        text = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}})
        pq.write_table(table().replace_schema_metadata({"huggingface": text}), path)
        (tmp_path / NAME).unlink(missing_ok=True)
        with pytest.warns(UserWarning, match=r"^class names of Parquet shards not understood \(.*a"):
            assert read(tmp_path) == pairs()
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")
    (tmp_path / NAME).unlink()
    with pytest.raises(ValueError, match=r"must not be encrypted"):
        open_source(tmp_path)


def test_parquet_with_encrypted_columns_is_refused_before_pyarrow_ends_the_process(tmp_path):
    import pyarrow.parquet.encryption as encryption

    class Keys(encryption.KmsClient):
        def __init__(self, _):
            encryption.KmsClient.__init__(self)

        def wrap_key(self, key, _):
            return base64.b64encode(key)

    config = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["label"]}, plaintext_footer=True)
    factory = encryption.CryptoFactory(Keys)
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table().schema, encryption_properties=keys) as writer:
        writer.write_table(table())
    length = int.from_bytes(path.read_bytes()[-8:-4], "little")
    assert length - pq.ParquetFile(path).metadata.serialized_size == 28
    with pytest.raises(ValueError, match=r"must not be encrypted.*\n.*a\.parquet"):
        open_source(tmp_path)


def test_cache_that_cannot_be_written_or_found_is_named_where_it_is_needed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "a").mkdir()
    monkeypatch.setenv("KERAS_VIT_CACHE", f"{tmp_path}/file/cache")
    pq.write_table(table(), tmp_path / "a" / "a.parquet", **WAYS["snappy"])
    with pytest.raises(ValueError, match=r"must be writable.*\n.*Not a directory at .*Set KERAS_VIT_CACHE"):
        open_source(tmp_path / "a")
    monkeypatch.delenv("KERAS_VIT_CACHE")
    homeless = RuntimeError("Could not determine home directory.")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: (_ for _ in ()).throw(homeless))
    with pytest.raises(ValueError, match=r"must be writable.*\n.*home directory.*\n?.*KERAS_VIT_CACHE"):
        open_source(tmp_path / "a")
    pq.write_table(table(), tmp_path / "a" / "a.parquet", **WAYS["plain"])
    assert read(tmp_path / "a") == pairs()


def test_download_of_a_data_set_of_the_hub_opens_and_other_folders_of_shards_are_named(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("# Beans")
    for split in ("train", "test"):
        pq.write_table(table(), tmp_path / "data" / f"{split}-00000-of-00001.parquet", **WAYS["plain"])
    with pytest.warns(UserWarning, match="more than one split"):
        assert open_source(tmp_path).sizes == {"train": 6, "test": 6}
    with pytest.warns(UserWarning, match="are copies of others"):
        assert len(list_photos(tmp_path).entries) == 12
    (tmp_path / "data").rename(tmp_path / "default")
    with pytest.raises(ValueError, match=r"Shards lie in 'default': pass '.*default'"):
        open_source(tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'default'"):
        open_source(tmp_path / "defalt")
    (tmp_path / "data").mkdir()
    (tmp_path / "default").rename(tmp_path / "data" / "default")
    with pytest.raises(ValueError, match=r"Shards lie in 'data/default': pass '.*data/default'\."):
        open_source(tmp_path)
