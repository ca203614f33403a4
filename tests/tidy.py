#!/usr/bin/python3
"""The tree tests itself: layering, sizes, names, and forbidden code. Reports each breach, and exits with 1 if any.

    python3 tests/tidy.py [ROOT]
    python3 tests/tidy.py --prose ...      the English of comments and docs: tests/prose.py
"""

import pathlib
import re
import shutil
import subprocess
import sys

import class_limits
import commits
import module_uses

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_CHARACTERS_MAX = 100

# Which modules may include which. A module is a folder. A file in ROOF belongs to the module
# FOLDER/roof, which is above the others of its folder. A module may use those that its line names, and
# itself; tests may use everything.
MAY_INCLUDE = {
    "proto/host": "",
    "proto/base": "proto/host",
    "proto": "proto/base proto/host",
    "proto/health": "proto proto/base",
    "attention": "attention/paged proto*",
    "attention/paged": "proto*",
    "attention/matrix": "attention proto*",
    "attention/query": "attention proto*",
    "attention/target": "attention attention/matrix proto*",
    "attention/score": "attention attention/matrix attention/target proto*",
    "attention/device": "attention proto*",
    "attention/roof": "attention attention/matrix attention/target proto*",
    "store/memory": "attention* proto*",
    "store/formats": "store/memory proto*",
    "store/disk": "store/corpus store/formats store/memory proto*",
    "store/corpus": "store/formats proto*",
    "store": "store/disk store/formats store/memory proto*",
    "transport": "proto*",
    "transport/shm": "transport proto*",
    "transport/tcp": "transport proto*",
    "transport/verbs": "transport proto*",
    "client": "attention transport store* proto*",
    "client/sizing": "client/cost proto*",
    "client/rank": "client/cost proto*",
    "client/simulate": "client/cost client/prefetch client/rank client/sizing transport store/corpus proto*",
    "client/cost": "client attention attention/target transport store* proto*",
    "client/public": "client client/cost attention transport store* proto*",
    "client/context": "client client/public client/cost attention attention/paged transport store* proto*",
    "client/prefetch": "client client/context client/cost proto*",
    "client/holders": "client client/public client/context client/cost attention transport store* proto*",
    "client/plan": "client client/context client/cost attention attention/paged transport store* proto*",
    "client/trace": "transport proto*",
    "client/attend": "client client/public client/plan client/trace client/context client/cost attention transport proto*",
    "client/call": "client client/public client/attend client/plan client/trace client/context client/holders client/cost attention "
                   "attention/query attention/score transport store* proto*",
    "client/paged": "client client/call client/cost client/holders attention transport store* proto*",
    "client/roof": "client client/public client/call client/attend client/plan client/trace client/context client/holders client/cost client/prefetch "
                   "client/paged attention transport store* proto*",
    "client/grpc": "client client/public client/cost client/rank client/holders attention transport store* proto*",
    "client/publish": "client/grpc store* proto*",
    "client/bindings/c": "client/roof client client/public client/call client/plan client/context client/cost client/grpc client/rank "
                         "client/holders client/publish attention attention/device transport* proto*",
    "client/bindings/c/fetch": "client/bindings/c client/roof client client/holders attention attention/paged proto*",
    "client/bindings/ggml": "client/roof client client/public client/call client/context client/grpc client/holders "
                            "attention transport store* proto*",
    "client/bindings/ggml/module": "client/bindings/ggml client/roof client client/grpc client/holders attention "
                                   "transport* store* proto*",
    "client/tools/reference_engine": "attention proto*",
    "client/tools/characterize": "client/roof client client/paged client/cost attention attention/target transport "
                                 "store* proto*",
    "client/tools/ctl": "client/roof client client/public client/cost client/grpc client/publish client/holders transport "
                        "store* proto*",
    "client/tools/ctl/fleet": "client/tools/ctl client/roof client client/public client/grpc client/publish "
                              "client/rank client/holders transport store* proto*",
    "client/tools/ctl/doctor": "client/tools/ctl client/grpc proto*",
    "client/tools/ctl/ingest": "client/tools/ctl client/tools/ctl/fleet client/tools/ctl/corpus store/memory proto*",
    "client/tools/ctl/shell": "client/tools/ctl proto*",
    "client/tools/ctl/simulate": "client/tools/ctl client/cost client/simulate store/formats proto*",
    "client/tools/ctl/plan": "client/tools/ctl client/sizing client/cost store/formats proto*",
    "client/tools/ctl/corpus": "client/tools/ctl client/tools/ctl/fleet client/tools/reference_engine client/roof client "
                               "client/grpc client/publish client/holders attention attention/query transport store* "
                               "proto*",
    "client/tools/ctl/query": "client/tools/ctl* client/paged client/tools/characterize client/cost client/public "
                              "client/tools/reference_engine client/grpc client/publish client/holders client/prefetch "
                              "client/roof client attention attention/target transport* store* proto*",
    "server/session": "transport store* proto*",
    "server/score": "server/session attention/score transport store/memory proto*",
    "server/batch": "server/score server/session attention attention/query transport store* proto*",
    "server/dispatch": "server/batch server/score server/session attention attention/score transport store* proto*",
    "server/holder": "server/dispatch server/batch server/score server/session client/holders attention transport store* proto*",
    "server/directory/log": "store* proto*",
    "server/directory/prompt": "store/memory proto*",
    "server/directory/coverage": "proto*",
    "server/directory/tables": "server/directory/coverage server/directory/log server/directory/prompt store* proto*",
    "server/directory/ranking": "client/cost client/rank proto*",
    "server/directory/replication": "server/directory/coverage server/directory/tables store/memory proto*",
    "server/directory": "server/directory/coverage server/directory/log server/directory/prompt "
                        "server/directory/replication server/directory/tables server/session client* transport store* proto*",
    "server/directory/etcd": "server/directory server/directory/log client/grpc store* proto*",
    "server/upkeep": "server/directory server/directory/tables server/session client* transport store* proto*",
    "server/rpc": "client* attention transport store* proto*",
    "server/services": "server/rpc server/directory server/directory/ranking server/holder server/upkeep server/session client* "
                       "attention attention/target transport store* proto*",
    "server/telemetry": "proto*",
    "server/listen": "client/grpc transport proto*",
    "server/web": "server/directory* server/holder server/listen server/session server/upkeep client* transport store* proto*",
    "server/health": "server/directory* server/holder server/session server/upkeep client* transport store* proto*",
    "server/daemon": "server/directory* server/rpc server/health server/holder server/listen server/services "
                     "server/session server/telemetry "
                     "server/upkeep server/web client* attention* transport* store* proto*",
    "server/daemon/roles": "server/daemon server/directory* server/rpc server/health server/holder server/listen "
                           "server/services server/session server/telemetry server/upkeep client* attention* "
                           "transport* store* proto*",
    "server/daemon/roof": "server/daemon server/daemon/roles server/directory* server/rpc server/health server/holder "
                          "server/services server/telemetry server/upkeep server/web client* attention* store* proto*",
    "server/manual": "server/daemon client/tools/ctl/shell proto*",
    "server": "server/daemon server/daemon/roof proto*",
}
ROOF = {"attention/kernel_target", "client/requester", "client/requester_options", "client/requester_stats", "client/explain",
        "client/live_costs", "client/live_prefill", "client/remeasure", "server/daemon/daemon", "server/daemon/daemon_run"}
# Public headers that modules below the roof include, too.
PUBLIC = {"client/estimate", "client/explanation", "client/holder_view"}
FOLDERS = {module.split("/")[0] for module in MAY_INCLUDE} | {"tests"}
# ckvctl is a program: code that the library and the daemon share with it is not in its folder.
PROGRAM = "client/tools/ctl"
# A folder with more files than this has a part that should be its own module.
MODULE_FILES_MAX = 40
README_LINES_MAX = 18

# A .cc of the product with more lines than the first opens with a comment on its order of work: at least two
# lines, which begin within the first OPENING_WITHIN, before the first definition, and are not that definition's.
OPENED_LINES_MIN = 150
OPENING_LINES_MIN = 2
OPENING_WITHIN = 40

# In proto, only the header convert uses protobuf.
PROTOBUF_FREE = {"attention", "store", "transport"}
GRPC_FILES = re.compile(
    r"^(server/(services|rpc|listen|daemon/roles)/.*|server/[a-z]+/[a-z_]*(service|stub)\.(h|cc)|server/(daemon/daemon|directory/etcd/etcd_client|main)\.(h|cc)"
    r"|client/grpc/.*|client/publish/.*|client/tools/ctl/.*|proto/convert\.(h|cc)|tests/.*)$"
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
    (re.compile(r"\b_tile_\w+|\b__tile\w+|__builtin_ia32_t(ile|dp)\w+|#include <amx\w*intrin\.h>"),
     "tile intrinsics, which gcc 12 translates without memory clobbers; take attention/matrix/tile_amx.inl.h"),
    (re.compile(r"std::chrono::(steady|system|high_resolution)_clock|clock_gettime\(|gettimeofday\("),
     "reads time; take a Clock"),
    (re.compile(r"\b(Lock|Await|Wait|WaitForNotification)\w*With(Timeout|Deadline)\("),
     "waits by the wall clock; take a Clock"),
]
# The clock itself, and measurements of the machine under test.
CLOCKS = r"proto/base/clock\.cc|proto/host/monotonic_wait\.cc"
ALLOWED = {"reads time": re.compile(rf"^({CLOCKS}|tests/bench/.*|tests/support/clock_step\.c)$"),
           "waits by the wall clock": re.compile(rf"^({CLOCKS}|tests/.*)$")}
# A static object of a function is destroyed when the process ends, while threads of an engine may
# still compute through our library.
STATIC_OBJECT = re.compile(
    r"^\s+static (const )?(std::(?!atomic)\w+|absl::(?!Mutex)\w+|[A-Z]\w*)(<.*>)? \w+( =|;|\{)")
STATIC_ALLOWED = re.compile(r"^(client/tools/ctl|tests)/|\.h$")
# Only Debian's Python finds Debian's packages, and another one may be first on PATH.
PYTHON_CHOICE = "deploy/python.sh"
PYTHON_SHEBANG = "#!/usr/bin/python3"
PYTHON_RULE = ("tests/tidy.py", "tests/tidy_test.py")  # which contain the forbidden texts
PYTHON_RUN = {
    ".sh": re.compile(r"(^|[\s;|&(\"'=])(\S*/)?python3?(?=\s|$)"),
    ".cmake": re.compile(r"(^|[\s(])(/\S*/)?python3(?=[\s)]|$)|find_package\(Python|find_program\([^)]*python"),
    ".py": re.compile(r"[\[(,]\s*[\"'](/usr/bin/|env )?python3[\"']"),
}
SKIP_OF_PYTHON = re.compile(r"\.skipTest\((?!skip\.say\()|@unittest\.skip|raise (unittest\.)?SkipTest")
# At the beginning of a line, where clang-format puts what is directly in a namespace.
NAMESPACE_OR_TYPE = re.compile(
    r"^namespace (?P<space>ckv[\w:]*) \{(?!\s*\})|"
    r"^(?:class|struct)\s+(?:\[\[[^\]]*\]\]\s*|alignas\([^)]*\)\s*|[A-Z][A-Z_]+(?:\([^)]*\))?\s+)*"
    r"(?P<type>\w+)(?:\s+final)?\s*(?::(?!:)[^;{]*)?\{", re.M)
# A wire struct: the layout of data in a slot or on a socket.
WIRE_STRUCT = re.compile(r"^struct (\w*(?:Header|Entry|Hello|Frame)) \{", re.M)


def tracked(root):
    """The files that git tracks or would track. Without git, all but built ones."""
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
            allowed = ALLOWED.get(why.split(";")[0])
            if pattern.search(line) and not (allowed and allowed.match(name)):
                report(name, number, why)
        if STATIC_OBJECT.match(line) and not STATIC_ALLOWED.search(name):
            report(name, number, "a static object that ends before other threads do; never free it")
    for number, count in functions(code):
        if count > FUNCTION_LINES_MAX:
            report(name, number, f"a function of {count} lines, limit {FUNCTION_LINES_MAX}")
    if folder != "tests":
        for number, what in class_limits.breaches(code):
            report(name, number, what)
    check_skips(name, text, report)
    check_opening(name, lines, report)
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


def has_opening(lines):
    """Whether a comment on the file precedes its first definition. One directly above a definition is on that alone."""
    count = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("//"):
            count += 1
            continue
        if count >= OPENING_LINES_MIN and (not line.strip() or line.startswith("#")):
            return number - count <= OPENING_WITHIN
        count = 0
        if line.strip() and not re.match(r"#|using |namespace [\w:]* ?\{|extern \"C\" \{", line):
            return False
    return False


def check_opening(name, lines, report):
    if name.endswith(".cc") and not name.startswith("tests/") and len(lines) - 1 > OPENED_LINES_MIN:
        if not has_opening(lines):
            report(name, 1, f"over {OPENED_LINES_MIN} lines without a first comment on its order of work, of "
                            f"{OPENING_LINES_MIN} lines or more")


def module_of(name):
    """The module of a file: its folder, or the roof above the modules of that folder."""
    folder, _, base = name.rpartition("/")
    stem = re.sub(r"\.(inl\.)?(h|cc)$", "", base)
    if f"{folder}/{stem}" in PUBLIC:
        return f"{folder}/public"
    return f"{folder}/roof" if f"{folder}/{stem}" in ROOF else folder


def may_include(module, other):
    """Whether a file of `module` may include one of `other`. A name with * includes all modules below it."""
    if module == other:
        return True
    for allowed in MAY_INCLUDE[module].split():
        if allowed.endswith("*"):
            below = allowed[:-1]
            if other == below or other.startswith(below + "/"):
                return below == PROGRAM or not other.startswith(PROGRAM)
        elif other == allowed:
            return True
    return False


def check_skips(name, text, report):
    """A test that is skipped must name what would run it: tests/outcome.py reports both at the end of a run."""
    for match in re.finditer(r"GTEST_SKIP\(\)[^;]*(?:; to run it: )?[^;]*;", text):
        if "; to run it: " not in match.group(0):
            report(name, text[:match.start()].count("\n") + 1, 'a skip without "; to run it: " and what would')
    for match in SKIP_OF_PYTHON.finditer(text):
        report(name, text[:match.start()].count("\n") + 1, "a skip without a remedy; take skip.say of tests/support/skip.py")


def check_python(name, text, report):
    """Scripts and tests run the Python that deploy/python.sh chooses. Those in Python run their own."""
    kind = ".cmake" if name.endswith("CMakeLists.txt") else pathlib.PurePosixPath(name).suffix
    for number, line in enumerate(text.split("\n"), 1):
        if kind == ".py" and number == 1 and line.startswith("#!") and line != PYTHON_SHEBANG:
            report(name, 1, f"begins with {line}: which Python that is depends on PATH; take {PYTHON_SHEBANG}")
        code = line.split("#")[0]
        if PYTHON_RUN[kind].search(code):
            report(name, number, "runs a Python of its own choice; take " +
                   {".py": "sys.executable", ".sh": PYTHON_CHOICE, ".cmake": "${CKV_PYTHON}"}[kind])


def check_modules(sources, others, report):
    """Each module is in MAY_INCLUDE, has a limited number of files, and has a README.md."""
    modules = {}
    for name in sources:
        modules.setdefault(name.rpartition("/")[0], []).append(name)
    for module, names in sorted(modules.items()):
        top = module.split("/")[0]
        if top in FOLDERS and len(names) > MODULE_FILES_MAX:
            report(module, 1, f"{len(names)} files side by side, limit {MODULE_FILES_MAX}: name a module")
        if top == "tests" or top not in FOLDERS:
            continue
        if module not in MAY_INCLUDE:
            report(module, 1, "a module that tests/tidy.py does not know: say there what it may include")
        text = others.get(f"{module}/README.md")
        if text is None:
            report(module, 1, "no README.md: what lives here, who may use it, what to open first")
        elif text.count("\n") > README_LINES_MAX:
            report(f"{module}/README.md", 1, f"more than {README_LINES_MAX} lines")
        elif not text.startswith("# "):
            report(f"{module}/README.md", 1, "does not begin with a title: clang-format takes no .md")


def check_arrows(report):
    """The allowed includes have no cycle: no module may use one that may use it."""
    modules = list(MAY_INCLUDE)
    reach = {module: {o for o in modules if o != module and may_include(module, o)} for module in modules}
    done = set()
    while len(done) < len(modules):
        free = {module for module in modules if module not in done and reach[module] <= done}
        if not free:
            report("tests/tidy.py", 1, f"arrows in a circle among {sorted(set(modules) - done)}")
            return
        done |= free


def check_include(name, folder, number, line, report):
    match = re.match(r'\s*#\s*include\s*[<"]([^">]+/[^">]+)[">]', line)
    if match and folder in FOLDERS - {"tests"} and match.group(1).split("/")[0] in FOLDERS:
        module, other = module_of(name), module_of(match.group(1))
        if module in MAY_INCLUDE and not may_include(module, other):
            report(name, number, f"{module} may not include {other}")
    if GRPC_INCLUDE.search(line) and not GRPC_FILES.match(name):
        report(name, number, "gRPC and protobuf stay at the edge (services, stubs, ctl)")
    if VERBS_INCLUDE.search(line) and not name.startswith(("transport/verbs/", "tests/")):
        report(name, number, "libibverbs stays in transport/verbs")
    if PROMETHEUS_INCLUDE.search(line) and not name.startswith("server/web/metrics"):
        report(name, number, "prometheus-cpp stays in server/web/metrics*")


def check_tree(sources, report):
    """Each header is included, and each .cc is tested."""
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


def check_types(sources, report):
    """A type of the product has its name alone in its namespace: of two inline functions of one name, the linker
    takes one for both. Reads headers; a .cc has its types in an anonymous namespace."""
    seen = {}
    for name, text in sorted(sources.items()):
        if not name.endswith(".h") or name.startswith("tests/"):
            continue
        code, space = strip_comments_and_strings(text), ""
        for match in NAMESPACE_OR_TYPE.finditer(code):
            if match.group("space") is not None:
                space = match.group("space")
                continue
            other = seen.setdefault((space, match.group("type")), name)
            if other != name:
                report(name, code[:match.start()].count("\n") + 1,
                       f"{space}::{match.group('type')} is a type of {other}, too")


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
    if any(n.startswith(("client/tools/ctl/", "server/daemon/", "server/main")) for n in [name, *users]):
        return
    report(name, 1, "a .cc without a test")


def main():
    if "--prose" in sys.argv[1:]:
        import prose
        return prose.main([argument for argument in sys.argv[1:] if argument != "--prose"])
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    breaches = []

    def report(name, line, what):
        breaches.append(f"{name}:{line}: {what}")

    sources, others = {}, {}
    for name in tracked(root):
        if name.endswith("/README.md"):
            others[name] = (root / name).read_text(encoding="utf-8")
        if name.split("/")[0] in FOLDERS and name.endswith((".h", ".cc", ".c")):
            sources[name] = (root / name).read_text(encoding="utf-8")
        if name.endswith((".sh", ".cmake", ".py", "CMakeLists.txt")) and name not in (PYTHON_CHOICE, *PYTHON_RULE):
            check_python(name, (root / name).read_text(encoding="utf-8"), report)
            check_skips(name, (root / name).read_text(encoding="utf-8"), report)
    for name, text in sources.items():
        check_file(name, text, report)
    check_tree(sources, report)
    check_types(sources, report)
    check_modules(sources, others, report)
    check_arrows(report)
    for short, what in commits.breaches(root):
        report(f"commit {short}", 1, what)
    for name, what in module_uses.breaches(sources, others):
        report(name, 1, what)
    for breach in breaches:
        print(breach)
    print(f"tidy: {len(sources)} files, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
