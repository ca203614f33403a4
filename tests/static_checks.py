#!/usr/bin/python3
"""Thread-safety analysis by clang, headers alone, clang-tidy and cppcheck, over the flags of a configured build.

    tests/static_checks.py BUILD --changed COMMITS [--limit-s SECONDS] [--safety-limit-s SECONDS]
                           [--headers-limit-s SECONDS]
    tests/static_checks.py BUILD --all

Clang parses files of the product for thread safety, and builds nothing. --changed begins with the files that the last
COMMITS commits and the working tree changed, the newest first. clang-tidy and cppcheck get no other files. The thread
safety analysis takes each of them alone, and then continues with all other files. So do the headers, each of which
must compile without what others include before it. These two and clang-tidy take no more files after their limit, and report how many were left out. --all gives all files to each. A clone with fewer commits uses
those it has. If it has only one, or if this is no clone, any file may have changed.
BUILD is configured for clang and has its generated headers (deploy/check.sh does both). Exits with 1 on a finding.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

FOLDERS = ("proto", "attention", "store", "transport", "client", "server")  # of the product
BATCH = 8  # files that are parsed as one unit: their headers cost more than they do
LIMIT_S = 240  # for clang-tidy, where CI has an hour for everything
SAFETY_LIMIT_S = 120  # for thread safety
HEADERS_LIMIT_S = 60  # for headers alone: all of them take a processor more than ten minutes
FRAGMENT = ".inl.h"  # a file that compiles only where its top says
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.M)
# Suppressed: headers are stamped in a copy (passedByValue); cppcheck 2.10 misreads std::span returns
# and Highway's dispatch macro. Rows of a span are written before they are read, and scratch memory of one type
# is reused for another.
CPPCHECK = ["cppcheck", "--quiet", "--enable=warning,performance,portability", "--std=c++20", "--language=c++",
            "--inline-suppr", "--error-exitcode=1", "--suppress=missingIncludeSystem", "--suppress=unknownMacro",
            "--suppress=passedByValue:transport/wire.cc", "--suppress=CastIntegerToAddressAtReturn",
            "--suppress=invalidPointerCast:attention/mla_block.cc", "--suppress=uninitMemberVar:attention/matrix/span_rows.inl.h",
            "--suppress=constStatement:attention/matrix/span_rows.inl.h", "--suppress=zerodiv:attention/matrix/span_kernel.inl.h",
            "--suppress=useInitializationList:attention/matrix/weights.inl.h", "--suppress=invalidPointerCast:attention/matrix/dot_kernel.inl.h",
            "--suppress=containerOutOfBounds:client/cost/compute_curve.cc", "--suppress=invalidLifetime:client/tools/characterize/sample.cc",
            "--suppress=constStatement:attention/mla_block.cc", "--suppress=constStatement:attention/score/score_amx.cc", "--suppress=constStatement:client/tools/reference_engine/linear.cc",
            "-I", "."]


def commands(build, root):
    """{file below root: its compiler and flags} of the build, without generated files."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(root) or path.is_relative_to(build) or path.suffix != ".cc" or not path.is_file():
            continue
        words = shlex.split(entry["command"])
        for flag, count in (("-o", 2), ("-c", 1)):
            if flag in words:
                at = words.index(flag)
                del words[at:at + count]
        words = tuple(word for word in words if word != entry["file"])
        found.setdefault(str(path.relative_to(root)), words)
    return found


# Comments that say what a check may overlook count as code.
COMMENT = re.compile(r'//(?![^\n]*NOLINT|[^\n]*cppcheck)[^\n]*|/\*(?!.{0,200}NOLINT).*?\*/'
                     r'|("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')', re.S)


def code(text):
    """The text without comments and white space."""
    return re.sub(r"\s+", "", COMMENT.sub(lambda match: match.group(1) or " ", text))


def is_product(name):
    return name.split("/")[0] in FOLDERS


def batches(names, flags):
    """Groups of at most BATCH files with the same flags, in the order of the first file of each."""
    made, open_one = [], {}
    for name in names:
        batch = open_one.get(flags[name])
        if batch is None or len(batch) == BATCH:
            batch = open_one[flags[name]] = []
            made.append(batch)
        batch.append(name)
    return made


def source(root, names):
    return "".join(f'#include "{root / name}"\n' for name in names)


class Checks:
    def __init__(self, build, root, jobs):
        self.build, self.root, self.jobs = build, root, jobs
        self.flags = commands(build, root)
        self.found = 0

    def git(self, *words):
        done = subprocess.run(["git", "-C", self.root, *words], capture_output=True, text=True, check=False)
        return done.stdout.splitlines() if done.returncode == 0 else None

    def changed(self, count):
        """Names that the working tree or the last `count` commits changed, the newest first. None: any may have."""
        here = self.git("rev-list", "--count", "HEAD")
        if here is None:
            say("no git repository: any file may have changed")
            return None
        there = int(here[0])
        if self.git("rev-parse", "--is-shallow-repository") == ["true"]:
            there -= 1  # the oldest one's parent is not here
        if there < count:
            say(f"of the last {count} commits {there} are here")
        if there == 0:
            say("any file may have changed")
            return None
        names = self.git("diff", "--name-only", "HEAD") + self.git("ls-files", "--others", "--exclude-standard")
        names += [name for name in self.git("log", "--name-only", "--format=", f"-{min(count, there)}") if name]
        base = f"HEAD~{min(count, there)}"
        return [name for name in dict.fromkeys(names)
                if (self.root / name).is_file() and not self.has_the_code_of(base, name)]

    def has_the_code_of(self, base, name):
        """Whether only comments of the file differ from those at `base`."""
        if not name.endswith((".h", ".cc", ".c")):
            return False
        before = self.git("show", f"{base}:{name}")
        return before is not None and code("\n".join(before)) == code((self.root / name).read_text(encoding="utf-8"))

    def units(self, names):
        """The files to compile for `names`. For a header: its own .cc, or else the first file that includes it."""
        wanted = []
        for name in names:
            if name.endswith(".h") and f"{name[:-2]}.cc" in self.flags:
                name = f"{name[:-2]}.cc"
            elif name.endswith(".h"):
                line = f'#include "{name}"'
                name = next((user for user in self.flags if line in (self.root / user).read_text()), name)
            if name in self.flags:
                wanted.append(name)
        return list(dict.fromkeys(wanted))

    def each(self, call, made, limit_s=None):
        """Runs call(batch) for each, `jobs` at a time, and prints the findings. Returns the batches left out."""
        end = None if limit_s is None else time.monotonic() + limit_s
        left_out = []

        def one(batch):
            if end is not None and time.monotonic() > end:
                left_out.append(batch)
                return []
            return call(batch)

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for texts in pool.map(one, made):
                for text in texts:
                    self.found += 1
                    print(text.rstrip(), flush=True)
        return left_out

    def tell(self, left_out, step, limit_s):
        if left_out:
            say(f"{step}: {sum(map(len, left_out))} of them left out after {limit_s} s; deploy/check.sh --static takes all")

    def run(self, command, text=None):
        done = subprocess.run(command, input=text, cwd=self.root, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def thread_safety(self, changed, limit_s):
        # Each alone: in a batch, a file that lacks an include would get those of the others.
        first = [name for name in changed if is_product(name)]
        others = [name for name in self.flags if is_product(name) and name not in first]
        say(f"thread safety: clang, {len(first) + len(others)} files")

        def parse(batch):
            command = [*self.flags[batch[0]], "-Wthread-safety", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
            code, said = self.run(command, source(self.root, batch))
            if code == 0:
                return []
            # Files that do not compile as one unit are parsed one by one.
            return [said] if len(batch) == 1 else [text for name in batch for text in parse([name])]

        self.tell(self.each(parse, [*([name] for name in first), *batches(others, self.flags)], limit_s), "thread safety", limit_s)

    def product_headers(self):
        """Names of the headers that must compile alone. First those that no .cc begins with: nothing else shows it."""
        found = [str(path.relative_to(self.root)) for folder in FOLDERS for path in (self.root / folder).rglob("*.h")]
        shown = {self.first_include(name) for name in self.flags}
        return sorted((name for name in found if not name.endswith(FRAGMENT)), key=lambda name: (name in shown, name))

    def first_include(self, name):
        return next(iter(INCLUDE.findall((self.root / name).read_text(encoding="utf-8"))), None)

    def flags_for(self, header, users):
        """The compiler and flags of the header's own .cc, or else of one of `users`, which include it, or else of a file
        of its folder or of one above it. None if this build leaves those out, because it lacks their library."""
        own = f"{header[:-2]}.cc"
        near = [own] if (self.root / own).is_file() else users
        for folder in (self.root / header).parents:
            if near or folder == self.root:
                break
            near = sorted(str(path.relative_to(self.root)) for path in folder.glob("*.cc"))
        return next((self.flags[name] for name in near if name in self.flags), None)

    def headers(self, changed, alone, limit_s):
        """Parses each header alone. A file of `alone`, which thread safety parses so, shows it of its first include."""
        shown = {self.first_include(name) for name in alone}
        users, included = {}, set()
        for path in (path for folder in FOLDERS for path in sorted((self.root / folder).rglob("*.*"))
                     if path.suffix in (".cc", ".h")):
            for header in INCLUDE.findall(path.read_text(encoding="utf-8")):
                included.add(header)
                if path.suffix == ".cc":
                    users.setdefault(header, []).append(str(path.relative_to(self.root)))
        # One that the product does not include is for programs of others, whose headers this build may lack.
        flags = {name: self.flags_for(name, users.get(name, [])) for name in self.product_headers() if name in included}
        every = [name for name in flags if name not in shown and flags[name]]
        first = [name for name in changed if name in every]
        say(f"headers alone: clang, {len(every)} files")

        def parse(batch):
            command = [*flags[batch[0]], "-fsyntax-only", "-x", "c++", "-"]
            code, said = self.run(command, source(self.root, batch))
            return [] if code == 0 else [f"{batch[0]} does not compile alone\n{said}"]

        others = [name for name in every if name not in first]
        self.tell(self.each(parse, [[name] for name in [*first, *others]], limit_s), "headers alone", limit_s)

    def clang_tidy(self, names, limit_s):
        say(f"clang-tidy: {len(names)} files")
        ours = f"^{re.escape(str(self.root))}/({'|'.join(FOLDERS)}|tests)/.*\\.(h|cc)$"
        work = self.build / "static"
        work.mkdir(exist_ok=True)

        def lint(batch):
            unit = work / (re.sub(r"\W", "_", batch[0]) + f"_{len(batch)}.cc")
            unit.write_text(source(self.root, batch))
            code, said = self.run(["clang-tidy-14", "--quiet", f"--config-file={self.root / '.clang-tidy'}",
                                   f"--header-filter={ours}", "--checks=-bugprone-suspicious-include",
                                   unit, "--", *self.flags[batch[0]][1:]])
            # Files that do not compile as one unit, or that shadow each other's names, are checked one by one.
            if code != 0 and "clang-diagnostic-" in said and len(batch) > 1:
                return [text for name in batch for text in lint([name])]
            return [said] if code != 0 else []

        self.tell(self.each(lint, batches(names, self.flags), limit_s), "clang-tidy", limit_s)

    def cppcheck(self, names):
        say(f"cppcheck: {len(names)} files")
        if names:
            code, said = self.run([*CPPCHECK, "-j", str(self.jobs), *names])
            if code != 0:
                self.found += 1
                print(said.rstrip(), flush=True)


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1], help="the tree")
    parser.add_argument("--limit-s", type=int, default=LIMIT_S)
    parser.add_argument("--safety-limit-s", type=int, default=SAFETY_LIMIT_S)
    parser.add_argument("--headers-limit-s", type=int, default=HEADERS_LIMIT_S)
    parser.add_argument("--only", action="append", choices=("thread-safety", "headers", "clang-tidy", "cppcheck"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--changed", type=int, metavar="COMMITS")
    what.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    checks = Checks(arguments.build.resolve(), arguments.root.resolve(), arguments.jobs)
    limit_s = None if arguments.all else arguments.limit_s
    names = None if arguments.all else checks.changed(arguments.changed)
    units = list(checks.flags) if names is None else checks.units(names)
    safety_limit_s = None if arguments.all else arguments.safety_limit_s
    headers_limit_s = None if arguments.all else arguments.headers_limit_s
    changed, alone = ((), ()) if names is None else (names, units)
    steps = {"thread-safety": lambda: checks.thread_safety(alone, safety_limit_s),
             "headers": lambda: checks.headers(changed, alone, headers_limit_s),
             "clang-tidy": lambda: checks.clang_tidy(units, limit_s),
             "cppcheck": lambda: checks.cppcheck([name for name in units if is_product(name)])}
    for name in arguments.only or steps:
        begin = time.monotonic()
        steps[name]()
        say(f"took {time.monotonic() - begin:.0f} s")
    print(f"static checks: {checks.found} findings")
    return 1 if checks.found else 0


if __name__ == "__main__":
    sys.exit(main())
