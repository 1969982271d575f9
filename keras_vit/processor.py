"""Facts of the processor: its name and its instruction sets."""

import hashlib
from pathlib import Path

_FACTS = Path("/proc/cpuinfo")


def processor_facts(text: str | None = None) -> dict[str, str]:
    """Names and values, those of the first core; empty where the system is not Linux.

    Args:
        text: as in /proc/cpuinfo; by default that of this machine.
    """
    if text is None:
        text = _FACTS.read_text() if _FACTS.exists() else ""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def processor_flags(text: str | None = None) -> frozenset[str]:
    """Linux' names of instructions, as `avx512_vnni`; empty elsewhere.

    Args:
        text: as in /proc/cpuinfo; by default that of this machine.
    """
    return frozenset(processor_facts(text).get("flags", "").split())


def cpu_fingerprint() -> str:
    """A name that is another one where code for this processor may not run, as in a home folder of several machines."""
    facts = processor_facts()
    return hashlib.sha256(repr([facts.get(name) for name in ("model name", "flags")]).encode()).hexdigest()[:16]
