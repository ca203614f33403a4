#!/usr/bin/python3
"""Goal: a downgrade that cannot read a folder is refused, wherever the configuration names the folder.

Method: the maintainer script of deploy/debian, below a root of its own (DPKG_ROOT), over spellings of store.path and
directory.path. Each folder is tried with a format that this build reads, which must pass, and with a later one.
"""

import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy/debian/ckvd.preinst.in"
READS = {"chunk": 3, "directory": 1}

# Files of /etc/ckv, each of which names the folder /data/x.
NAMED = {
    "a.env": ["CKV_STORE_PATH=/data/x\n", 'CKV_STORE_PATH="/data/x"\n', "A=1\nCKV_DIRECTORY_PATH='/data/x'  \n"],
    "ckvd.yaml": [
        "store.path: /data/x\n",
        "directory.path: '/data/x'   # the folder\n",
        "store:\n  path: /data/x\n",
        "store:\n    capacity: 8GiB\n    path: \"/data/x\"  # here\n",
        "# a comment\nrole: [holder]\n\ndirectory:\n # deeper\n  path:   /data/x   \nlisten: 1\n",
        "directory: {path: /data/x}\n",
        "store: { capacity: 8GiB, path: '/data/x' } # both\n",
        "metrics:\n  address: a:1\nstore:\n  cold:\n    a: 1\n  path: /data/x\r\n",
        "'store':\n  'path': /data/x\n",
        "  store:\n    path: /data/x\n",
    ],
    "other.yaml": ["directory:\n  path: /data/x\n"],
}
# These name no folder of a daemon.
UNNAMED = {
    "a.env": ["#CKV_STORE_PATH=/data/x\n", "CKV_STORE_PATHS=/data/x\n"],
    "ckvd.yaml": [
        "# store.path: /data/x\n", "path: /data/x\n", "near:\n  path: /data/x\nstore:\n  capacity: 1\n",
        "store:\n  cold:\n    path: /data/x\n", "directory: 10.0.0.1:7400\nother:\n  path: /data/x\n",
    ],
}


class Preinst(unittest.TestCase):
    def install(self, folder, kind, version, files):
        """Whether the script lets an upgrade pass, and its words."""
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            (root / folder).mkdir(parents=True)
            (root / folder / "FORMAT").write_text(f"ckv {kind} folder {version}\n")
            (root / "etc/ckv").mkdir(parents=True)
            for file, text in files.items():
                (root / "etc/ckv" / file).write_text(text)
            script = root / "preinst"
            script.write_text(SCRIPT.read_text().replace("@CKV_STORE_FORMAT@", str(READS["chunk"]))
                              .replace("@CKV_DIRECTORY_FORMAT@", str(READS["directory"])))
            done = subprocess.run(["sh", script, "upgrade", "0.1"], env={"DPKG_ROOT": name, "PATH": "/usr/bin:/bin"},
                                  capture_output=True, text=True, check=False)
        return done.returncode == 0, done.stderr.replace(name, "")

    def both(self, folder, files, refused=True):
        for kind, reads in READS.items():
            good, said = self.install(folder, kind, reads, files)
            self.assertTrue(good and said == "", f"{files}: {said}")
            good, said = self.install(folder, kind, reads + 1, files)
            self.assertEqual(good, not refused, f"{files}: {said}")
            if refused:
                self.assertIn(f"/{folder} has format {reads + 1} of a later version", said)

    def test_folders_of_units(self):
        self.both("var/lib/ckv/holder", {})

    def test_every_spelling(self):
        for file, texts in NAMED.items():
            for text in texts:
                with self.subTest(file=file, text=text):
                    self.both("data/x", {file: text})

    def test_accepts_a_configuration_without_a_folder(self):
        for file, texts in UNNAMED.items():
            for text in texts:
                with self.subTest(file=file, text=text):
                    self.both("data/x", {file: text}, refused=False)


if __name__ == "__main__":
    unittest.main()
