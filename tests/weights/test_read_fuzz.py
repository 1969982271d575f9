"""Damaged files by the thousand, in a process of its own that holds the reader and nothing else."""

import json
import sys

import pytest
from conftest import ROOT, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts peak memory in KiB")
MOST_MEMORY = 50e6  # bytes above the imports


def hunt(**arguments):
    code = (
        "import json, sys, warnings\n"
        f"warnings.simplefilter('error'); sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "import mutations; print(json.dumps(mutations.hunt(**json.loads(sys.argv[1]))))"
    )
    return json.loads(run_python(code, json.dumps(arguments)))


def test_reader_refuses_or_gives_the_truth_for_20_000_damaged_files():  # N1 to N4, N7 to N9
    found = hunt(seed=7, files=20_000)
    assert found["memory"] < MOST_MEMORY
    assert 500 < found["accepted"] < 10_000, "the damage is too hard or too soft to tell anything"


@pytest.mark.slow
def test_reader_refuses_or_gives_the_truth_for_a_minute(capsys):
    found = hunt(seed=None, seconds=60)
    with capsys.disabled():
        print(f"\n{found['per_minute']:.0f} damaged files a minute, {found['memory'] / 1e6:.1f} MB above the import")
    assert found["memory"] < MOST_MEMORY
