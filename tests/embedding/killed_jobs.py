"""A job as a process of its own, that is killed at random and begun again."""

import os
import signal
import subprocess
import sys

import psutil
from conftest import ROOT

WAIT = 60  # seconds for processes to end, on a busy machine


def start(*words):
    """A command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "keras_vit", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def parts_of(out):
    return {path.name: path.read_bytes() for path in out.glob("part-*")}


def kill_and_go_on(command, out, victims, chance):
    """Runs a command until it ends well; meanwhile kills these in turn, each once another part or two are there."""
    victims = list(victims)
    while True:
        process = start(*command, "--out", out)
        while victims and process.poll() is None:
            until = len(parts_of(out)) + chance.choice((1, 2))
            while process.poll() is None and len(parts_of(out)) < until:
                pass
            workers = psutil.Process(process.pid).children() if process.poll() is None else []
            if not workers:
                continue
            if victims.pop(0) == "worker":
                os.kill(chance.choice(workers).pid, signal.SIGKILL)
            else:
                process.kill()
                process.wait(WAIT)
                assert not psutil.wait_procs(workers, timeout=WAIT)[1], "workers outlive their supervisor"
        said = process.communicate(timeout=600)[0]
        if process.returncode == 0:
            if not victims:
                return
            for part in list(out.glob("part-*"))[1:]:  # the job outran this process, which others kept waiting
                part.unlink()
            continue
        assert process.returncode == -signal.SIGKILL, said
