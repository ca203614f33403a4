#!/usr/bin/python3
"""Goal: every command of ckvctl against real ckvd processes: right answers, right exit codes.

Method: a directory, two holders and a requester on loopback; a small safetensors corpus whose rows
are known here; what `attend` writes is compared with attention in float64, what `fetch` writes with
the bytes of the file. Nothing of ckv's code is used but the two programs.

    python3 tests/e2e/ctl_e2e.py --ckvd build/dev/bin/ckvd --ckvctl build/dev/bin/ckvctl
"""

import argparse
import json
import math
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # the source tree stays as it is
from ctl_fleet import (D_QK, D_V, LAYERS, PROGRAMS, Fleet, Rows, attend, bf16, floats, from_bf16,
                       read_safetensors, rotate, write_safetensors)

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"


class CtlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="ckv-ctl-")
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.fleet = Fleet(cls.folder, holders=2)
        # Two files that follow each other: 70 tokens in chunks of 32, 32 and 6, then 20 tokens.
        cls.files = [Rows(1, 70, 0), Rows(2, 20, 70)]
        cls.paths = [cls.folder / f"rows-{i}.safetensors" for i in range(2)]
        for rows, path in zip(cls.files, cls.paths):
            rows.write(path)
        cls.all_rows = [[[from_bf16(v) for v in row]
                         for f in cls.files for row in f.layers[layer]] for layer in range(LAYERS)]
        rng = random.Random(3)
        cls.queries = [[from_bf16(bf16(rng.gauss(0, 1))) for _ in range(D_QK)] for _ in range(11)]
        cls.query_path = cls.folder / "q.safetensors"
        write_safetensors(cls.query_path, {"q": ("F32", [11, D_QK], b"".join(
            struct.pack(f"<{D_QK}f", *q) for q in cls.queries))})
        cls.load("docs")

    @classmethod
    def tearDownClass(cls):
        cls.fleet.stop()
        cls.temporary.cleanup()

    @classmethod
    def run_ctl(cls, *arguments, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env.update({"CKV_REQUESTER": cls.fleet.requester, **environment})
        return subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=env, timeout=120,
                              capture_output=True, text=True, check=False)

    @classmethod
    def ctl(cls, *arguments):
        done = cls.run_ctl(*arguments, "-o", "json")
        if done.returncode != 0:
            raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    @classmethod
    def load(cls, name, *arguments):
        return cls.ctl("corpus", "load", name, *cls.paths, "--chunk-tokens", 32, *arguments)

    def check_partial(self, path, expected, o_tolerance):
        tensors, metadata = read_safetensors(path)
        self.assertEqual(tensors["o"][1], [len(expected), D_V])
        self.assertEqual(tensors["m"][1], [len(expected)])
        self.assertEqual(metadata["model"], "test/ctl")
        o, m, l = (floats(tensors[name]) for name in "oml")
        for i, (o_row, m_row, l_row) in enumerate(expected):
            if l_row == 0:
                self.assertEqual((m[i], l[i]), (-math.inf, 0.0))
            else:
                lse = m[i] + math.log(l[i])
                self.assertAlmostEqual(lse, m_row + math.log(l_row), delta=1e-5)
            for c in range(D_V):
                self.assertAlmostEqual(o[i * D_V + c], o_row[c], delta=o_tolerance)

    def attend(self, layer, *arguments):
        out = self.folder / "partial.safetensors"
        report = self.ctl("attend", "--corpus", "docs", "--layer", layer, "--queries",
                          self.query_path, "--out", out, *arguments)
        return out, report

    def o_max(self, expected):
        return max(1.0, max(abs(v) for o, _, _ in expected for v in o))

    def test_load_reports_what_it_put_and_reuses_stored_chunks(self):
        report = self.load("docs2", "--replicas", 2)
        self.assertEqual((report["chunk_count"], report["token_count"]), (4, 90))
        self.assertEqual(report["copies_sent"] + report["copies_found"], 8)
        self.assertGreaterEqual(report["copies_found"], 4)
        # All are chunks of docs.
        self.assertEqual([report[f"chunks_{k}"] for k in ("new", "shared", "reused")], [0, 4, 0])
        again = self.load("docs2", "--replicas", 2, "--replace")
        self.assertEqual((again["copies_sent"], again["copies_found"]), (0, 8))
        self.assertEqual([again[f"chunks_{k}"] for k in ("new", "shared", "reused")], [0, 0, 4])
        self.assertGreater(again["version"], report["version"])
        self.assertEqual(again["bytes_sent"], 0)
        self.assertEqual(again["total_row_bytes"], 90 * D_QK * 2 * LAYERS)
        # The chunks of docs are docs2's too: only the second copies go.
        dropped = self.ctl("corpus", "drop", "docs2")
        self.assertEqual((dropped["warnings"], dropped["chunks_dropped"]), ([], 4))
        self.attend(0)

    def load_stdin(self, *arguments, **stdin):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.fleet.requester
        return subprocess.run([PROGRAMS.ckvctl, "corpus", "load", "piped", "-", *arguments],
                              env=env, timeout=120, capture_output=True, text=True, check=False,
                              **stdin)

    def loaded_from_stdin(self, *arguments, **stdin):
        done = self.load_stdin(*arguments, "-o", "json", **stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.ctl("corpus", "drop", "piped")
        report = json.loads(done.stdout)
        return report["chunk_count"], report["token_count"]

    def test_stdin_is_a_file_called_dash(self):
        lines = ("--jsonl", "--cut", "document")
        self.assertEqual(self.loaded_from_stdin(*lines, input="[1,2,3]\n[4,5]\n"), (2, 5))
        self.assertEqual(self.loaded_from_stdin("--text", input="a text"), (1, 6))
        # Somebody has read the first line.
        path = self.folder / "read.jsonl"
        path.write_text("[9]\n[1,2,3]\n[4]\n")
        with open(path, "rb") as file:
            os.lseek(file.fileno(), 4, os.SEEK_SET)
            self.assertEqual(self.loaded_from_stdin(*lines, stdin=file), (2, 4))
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(b"[1,2]\n")
            self.assertEqual(self.loaded_from_stdin(*lines, stdin=theirs), (1, 2))
        for arguments, why in (([], "pass --jsonl or --text"), (["-", "--jsonl"], "read once"),
                               (["--jsonl"], "stdin:1: ")):
            done = self.load_stdin(*arguments, input="not json\n")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(why, done.stderr)

    def test_dry_run_puts_nothing(self):
        report = self.load("dry", "--dry-run")
        # They are docs' chunks, and there.
        self.assertEqual((report["chunks_shared"], report["bytes_sent"]), (4, 0))
        self.assertEqual(self.run_ctl("corpus", "show", "dry").returncode, 3)
        table = self.run_ctl("corpus", "load", "dry", *self.paths, "--dry-run").stdout
        self.assertIn("TO SEND", table)
        self.assertIn("nothing was put", table)

    def test_list_show_and_locate(self):
        listed = {c["name"]: c for c in self.ctl("corpus", "list")["corpora"]}
        self.assertEqual(listed["docs"]["token_count"], 90)
        self.assertEqual(listed["docs"]["total_row_bytes"], 90 * D_QK * 2 * LAYERS)
        self.assertEqual([listed["docs"][key] for key in ("layers", "copies_min", "copies_max",
                                                          "missing_count")], [LAYERS, 1, 1, 0])
        self.assertLess(listed["docs"]["age_ms"], 600_000)
        table = self.run_ctl("corpus", "list").stdout
        self.assertIn("MISSING", table)
        self.assertNotIn("VERSION", table)
        shown = self.ctl("corpus", "show", "docs")
        self.assertEqual(shown["total_row_bytes"], sum(c["bytes"] for c in shown["chunks"]))
        chunks = shown["chunks"]
        self.assertEqual([c["token_count"] for c in chunks], [32, 32, 6, 20])
        self.assertEqual([c["position"] for c in chunks], [0, 32, 64, 70])
        self.assertEqual(chunks[0]["parent"], "")
        for child, parent in zip(chunks[1:], chunks):
            self.assertEqual(child["parent"], parent["id"])
        self.assertEqual({h for c in chunks for h in c["holders"]}, {"h0", "h1"})
        located = self.ctl("chunk", "locate", "--corpus", "docs", "--ordinal", 2)
        self.assertEqual(located["id"], chunks[2]["id"])
        self.assertEqual(self.ctl("chunk", "locate", chunks[2]["id"][:10])["id"], chunks[2]["id"])
        place = self.ctl("chunk", "locate", chunks[3]["id"])["places"][0]
        self.assertEqual((place["corpus"], place["ordinal"]), ("docs", 3))
        self.assertEqual(self.run_ctl("chunk", "locate", "ffff0000").returncode, 3)
        self.assertEqual(self.run_ctl("chunk", "locate", "xyz1").returncode, 2)

    def test_status_shows_every_member(self):
        status = self.ctl("status")
        self.assertEqual({m["id"] for m in status["members"]} & {"h0", "h1"}, {"h0", "h1"})
        self.assertTrue(all(h["answers"] for h in status["holders"]))
        self.assertEqual(status["directory"], self.fleet.directory)
        table = self.run_ctl("status")
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("HOLDER", table.stdout)

    def test_attend_dense_equals_float64(self):
        for layer in range(LAYERS):
            expected = attend(self.queries, self.all_rows[layer])
            out, report = self.attend(layer, "--wire", "f32")
            self.check_partial(out, expected, 5e-7 * self.o_max(expected))
            self.assertEqual(report["holder_count"], 2)
            out, _ = self.attend(layer)
            self.check_partial(out, expected, 2.0 ** -8 * self.o_max(expected))

    def test_attend_some_chunks(self):
        rows = self.all_rows[1][0:64] + self.all_rows[1][70:90]
        out, report = self.attend(1, "--chunks", "0-1,3", "--wire", "f32")
        expected = attend(self.queries, rows)
        self.check_partial(out, expected, 5e-7 * self.o_max(expected))
        self.assertEqual(report["token_count"], 84)

    def test_attend_selected_rows(self):
        rng = random.Random(4)
        rows = self.all_rows[0][32:90]
        chosen = [[rng.randrange(-1, len(rows)) for _ in range(9)] for _ in self.queries]
        chosen[3] = [-1] * 9
        path = self.folder / "idx.safetensors"
        write_safetensors(path, {"indices": ("I32", [11, 9], b"".join(
            struct.pack("<9i", *c) for c in chosen))})
        out, _ = self.attend(0, "--chunks", "1-3", "--select", path, "--wire", "f32")
        expected = attend(self.queries, rows, chosen)
        self.check_partial(out, expected, 5e-7 * self.o_max(expected))
        bad = self.run_ctl("attend", "--corpus", "docs", "--layer", 0, "--chunks", "3", "--queries",
                           self.query_path, "--select", path, "--out", self.folder / "x")
        self.assertEqual(bad.returncode, 2, bad.stderr)
        self.assertIn("indices", bad.stderr)

    def test_attend_at_an_offset_turns_the_queries_back(self):
        turned = [rotate(q, -1000) for q in self.queries]
        out, _ = self.attend(0, "--offset", 1000, "--wire", "f32")
        # The turned queries are rounded to bf16 again: 2^-9 of each of 8 products, and |o| is 1.
        self.check_partial_loosely(out, attend(turned, self.all_rows[0]), 0.02)
        with self.assertRaises(AssertionError):
            self.check_partial_loosely(out, attend(self.queries, self.all_rows[0]), 0.02)

    def check_partial_loosely(self, path, expected, tolerance):
        o = floats(read_safetensors(path)[0]["o"])
        for i, (o_row, _, _) in enumerate(expected):
            for c in range(D_V):
                self.assertAlmostEqual(o[i * D_V + c], o_row[c], delta=tolerance)

    def test_fetch_gives_the_rows_of_the_files(self):
        out = self.folder / "fetched.safetensors"
        report = self.ctl("fetch", "--corpus", "docs", "--chunks", "1-3", "--out", out)
        self.assertEqual(report["token_count"], 58)
        tensors, metadata = read_safetensors(out)
        self.assertEqual(metadata["base_position"], "32")
        for layer in range(LAYERS):
            whole = b"".join(f.layer_bytes(layer) for f in self.files)
            self.assertEqual(tensors[f"layers.{layer}.ckv"],
                             ("BF16", [58, D_QK], whole[32 * D_QK * 2:]))

    def test_fetched_rows_load_again_as_the_same_chunks(self):
        self.ctl("corpus", "load", "once", self.paths[0], "--chunk-tokens", 32)
        out = self.folder / "again.safetensors"
        report = self.ctl("fetch", "--corpus", "once", "--out", out)
        self.assertGreater(report["seconds"], 0)
        refused = self.run_ctl("corpus", "load", "twice", out)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("ckvctl corpus export writes them", " ".join(refused.stderr.split()))
        tensors, metadata = read_safetensors(out)
        ids = self.files[0].token_ids
        tensors["token_ids"] = ("I32", [70], struct.pack("<70i", *ids))
        write_safetensors(out, tensors, metadata)
        loaded = self.ctl("corpus", "load", "twice", out, "--chunk-tokens", 32)
        self.assertEqual((loaded["chunks_shared"], loaded["bytes_sent"]), (3, 0))
        once, twice = (self.ctl("corpus", "show", name)["chunks"] for name in ("once", "twice"))
        self.assertEqual([c["id"] for c in once], [c["id"] for c in twice])
        for layer in range(LAYERS):
            self.assertEqual(tensors[f"layers.{layer}.ckv"][2], self.files[0].layer_bytes(layer))

    def test_fetch_refuses_rows_that_do_not_follow_each_other(self):
        path = self.folder / "elsewhere.safetensors"
        Rows(6, 8, 500).write(path)
        self.ctl("corpus", "load", "gap", self.paths[0], path)
        out = self.folder / "gap.safetensors"
        refused = self.run_ctl("fetch", "--corpus", "gap", "--out", out)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("base_position", refused.stderr)
        self.assertEqual(self.ctl("fetch", "--corpus", "gap", "--position", 0, "--out",
                                  out)["token_count"], 78)

    def test_fetch_places_the_chunks_of_a_list_behind_each_other(self):
        out = self.folder / "list.safetensors"
        report = self.ctl("fetch", "--corpus", "docs", "--chunks", "0,2", "--position", 0, "--out",
                          out)
        self.assertEqual((report["token_count"], report["chunk_count"]), (38, 2))
        tensors, metadata = read_safetensors(out)
        self.assertEqual(metadata["base_position"], "0")
        for layer in range(LAYERS):
            whole = self.files[0].layer_bytes(layer)
            wanted = whole[:32 * D_QK * 2] + whole[64 * D_QK * 2:]
            got = tensors[f"layers.{layer}.ckv"][2]
            self.assertEqual(got[:32 * D_QK * 2], wanted[:32 * D_QK * 2])
            for row in range(38):  # what is not RoPE is not turned
                begin = row * D_QK * 2
                self.assertEqual(got[begin:begin + D_V * 2], wanted[begin:begin + D_V * 2])

    def test_a_result_is_written_through_a_pipe(self):
        for name, arguments in (("f", ("fetch", "--corpus", "docs")),
                                ("e", ("corpus", "export", "docs"))):
            pipe, out = self.folder / f"{name}.pipe", self.folder / f"{name}.safetensors"
            os.mkfifo(pipe)
            with out.open("wb") as copy:
                reader = subprocess.Popen(["cat", pipe], stdout=copy)
                self.ctl(*arguments, "--out", pipe)
                self.assertEqual(reader.wait(20), 0)
            self.assertTrue(pipe.is_fifo())
            self.ctl(*arguments, "--out", self.folder / "whole")
            self.assertEqual(out.read_bytes(), (self.folder / "whole").read_bytes())

    def test_a_full_disk_is_no_success(self):
        env = {**os.environ, "CKV_REQUESTER": self.fleet.requester}
        for command in ([PROGRAMS.ckvctl, "status"], [PROGRAMS.ckvctl, "corpus", "list", "-o", "json"],
                        [PROGRAMS.ckvctl, "--help"], [PROGRAMS.ckvd, "--help"],
                        [PROGRAMS.ckvd, "--version"],
                        [PROGRAMS.ckvd, "--role=directory", "--check-config"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, command)
            self.assertIn("No space left", done.stderr)

    def start_ctl(self, *arguments):
        env = {**os.environ, "CKV_REQUESTER": self.fleet.requester}
        return subprocess.Popen([PROGRAMS.ckvctl, *map(str, arguments)], env=env,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def test_an_interrupted_characterize_drops_its_corpus(self):
        def trials():
            return [c["name"] for c in self.ctl("corpus", "list")["corpora"]
                    if c["name"].startswith("trial-")]
        process = self.start_ctl("characterize", "--quick", "--reference-engine", "--dir", self.folder / "costs")
        while not trials():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, -signal.SIGINT, error)
        self.assertIn("interrupted; corpus trial-", error)
        self.assertEqual(trials(), [])

    def test_an_interrupted_load_names_the_command_that_continues_it(self):
        text = self.folder / "long.md"
        # 14,400 tokens: 63 MiB, which the holders have room for. Else the load ends before it is interrupted.
        text.write_text("A long text takes the reference engine a while. " * 300)
        process = self.start_ctl("corpus", "load", "long", text, "--text")
        first = process.stderr.readline()  # of the progress, after some seconds
        self.assertIn("prefill", first)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, -signal.SIGINT, error)
        self.assertIn("interrupted; the same command prefills from the start again", error)

    def test_explain_compares_three_costs(self):
        report = self.ctl("explain", "--corpus", "docs", "--mq", 16, "--steps", 10)
        self.assertEqual({c["primitive"] for c in report["costs"]}, {"route", "fetch", "local"})
        # The constants are this machine's, so which one wins is not ours to say; that it is the
        # cheapest of those offered is.
        offered = {c["primitive"]: c["total_us"] for c in report["costs"] if c["offered"]}
        self.assertEqual(report["choice"], min(offered, key=offered.get))
        self.assertIn("route", offered)
        self.assertGreater(offered["route"], 0)
        # Both holders get the rows, and each alternative has its sentence.
        self.assertEqual(report["holder_count"], 2)
        self.assertEqual(report["route_bytes"], 2 * report["route_bytes_per_holder"])
        for name in ("route_ratio", "cached_ratio"):  # null until the requester has attended so often
            self.assertTrue(report[name] is None or report[name] > 0, report)
        self.assertEqual(len(report["alternatives"]), 2)
        for sentence in report["alternatives"]:
            self.assertRegex(sentence, r"^(route|fetch|local) (takes|is not offered).*\.$")
        self.assertEqual(len(report["holders"]), 2)
        self.assertAlmostEqual(sum(h["token_share"] for h in report["holders"]), 1)
        self.assertIn("cache room", [i["name"] for i in report["inputs"]])
        # Without room nothing can be fetched, so more room is what may flip the choice.
        full = self.ctl("explain", "--corpus", "docs", "--mq", 16, "--steps", 10, "--agents", 4,
                        "--room", 0)
        self.assertEqual(full["choice"], "route")
        self.assertEqual({i["name"]: i["value"] for i in full["inputs"]}["agents"], 4)
        some = self.ctl("explain", "--corpus", "docs", "--chunks", "3,1-2")
        self.assertEqual({i["name"]: i["value"] for i in some["inputs"]}["tokens"], 20 + 32 + 6)
        table = self.run_ctl("explain", "--corpus", "docs", "--steps", 1).stdout
        self.assertIn("over 1 step;", table)
        self.assertIn("to and from 2 holders", table)
        self.assertRegex(table, r"calls took: +(too few calls|[0-9.]+ x as long if (routed|cached))")

    def test_exit_codes(self):
        missing, text = self.folder / "absent.safetensors", self.folder / "text.txt"
        text.write_text("not a safetensors file, only a text of some length")
        other = self.folder / "other.safetensors"
        Rows(5, 4, 90).write(other, softmax_scale="0.3")
        out = self.folder / "never.safetensors"
        query = ["--layer", "0", "--queries", self.query_path, "--out", out]
        cases = [
            (3, ["corpus", "show", "nosuch"]),
            (3, ["corpus", "drop", "nosuch"]),
            (3, ["attend", "--corpus", "nosuch", *query]),
            (3, ["corpus", "load", "x", missing]),
            (2, ["corpus", "load", "x", text]),
            (2, ["corpus", "load", "x", self.paths[0], other]),
            (2, ["corpus", "load", "bad name!", self.paths[0]]),
            (2, ["corpus", "load", "x", self.paths[0], "--replicas", "3"]),
            (8, ["corpus", "load", "docs", self.paths[0]]),
            (2, ["attend", "--corpus", "docs", "--chunks", "9", *query]),
            (2, ["attend", "--corpus", "docs", "--layer", "7", *query[2:]]),
            (2, ["attend", "--corpus", "docs", "--layer", "0", "--queries", self.paths[0], "--out",
                 out]),
            (7, ["agents", "run", "--corpus", "docs", "--no-check"]),
            (2, ["corpus"]),
            (2, ["nonsense"]),
            (2, ["status", "-o", "xml"]),
            (2, ["attend", "--corpus", "docs", "--chunks", "", *query]),
            (2, ["fetch", "--corpus", "docs", "--chunks", "0,2", "--out", out]),
            (7, ["fetch", "--corpus", "docs", "--out", self.folder / "absent" / "x"]),
        ]
        for code, arguments in cases:
            with self.subTest(arguments=arguments):
                done = self.run_ctl(*arguments)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertNotEqual(done.stderr, "")
        self.assertFalse(out.exists())
        nobody = self.run_ctl("status", CKV_REQUESTER="127.0.0.1:1")
        self.assertEqual(nobody.returncode, 4, nobody.stderr)
        self.assertIn("CKV_REQUESTER", nobody.stderr)
        self.assertIn("--text", self.run_ctl("corpus", "load", "x", text).stderr)

    def test_help_has_examples_and_exit_codes(self):
        self.assertIn("Exit codes:", self.run_ctl("--help").stdout)
        for verb in (["status"], ["corpus"], ["corpus", "load"], ["corpus", "list"],
                     ["corpus", "export"], ["corpus", "show"], ["corpus", "drop"], ["chunk", "locate"], ["attend"],
                     ["explain"], ["fetch"], ["agents", "run"]):
            done = self.run_ctl(*verb, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Examples:", done.stdout, verb)

    def test_agents_decode_the_tokens_of_one_instance(self):
        text = self.folder / "text.md"
        text.write_text("The licence says what may be copied, by whom, and on what terms. " * 6)
        self.ctl("corpus", "load", "words", text, "--text", "--max-tokens", 300,
                 "--chunk-tokens", 100)
        arguments = ["agents", "run", "--corpus", "words", "--text", text, "--count", 3,
                     "--tokens", 5]
        hashes = set()
        for wire in ([], ["--policy", "auto"], ["--policy", "cache"], ["--wire", "bf16"]):
            report = self.ctl(*arguments, *wire)
            self.assertEqual(len(report["agents"]), 3)
            if "cache" in wire:
                self.assertEqual([(a["holder_count"], a["cached_share"]) for a in report["agents"]], [(0, 1)] * 3)
            elif "auto" not in wire:
                self.assertEqual((report["agents"][0]["holder_count"], report["agents"][0]["cached_share"]), (2, 0))
            if "--wire" not in wire:
                hashes.add(tuple(a["tokens_hash"] for a in report["agents"]))
                self.assertEqual(len(hashes), 1, "tokens are equal under every policy")
                self.assertTrue(report["equal"], report["check"])
                self.assertEqual([len(a["tokens"]) for a in report["agents"]], [5, 5, 5])
                self.assertEqual(len({a["tokens_hash"] for a in report["agents"]}), 3)
        compared = self.ctl("agents", "compare", "--corpus", "words", "--text", text, "--tokens", 4,
                            "--rounds", 1)
        self.assertEqual([(p["policy"], p["equal"]) for p in compared["policies"]],
                         [("route", True), ("cache", True), ("auto", True)])
        routed, cached, _ = compared["policies"]
        self.assertEqual((routed["bytes_prefetched"], routed["cached_share"]), (0, 0))
        self.assertEqual((cached["bytes_routed"], cached["cached_share"]), (0, 1))
        table = self.run_ctl("agents", "compare", "--corpus", "words", "--text", text, "--tokens", 4,
                             "--rounds", 1, "--policy", "cache,auto").stdout
        self.assertIn("check: every agent's tokens equal", table)
        self.assertRegex(table, r"\nauto: (the fastest, \S+ x the time of cache|took \d+\.\d+ x the time of the fastest, cache)")
        self.assertRegex(table, r"\nWHAT AUTO SAVED .*\ntime .*\nbytes moved .*\nmemory .*\n\Z")
        other = self.folder / "other.md"
        other.write_text("Another text, not the one that the corpus was loaded from. " * 6)
        refused = self.run_ctl(*arguments[:5], other, *arguments[6:])
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.ctl("corpus", "drop", "words")
        holders = self.ctl("status")["holders"]
        self.assertEqual(sum("ckv/reference" in " ".join(h["models"]) for h in holders), 0)


class BrokenFleetTest(unittest.TestCase):
    """Parts of a fleet of the test's own die or hang; the errors say which."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="ckv-ctl-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.fleet = Fleet(self.folder, holders=2)
        self.addCleanup(self.fleet.stop)
        self.directory_process, h0, self.h1, _ = self.fleet.processes
        del h0
        path = self.folder / "rows.safetensors"
        Rows(1, 64, 0).write(path)
        self.query_path = self.folder / "q.safetensors"
        write_safetensors(self.query_path, {"q": ("F32", [1, D_QK], bytes(4 * D_QK))})
        self.assertEqual(self.ctl("corpus", "load", "docs", path, "--chunk-tokens", 32).returncode, 0)
        # Both lanes are up from here on.
        self.assertEqual(self.attend().returncode, 0)

    def ctl(self, *arguments):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKV_")}
        env["CKV_REQUESTER"] = self.fleet.requester
        return subprocess.run([PROGRAMS.ckvctl, *map(str, arguments)], env=env, timeout=120,
                              capture_output=True, text=True, check=False)

    def attend(self, *arguments):
        return self.ctl("attend", "--corpus", "docs", "--layer", 0, "--queries", self.query_path,
                        "--out", self.folder / "partial.safetensors", *arguments)

    def test_a_dead_holder_is_not_blamed_on_the_requester(self):
        self.h1.kill()
        self.h1.wait()
        for done in (self.attend("--timeout", "2s"), self.ctl("fetch", "--corpus", "docs", "--timeout", "2s", "--out",
                                                             self.folder / "rows-out.safetensors")):
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("holder h1", done.stderr)
            self.assertIn("ckvctl status", done.stderr)
            self.assertIn("--replace", done.stderr)
            self.assertNotIn("--requester", done.stderr)

    def test_explain_with_nothing_offered_is_no_success(self):
        self.h1.terminate()
        self.h1.wait()
        done = self.ctl("explain", "--corpus", "docs")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("nothing is offered", done.stderr)
        self.assertIn("none is offered", done.stdout)
        self.assertNotIn("at no value", done.stdout)

    def test_a_deadline_names_the_holder_that_hangs(self):
        self.h1.send_signal(signal.SIGSTOP)
        done = self.attend("--timeout", "1500ms")
        self.h1.send_signal(signal.SIGCONT)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("holder h1", done.stderr)
        self.assertNotIn("holder h0", done.stderr)

    def test_status_without_a_directory_shows_what_answers(self):
        self.directory_process.kill()
        self.directory_process.wait()
        done = self.ctl("status", "-o", "json")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("CKV_DIRECTORY", done.stderr)
        status = json.loads(done.stdout)
        self.assertIn("directory_error", status)
        self.assertEqual({h["id"]: h["answers"] for h in status["holders"]},
                         {"h0": True, "h1": True})
        self.assertEqual(status["requester"]["id"], "requester")
        self.assertIn("does not answer", self.ctl("status").stdout)


class DoctorTest(unittest.TestCase):
    """ckvctl doctor beside real daemons."""

    def test_it_finds_the_daemons_and_what_a_restart_of_them_loses(self):
        temporary = tempfile.TemporaryDirectory(prefix="ckv-ctl-")
        self.addCleanup(temporary.cleanup)
        fleet = Fleet(pathlib.Path(temporary.name), holders=2, durable=True)
        self.addCleanup(fleet.stop)
        done = subprocess.run([PROGRAMS.ckvctl, "doctor", "-o", "json"], timeout=120, capture_output=True, text=True,
                              check=False)
        found = json.loads(done.stdout)["checks"]
        self.assertLessEqual({"memory", "spin", "durable"}, {check["name"] for check in found})
        for check in found:
            self.assertTrue(check["finding"], check)
            self.assertEqual(check["verdict"] in ("warn", "fail"), bool(check["remedy"]), check)
        # Its directory has no folder, and its holders have one.
        lost = " ".join(check["finding"] for check in found if check["verdict"] == "warn" and check["name"] == "durable")
        self.assertIn(f"(pid {fleet.processes[0].pid}) keeps its corpora in memory", lost)
        self.assertNotIn(f"(pid {fleet.processes[1].pid}) loses", lost)


class LocalFleetTest(unittest.TestCase):
    """deploy/local-fleet.sh says who died; a state folder is all it looks at."""

    def test_the_dead_are_named_with_their_last_line(self):
        with tempfile.TemporaryDirectory(prefix="ckv-fleet-") as folder:
            done = subprocess.Popen(["true"])
            done.wait()
            (pathlib.Path(folder) / "holder-1.pid").write_text(f"{done.pid}\n")
            (pathlib.Path(folder) / "holder-1.log").write_text("registered\nout of memory\n")
            for command, expected in (("status", "holder-1 is not running"),
                                      ("down", "out of memory"), ("status", "no fleet in")):
                result = subprocess.run([DEPLOY / "local-fleet.sh", command, "--state", folder],
                                        capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 1, command)
                self.assertIn(expected, result.stdout + result.stderr)

    def test_every_script_has_help(self):
        for name in ("bench", "build", "check", "install-packages", "llama-headers", "local-fleet", "quickstart",
                     "quickstart-llama", "quickstart-vllm"):
            result = subprocess.run([DEPLOY / f"{name}.sh", "--help"], capture_output=True,
                                    text=True, check=False, timeout=60)
            self.assertEqual((result.returncode, result.stderr), (0, ""), name)
            self.assertIn(f"deploy/{name}.sh", result.stdout)

    def test_a_shell_never_evaluates_the_usage(self):
        """A failed "up" leaves no addresses of an earlier fleet, and a wrong flag is named."""
        failed = "unset CKV_REQUESTER CKV_DIRECTORY; false\n"
        for words, stdout, said in ((["up", "--help"], "false\n", "Starts a whole fleet"),
                                    (["up", "--bogus"], failed, "no such option: --bogus"),
                                    (["up", "--holders"], failed, "--holders needs a value"),
                                    (["up"], failed, "--state DIR is missing"),
                                    (["start"], "", "no such command: start")):
            result = subprocess.run([DEPLOY / "local-fleet.sh", *words], capture_output=True,
                                    text=True, check=False, timeout=60)
            self.assertEqual(result.stdout, stdout, words)
            self.assertIn(said, result.stderr, words)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ckvd", required=True)
    parser.add_argument("--ckvctl", required=True)
    _, rest = parser.parse_known_args(namespace=PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
