"""A job as a process of its own, that is killed at random and begun again."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import psutil
from conftest import ROOT

WAIT = 60  # seconds for processes to end, on a busy machine
ENDS = {  # exit code and words of a job, by what was killed
    "worker": (1, r"error: each process .* was ended by SIGKILL while it .* Run the same command, which goes on\."),
    "job": (-signal.SIGKILL, ""),
    "interrupt": (130, "error: interrupted\n$"),
}


def start(*words):
    """A command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "keras_vit", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def parts_of(out):
    return {path.name: path.read_bytes() for path in out.glob("part-*")}


def workers_of(process):
    """The processes of a job that compute, which Python starts by `spawn_main`."""
    found = []
    for each in psutil.Process(process.pid).children() if process.poll() is None else ():
        with contextlib.suppress(psutil.Error):  # which has just ended
            if "spawn_main" in " ".join(each.cmdline()):
                found.append(each)
    return found


def kill_and_go_on(command, out, victims, chance):
    """Runs a command until it ends well; each time before, kills one of these once another part or two are there."""
    victims = list(victims)
    while True:
        process = start(*command, "--out", out)
        until = len(parts_of(out)) + chance.choice((1, 2))
        while victims and process.poll() is None and len(list(out.glob("part-*"))) < until:
            time.sleep(0.002)
        victim, workers = None, workers_of(process)
        if victims and workers:
            victim = victims.pop(0)
            hit = chance.choice(workers) if victim == "worker" else process
            with contextlib.suppress(psutil.Error):
                hit.send_signal(signal.SIGINT if victim == "interrupt" else signal.SIGKILL)
        said = process.communicate(timeout=600)[0]
        assert not psutil.wait_procs(workers, timeout=WAIT)[1], "workers outlive their job"
        if process.returncode == 0:
            if not victims:
                return
            for part in list(out.glob("part-*"))[1:]:  # the job outran this process, which others kept waiting
                part.unlink()
            continue
        code, words = ENDS[victim]
        assert process.returncode == code, said
        assert re.search(words, said), said
