#!/usr/bin/env python3
"""The tree tests itself: layering, sizes, names, and what may not appear. Exit 1 names each breach.

    python3 tests/tidy.py [ROOT]
"""

import pathlib
import re
import shutil
import subprocess
import sys

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_CHARACTERS_MAX = 100

# Who may include whom (README, "Folders"). tests may include everything.
MAY_INCLUDE = {
    "proto": {"proto"},
    "attention": {"attention", "proto"},
    "store": {"store", "proto"},
    "transport": {"transport", "proto"},
    "client": {"client", "transport", "attention", "store", "proto"},
    "server": {"server", "client", "transport", "attention", "store", "proto"},
}
FOLDERS = set(MAY_INCLUDE) | {"tests"}

# proto's convert is the one header of that folder that knows protobuf.
PROTOBUF_FREE = {"attention", "store", "transport"}
GRPC_FILES = re.compile(
    r"^(server/[a-z_]*(service|stub)\.(h|cc)|server/(daemon|main)\.(h|cc)|client/[a-z_]*stub\.(h|cc)"
    r"|client/grpc_status\.(h|cc)|client/ctl/.*|proto/convert\.(h|cc)|tests/.*)$"
)
GRPC_INCLUDE = re.compile(r'#include [<"](grpc|google/protobuf|ckv/v1/|proto/convert\.h)')
VERBS_INCLUDE = re.compile(r"#include [<\"](infiniband|rdma)/")
PROMETHEUS_INCLUDE = re.compile(r"#include [<\"]prometheus/")

FORBIDDEN = [
    (re.compile(r"\b(std::this_thread::sleep_|usleep\(|nanosleep\(|absl::SleepFor|[^_.\w]sleep\()"),
     "sleeps; wait on an event or advance a clock"),
    (re.compile(r"\bthrow\b(?!\(\))"), "throws; return a status"),
    (re.compile(r"friend class \w*Test"), "befriends a test; test the interface"),
    (re.compile(r"#define private"), "redefines private"),
    (re.compile(r"using namespace (?!hwy::HWY_NAMESPACE|std::chrono_literals)"), "using namespace"),
    (re.compile(r"(TODO|FIXME|XXX)(?!\([a-z]+\))"), "a TODO without a name"),
    (re.compile(r"std::chrono::(steady|system|high_resolution)_clock|clock_gettime\(|gettimeofday\("),
     "reads time; take a Clock"),
]
# The clock itself, and measurements of the machine under test.
TIME_ALLOWED = re.compile(r"^(proto/clock\.cc|tests/bench/.*)$")
# A wire struct: what lies in a slot or on a socket.
WIRE_STRUCT = re.compile(r"^struct (\w*(?:Header|Entry|Hello|Frame)) \{", re.M)


def tracked(root):
    """The files of the tree: what git tracks or would track; without git, all but built ones."""
    if (root / ".git").exists() and shutil.which("git"):
        names = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True, text=True).stdout.split("\0")
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*")
                 if path.relative_to(root).parts[0] != "build"]
    return sorted(n for n in names if n and (root / n).is_file())


def strip_comments_and_strings(text):
    """The code with comments and string contents blanked, line structure kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        found = match.group(0)
        kept = "\n" * found.count("\n")
        return ('""' + kept) if found[0] in "\"R" else kept

    return pattern.sub(blank, text)


def functions(code):
    """(first line, line count) of each function body: a block that opens after a parameter list."""
    depth = 0
    opened = None
    for number, line in enumerate(code.split("\n"), 1):
        if opened is None and re.search(r"^(?!namespace|struct|class|enum|union|extern|#)\S.*\)?.*\{$",
                                        line) and "=" not in line.split("(")[0]:
            opened = (number, depth)
        depth += line.count("{") - line.count("}")
        if opened is not None and depth <= opened[1]:
            yield opened[0], number - opened[0] + 1
            opened = None


def check_file(name, text, report):
    folder = name.split("/")[0]
    lines = text.split("\n")
    code = strip_comments_and_strings(text)
    if len(lines) - 1 > FILE_LINES_MAX:
        report(name, 1, f"{len(lines) - 1} lines, limit {FILE_LINES_MAX}: it wants a second name")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_CHARACTERS_MAX:
            report(name, number, f"{len(line)} characters, limit {LINE_CHARACTERS_MAX}")
        check_include(name, folder, number, line, report)
    for number, line in enumerate(code.split("\n"), 1):
        for pattern, why in FORBIDDEN:
            if pattern.search(line) and not (why.startswith("reads time") and TIME_ALLOWED.match(name)):
                report(name, number, why)
    for number, count in functions(code):
        if count > FUNCTION_LINES_MAX:
            report(name, number, f"a function of {count} lines, limit {FUNCTION_LINES_MAX}")
    if name.endswith(".h"):
        if not lines[0].startswith("// "):
            report(name, 1, "a header opens with one sentence that says what it is")
        if "#pragma once" not in text and not name.endswith(".inl.h"):
            report(name, 1, "no #pragma once")
    if folder == "transport":
        for match in WIRE_STRUCT.finditer(text):
            if f"static_assert(sizeof({match.group(1)})" not in text:
                report(name, text[:match.start()].count("\n") + 1,
                       f"wire struct {match.group(1)} without a static_assert of its size")


def check_include(name, folder, number, line, report):
    match = re.match(r'#include "([^"/]+)/', line)
    if match and folder in MAY_INCLUDE and match.group(1) in FOLDERS:
        if match.group(1) not in MAY_INCLUDE[folder]:
            report(name, number, f"{folder} may not include {match.group(1)}")
    if GRPC_INCLUDE.search(line) and not GRPC_FILES.match(name):
        report(name, number, "gRPC and protobuf stay at the edge (services, stubs, ctl)")
    if VERBS_INCLUDE.search(line) and not name.startswith(("transport/verbs", "tests/")):
        report(name, number, "libibverbs stays in transport/verbs*")
    if PROMETHEUS_INCLUDE.search(line) and name != "server/metrics.cc":
        report(name, number, "prometheus-cpp stays in server/metrics.cc")


def check_tree(sources, report):
    """Headers somebody includes; a .cc somebody tests."""
    included = set()
    for text in sources.values():
        included.update(re.findall(r'#include "([^"]+)"', text))
        included.update(re.findall(r'HWY_TARGET_INCLUDE "([^"]+)"', text))
    test_text = "\n".join(t for n, t in sources.items() if n.startswith("tests/"))
    for name in sources:
        if name.endswith(".h") and name not in included:
            report(name, 1, "a header nobody includes")
        if name.endswith(".cc") and not name.startswith("tests/") and not name.endswith("main.cc"):
            check_tested(name, sources, test_text, report)


def check_tested(name, sources, test_text, report):
    """A .cc is tested if a test includes its header, or a header whose .cc includes its header."""
    header = name[:-3] + ".h"
    if f'"{header}"' in test_text:
        return
    users = [n for n, t in sources.items()
             if not n.startswith("tests/") and f'#include "{header}"' in t and n != name]
    stems = {re.sub(r"\.(inl\.)?(h|cc)$", "", n) + ".h" for n in users}
    if any(f'"{stem}"' in test_text for stem in stems):
        return
    # Several .cc of one header (shm_lane.cc of fabric.h), and programs that end-to-end tests run.
    own = set(re.findall(r'#include "([^"]+)"', sources[name]))
    if any(f'"{h}"' in test_text and h.split("/")[0] == name.split("/")[0] for h in own):
        return
    if name.startswith(("client/ctl/", "server/daemon", "server/main")):
        return
    report(name, 1, "a .cc without a test")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    breaches = []

    def report(name, line, what):
        breaches.append(f"{name}:{line}: {what}")

    sources = {}
    for name in tracked(root):
        if name.split("/")[0] in FOLDERS and name.endswith((".h", ".cc")):
            sources[name] = (root / name).read_text(encoding="utf-8")
    for name, text in sources.items():
        check_file(name, text, report)
    check_tree(sources, report)
    for breach in breaches:
        print(breach)
    print(f"tidy: {len(sources)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
