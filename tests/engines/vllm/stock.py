"""What runs in stock vLLM: a fleet, a model, and the environment of the programs that run there."""

import contextlib
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "tests/support"), str(ROOT / "tests/e2e")]
import ctl_fleet  # noqa: E402
import ports  # noqa: E402
import venv  # noqa: E402
import venvs  # noqa: E402

NO_HEADERS = f"{sys.executable} has no Python.h, with which PyTorch compiles"


def has_headers():
    return pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists()


def plugin(folder):
    """What pip would have installed of the plug-in: the entry point by which vLLM finds it."""
    metadata = folder / "ckv_vllm-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ckv-vllm\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nckv = ckv_vllm:register\n")
    return folder


class Fleet(ctl_fleet.Fleet):
    """A directory and three holders; if `cached`, also a cache of this host.

    holders  process ids of the holders, and of the cache behind them
    metrics  where their metrics are, in the same order
    cache    the cache's address, "" if there is none
    """

    def __init__(self, folder, capacity="256MiB", cached=False):
        self.folder, self.processes, self.durable = folder, [], False
        self.directory = self.start("directory", "--role=directory")
        self.holders, self.metrics, self.cache = [], [], ""
        for i in range(3):
            self.hold(f"h{i}", "--role=holder", f"--store-capacity={capacity}")
        if cached:
            self.cache = self.hold("cache", "--role=holder,requester", "--store-capacity=64MiB", "--replicas-percent=50")

    def hold(self, name, *arguments):
        self.metrics.append(f"127.0.0.1:{ports.free_port()}")
        address = self.start(name, f"--directory={self.directory}", f"--metrics-address={self.metrics[-1]}", *arguments)
        self.holders.append(self.processes[-1].pid)
        return address


class Stock:
    """vLLM with the plug-in, and models for it. Raises venv.Unavailable where vLLM cannot be had."""

    def __init__(self, folder, library, version=None):
        self.python, self.folder = venv.python(version=version), folder
        paths = [HERE / "rope_fix", plugin(folder / "site"), ROOT / "client/bindings/python"]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **venvs.kept_bytecode(self.python),
                            "CKV_LIBRARY": str(library), "VLLM_PLUGINS": "ckv"}

    def model(self, layers):
        """The folder of a model of so many layers; made once."""
        made = self.folder / f"model-{layers}"
        if not made.exists():
            subprocess.run([self.python, HERE / "make_model.py", made, str(layers)], check=True)
        return made

    def run(self, script, case, model, fleet, timeout, **options):
        """Runs a program of this folder over a fleet."""
        return subprocess.run(
            [self.python, HERE / script, case, "--model", model, "--directory", fleet.directory, "--ckvctl",
             ctl_fleet.PROGRAMS.ckvctl, "--directory-pid", str(fleet.processes[0].pid), "--holders", ",".join(map(str, fleet.holders)),
             "--metrics", ",".join(fleet.metrics), "--cache", fleet.cache],
            env=self.environment, timeout=timeout, check=False, **options)


@contextlib.contextmanager
def fleet(**options):
    with tempfile.TemporaryDirectory(prefix="ckv-vllm-") as name:
        one = Fleet(pathlib.Path(name), **options)
        try:
            yield one
        finally:
            one.stop()
