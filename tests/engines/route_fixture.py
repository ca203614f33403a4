"""What llama_route_e2e.py runs: a fleet whose holders it kills, and processes with stock llama.cpp."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
import ctl_fleet  # noqa: E402
import llama_e2e as base  # noqa: E402

CHUNK = 256
TIMEOUT_S = 120
# The backend (libggml-ckv.so) and the compiler of programs that embed the engine.
PROGRAMS = argparse.Namespace(backend=None, cxx=None, target=None)


def kernel_targets():
    """What this processor has, the best first."""
    run = subprocess.run([ctl_fleet.PROGRAMS.ckvd, "--role=directory", "--kernel-target=none"],
                         capture_output=True, text=True, timeout=TIMEOUT_S)
    return re.search(r"there are (.*); or take auto", run.stderr).group(1).split(", ")


def kernel_target():
    """One that all processes are given. Each would choose by a measurement, which other load may turn
    around, and equal bits are promised within one target."""
    if PROGRAMS.target is None:
        there = kernel_targets()
        PROGRAMS.target = "AMX" if "AMX" in there else there[0]
    return PROGRAMS.target


class Fleet(ctl_fleet.Fleet):
    """Holders of these fabrics, which keep their chunks over a restart."""

    def __init__(self, folder, holders, fabrics, capacity="64MiB"):
        self.fabrics, self.capacity = fabrics, capacity
        folder.mkdir()
        super().__init__(folder, holders, durable=True)

    def start_holder(self, index):
        self.holder = getattr(self, "holder", {})
        self.start(f"h{index}", "--role=holder", f"--directory={self.directory}",
                   f"--store-capacity={self.capacity}", f"--store-path={self.store(index)}",
                   f"--fabrics={self.fabrics}", f"--kernel-target={kernel_target()}")
        self.holder[index] = self.processes[-1]

    def kill_holder(self, index):
        self.holder[index].kill()
        self.holder[index].wait()
        self.processes.remove(self.holder.pop(index))

    def ctl(self, *arguments):
        run = subprocess.run([ctl_fleet.PROGRAMS.ckvctl, f"--requester={self.requester}",
                              f"--directory={self.directory}", *map(str, arguments), "-o", "json"],
                             capture_output=True, text=True, timeout=TIMEOUT_S)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def load(self, name, state, *arguments, chunk=CHUNK):
        self.ctl("corpus", "load", name, state, "--geometry", state.parent / "geometry.json",
                 "--chunk-tokens", chunk, *arguments)

    def attach(self, corpus, *arguments, streams=1):
        path = self.folder / f"{corpus}-{streams}{'-'.join(map(str, arguments))}.ggsq"
        if not path.exists():
            self.ctl("attach", "--corpus", corpus, "--out", path, "--streams", streams, *arguments)
        return path


class Engine:
    """A process with libllama, which does one thing at a time."""

    def __init__(self, test, fleet=None, backend=True, settings=None, **options):
        self.test = test
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("CKV_", "GGML_"))}
        if backend:
            environment["GGML_BACKEND_PATH"] = str(PROGRAMS.backend)
            environment["CKV_GGML_KERNEL_TARGET"] = kernel_target()
            environment.update(sanitizer())
        if fleet is not None:
            environment["CKV_DIRECTORY"] = fleet.directory
        environment.update(settings or {})
        self.log = test.folder / "engine.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [test.driver, test.engine.libraries, test.model,
                 *(f"{key}={value}" for key, value in options.items())],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True)
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the engine ended:\n{self.log.read_text()}"
        return answer.strip()

    def done(self, *words):
        answer = self.ask(*words)
        assert answer.startswith("ok"), f"{words}: {answer}\n{self.log.read_text()}"
        return answer[3:]

    def try_decode(self, tokens):
        """(code, logits) of one batch of (sequence, position, token)."""
        out = self.test.folder / "batch.logits"
        answer = self.ask("decode", out, *(f"{s}:{p}:{t}" for s, p, t in tokens)).split()
        assert answer[0] == "rc", answer
        code = int(answer[1])
        values = base.floats(out) if code == 0 else []
        count = base.VOCABULARY
        return code, [values[i:i + count] for i in range(0, len(values), count)]

    def decode(self, tokens):
        code, logits = self.try_decode(tokens)
        assert code == 0, f"rc {code}\n{self.log.read_text()}"
        return logits

    def one(self, sequence, position, token):
        return self.decode([(sequence, position, token)])[0]

    def prefill(self, sequence, tokens, position=0):
        for begin in range(0, len(tokens), 512):
            part = tokens[begin:begin + 512]
            logits = self.decode([(sequence, position + begin + i, token)
                                  for i, token in enumerate(part)])
        return logits

    def suffix(self, sequence, position):
        """The logits of the suffix, in one batch."""
        return self.decode([(sequence, position + i, token)
                            for i, token in enumerate(self.test.suffix_tokens)])

    def counter(self, name):
        return int(self.done("counter", name))


def sanitizer():
    """What a program needs that loads a backend with AddressSanitizer."""
    needed = subprocess.run(["readelf", "-d", PROGRAMS.backend], capture_output=True, text=True,
                            check=True).stdout
    preloads = []
    for name in re.findall(r"\[(lib[au]san\.so\.\d+|libclang_rt\.asan-\w+\.so)\]", needed):
        found = subprocess.run([PROGRAMS.cxx, f"-print-file-name={name}"], capture_output=True,
                               text=True, check=True).stdout.strip()
        preloads.append(found)
    if not preloads:
        return {}
    # The engine's own leaks are not ours to test.
    return {"LD_PRELOAD": ":".join(preloads), "ASAN_OPTIONS": "detect_leaks=0"}
