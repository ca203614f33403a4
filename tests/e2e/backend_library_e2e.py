#!/usr/bin/python3
"""Goal: one ckvd computes with and without a GPU library next to it. A library that cannot be used is
reported, and never used in part.

Method: ckvd in folders laid out as an install, next to libraries of tests/support/stand_in, which
compute on the processor but report a GPU. A fleet on loopback, compared with attention in float64.

    python3 tests/e2e/backend_library_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl \\
        --stand-ins build/dev/stand_in
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import D_QK, D_V, LAYERS, PROGRAMS, Fleet, Rows, attend, floats, from_bf16, read_safetensors, write_safetensors

TARGET = "CUDA_SM90"
TOKENS = 90


class BackendLibraryTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-backend-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.plain = PROGRAMS.ckvd

        def restore():
            PROGRAMS.ckvd = self.plain
        self.addCleanup(restore)

    def install(self, library, place="bin"):
        """Installs a ckvd next to this library, or without one. Fleets started later use it."""
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for name in ("bin", "lib/ckv"):
            (root / name).mkdir(parents=True)
        program = root / "bin" / "ckvd"
        try:
            os.link(self.plain, program)
        except OSError:  # another file system
            shutil.copy(self.plain, program)
        if library:
            shutil.copy(PROGRAMS.stand_ins / library / "libckv_cuda.so", root / place)
        PROGRAMS.ckvd = program
        return root

    def start_fleet(self):
        self.fleet = Fleet(self.folder, holders=0)
        self.addCleanup(self.fleet.stop)

    def start(self, name, *arguments, role="holder"):
        return self.fleet.start(name, f"--role={role}", f"--directory={self.fleet.directory}",
                                "--store-capacity=64MiB", *arguments)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def ctl(self, *arguments, requester=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = requester or self.fleet.requester
        done = subprocess.run([PROGRAMS.ckvctl, *map(str, arguments), "-o", "json"], env=env,
                              timeout=120, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def kernels(self):
        status = self.ctl("status")
        return {h["id"]: h["kernel_target"] for h in status["holders"]}

    def check_answers(self, requester=None):
        rows = Rows(1, TOKENS, 0)
        path = self.folder / "rows.safetensors"
        rows.write(path)
        self.ctl("corpus", "load", "docs", path, "--chunk-tokens", 32)
        queries = Rows(2, 6, 0)
        query_path, out = self.folder / "queries.safetensors", self.folder / "partial.safetensors"
        write_safetensors(query_path, {"q": ("BF16", [6, D_QK], queries.layer_bytes(1))})
        self.ctl("attend", "--corpus", "docs", "--layer", 1, "--queries", query_path, "--out", out,
                 "--wire", "f32", requester=requester)
        given = floats(read_safetensors(out)[0]["o"])
        numbers = [[[from_bf16(v) for v in row] for row in part] for part in (queries.layers[1], rows.layers[1])]
        for i, (o, _, _) in enumerate(attend(*numbers)):
            for c in range(D_V):
                self.assertAlmostEqual(given[i * D_V + c], o[c], delta=2e-6)

    def check_fetch(self):
        out = self.folder / "fetched.safetensors"
        self.ctl("fetch", "--corpus", "docs", "--chunks", "0-2", "--out", out)
        tensors = read_safetensors(out)[0]
        rows = Rows(1, TOKENS, 0)
        for layer in range(LAYERS):
            self.assertEqual(tensors[f"layers.{layer}.ckv"][2], rows.layer_bytes(layer))

    def test_a_holder_computes_with_the_library_in_its_folder(self):
        self.start_fleet()
        root = self.install("works")
        self.start("h0", "--backend=cuda")
        self.assertIn(f"backend cuda: {root}/bin/libckv_cuda.so, kernels {TARGET}", self.log("h0"))
        self.assertEqual(self.kernels(), {"h0": TARGET})
        self.check_answers()
        self.check_fetch()

    def test_it_computes_over_chunks_on_disk(self):
        self.start_fleet()
        self.install("works")
        self.start("h0", f"--store-path={self.folder}/store")
        self.assertEqual(self.kernels(), {"h0": TARGET})
        self.check_answers()
        self.check_fetch()

    def test_the_processor_computes_if_a_holder_cannot_use_the_device(self):
        self.start_fleet()
        for library, why in (("no_pins", "pinning store.capacity, 64 MiB"),
                             ("no_reach", "reach neither host memory nor pinned memory")):
            with self.subTest(library=library):
                self.install(library)
                name = f"h-{library}"
                self.start(name)
                warnings = [line for line in self.log(name).splitlines() if " backend cpu: " in line]
                self.assertEqual(len(warnings), 1, warnings)
                for text in ("warn", TARGET, why, "set backend: cpu"):
                    self.assertIn(text, warnings[0])
                self.assertNotIn(TARGET, self.kernels()[name])
        self.check_answers()

    def test_by_itself_where_an_install_has_it(self):
        self.start_fleet()
        root = self.install("works", "lib/ckv")
        both = self.start("both", role="holder,requester")
        self.assertIn(f"backend cuda: {root}/bin/../lib/ckv/libckv_cuda.so", self.log("both"))
        self.assertIn(f"{TARGET} does not reach its messages", self.log("both"))
        self.check_answers(requester=both)

    def test_tokens_are_those_of_one_instance(self):
        self.start_fleet()
        self.install("works")
        self.start("h0")
        self.install(None)
        self.start("h1")
        kernels = self.kernels()
        self.assertEqual(kernels["h0"], TARGET)
        self.assertNotEqual(kernels["h1"], TARGET)
        text = self.folder / "text.md"
        text.write_text("The licence says what may be copied, by whom, and on what terms. " * 6)
        self.ctl("corpus", "load", "words", text, "--text", "--max-tokens", 300, "--chunk-tokens", 100)
        report = self.ctl("agents", "run", "--corpus", "words", "--text", text, "--count", 3, "--tokens", 5)
        self.assertEqual([a["holder_count"] for a in report["agents"]], [2] * 3)
        self.assertTrue(report["equal"], report)

    def test_without_one_the_processor_computes(self):
        self.start_fleet()
        for library, why in ((None, "there is no "), ("no_device", "the driver finds 0 devices"),
                             ("other_build", "it is of build ckv 0.0.1")):
            with self.subTest(library=library):
                self.install(library)
                name = f"h-{library}"
                self.start(name)
                self.assertIn("backend cpu: ", self.log(name))
                self.assertIn(why, self.log(name))
                self.assertNotIn(TARGET, self.kernels()[name])
        self.install("works")
        self.start("h-cpu", "--backend=cpu")
        self.assertNotEqual(self.kernels()["h-cpu"], TARGET)
        # The named kernel target, and so its bits, with a GPU or without.
        self.start("h-named", "--kernel-target=AVX2")
        self.assertIn("backend cpu: kernel_target names AVX2", self.log("h-named"))
        self.assertEqual(self.kernels()["h-named"], "AVX2")

    def test_a_required_library_must_exist_to_start(self):
        for library, why in ((None, "install it there, or set backend: cpu"),
                             ("no_device", "the driver finds 0 devices"),
                             ("no_module", "it is no backend of ckv"),
                             ("no_pins", "lower store.capacity, or let the process lock more memory"),
                             ("no_reach", "memory of the host, pinned or not"),
                             ("other_build", "install both from one build")):
            with self.subTest(library=library):
                self.install(library)
                ready = self.folder / "never"
                done = subprocess.run([PROGRAMS.ckvd, "--role=directory,holder", "--listen=127.0.0.1:0",
                                       "--backend=cuda", f"--ready-file={ready}"], timeout=60,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(TARGET if library in ("no_pins", "no_reach") else "backend cuda", done.stderr)
                self.assertIn(why, done.stderr)
                self.assertFalse(ready.exists())

    def test_a_directory_holds_no_device(self):
        self.install("no_device")
        fleet = Fleet(self.folder, holders=0)
        self.addCleanup(fleet.stop)
        self.assertNotIn("libckv_cuda", self.log("directory"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckvd", required=True, type=pathlib.Path)
    parser.add_argument("--ckvctl", required=True, type=pathlib.Path)
    parser.add_argument("--stand-ins", required=True, type=pathlib.Path)
    options, rest = parser.parse_known_args()
    PROGRAMS.ckvd, PROGRAMS.ckvctl = options.ckvd.resolve(), options.ckvctl.resolve()
    PROGRAMS.stand_ins = options.stand_ins.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
