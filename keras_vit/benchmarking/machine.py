"""What a row says of where it was measured: the processor, the time, the commit."""

import datetime
import platform
import subprocess
from pathlib import Path

from keras_vit.checks import cores
from keras_vit.processor import processor_facts, processor_flags

_FLAGS = {"avx512_bf16": "avx512_bf16", "amx": "amx_bf16"}  # field, and the flag of Linux


def machine(text: str | None = None) -> dict:
    """The processor's name, how many cores this process has, and whether it has AVX-512's bfloat16 and AMX.

    Args:
        text: as in /proc/cpuinfo; by default that of this machine.
    """
    found, flags = processor_facts(text), processor_flags(text)
    name = found.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in found:  # a virtual machine may tell no more than "AMD EPYC"
        name += f", family {found['cpu family']} model {found.get('model')}"
    return {"machine": name, "cores": len(cores()), **{field: flag in flags for field, flag in _FLAGS.items()}}


def now() -> str:
    """The time, in UTC."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def commit(package: Path = Path(__file__).parents[1]) -> str:
    """The commit that the package is at, with a + for changes to it; empty unless a repository holds it."""

    def git(*words):
        done = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != package.parent or not git("ls-files", "."):
            return ""  # of somebody else, around where the package is installed
        return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain", "."))
    except (OSError, subprocess.CalledProcessError):
        return ""
