"""The pages "Write your own": their diffs apply to the package, together, and their blocks print what they say."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, run_python

TEXTS = {page.stem: page.read_text() for page in sorted((ROOT / "docs").glob("own_*.md"))}
MOST_WORDS = 400  # of a page without its blocks
MARK = "=== next block ==="
BLOCKS = [
    (name, code, output)
    for name, text in TEXTS.items()
    for code, output in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
]

RUN = f"""
import json, os, sys
os.chdir(sys.argv[1])
names = {{}}
for page, code, _ in json.load(open("blocks.json")):
    exec(compile(code, page, "exec"), names.setdefault(page, {{"__name__": page}}))
    print({MARK!r})
"""


def test_pages_are_there_and_short():
    words = {name: len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) for name, text in TEXTS.items()}
    assert len(words) == 7
    assert {name: count for name, count in words.items() if count > MOST_WORDS} == {}


@pytest.mark.docs
@pytest.mark.timeout(600)
def test_diffs_apply_together_and_blocks_print_what_pages_say(tmp_path):
    shutil.copytree(ROOT / "keras_vit", tmp_path / "keras_vit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "test_switches.py", tmp_path / "tests")
    for name, text in TEXTS.items():
        for diff in re.findall(r"```diff\n(.*?)```", text, re.DOTALL):
            done = subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{name}: {done.stderr}"
    (tmp_path / "blocks.json").write_text(json.dumps(BLOCKS))
    printed = run_python(RUN, tmp_path, backend="tensorflow", PYTHONPATH=str(tmp_path), timeout=500)
    said = printed.split(f"{MARK}\n")
    assert [(name, said[place]) for place, (name, _, output) in enumerate(BLOCKS)] == [
        (name, output) for name, _, output in BLOCKS
    ]
