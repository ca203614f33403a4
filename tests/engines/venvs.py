"""Virtual environments of engines from PyPI: in the cache, made once, by uv."""

import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

import engines

UV = "uv==0.13.9"
TIMEOUT_S = 400
PYTHON = "/usr/bin/python3"


class Unavailable(Exception):
    """An engine is not to be had here; the text says why."""


def run(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took more than {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(map(str, command[:4]))}: exit code {done.returncode}: "
                          f"{' '.join(done.stdout.split())[-400:]}")


def install(folder, requirements, base):
    """Into a folder that does not exist. uv takes a third of pip's time, and links what it has."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made, tools = pathlib.Path(name) / "venv", pathlib.Path(name) / "tools"
        run([PYTHON, "-m", "pip", "install", "--quiet", "--target", tools, UV])
        # By itself uv knows no certificates but its own, and a company's network has others.
        uv = [tools / "bin" / "uv", "--quiet", "--system-certs", "--cache-dir", pathlib.Path(name) / "uv"]
        run([*uv, "venv", "--relocatable", "--python", PYTHON, made])
        run([*uv, "pip", "install", "--no-deps", "--python", made / "bin" / "python", "--requirement", requirements])
        if base is not None:
            (packages(made) / "base.pth").write_text(f"{packages(base)}\n")
        os.replace(made, folder)


def packages(folder):
    """Where an environment has its packages."""
    (found,) = folder.glob("lib/python3*/site-packages")
    return found


def python(name, requirements, free_bytes_min, base=None, cache=None):
    """The Python of the environment that `requirements` pins. Raises Unavailable.

    base  the Python of another environment, whose packages are behind its own
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable("the pinned wheels are for Linux on x86-64")
    cache = pathlib.Path(cache or engines.default_cache()).absolute()
    below = base and base.parents[1]
    pins = requirements.read_bytes() + (below.name.encode() if below else b"")
    folder = cache / f"{name}-{hashlib.sha256(pins).hexdigest()[:12]}"
    with engines.locked(cache):
        if not folder.exists():
            for older in cache.glob(f"{name}-*"):
                shutil.rmtree(older)  # gigabytes of other pins
            if shutil.disk_usage(cache).free < free_bytes_min:
                raise Unavailable(f"{cache} has less than {free_bytes_min >> 30} GiB free")
            install(folder, requirements, below)
    return folder / "bin" / "python"


def kept_bytecode(python):
    """What a program's environment has, so that its modules are compiled once: 10 s of each start otherwise.

    They go into a folder of the cache: the source tree stays as it is.
    """
    return {"PYTHONPYCACHEPREFIX": str(python.parents[1] / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
