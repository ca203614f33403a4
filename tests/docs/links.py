#!/usr/bin/python3
"""Goal: all files and metrics named in README, the handbook, the decisions and the folders' READMEs exist.

Method: each relative link, each `path/in/the/tree`, each file that a block of code names, and each
metric is looked up; in a folder's README also each `file.h`, in that folder. README's table of folders
names every module, which is a folder's subfolder with its own README.

    python3 tests/docs/links.py           lists what is not there, and where it may have gone
    python3 tests/docs/links.py --fix     rewrites paths of files that have moved and kept their name
"""

import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
import pages  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = (*pages.FOLDERS, "deploy", "tests")
PATH = re.compile(rf"^(?:{'|'.join(FOLDERS)})/[\w./*{{}},-]*$")
# A file of this tree in a block of code. Blocks also contain paths of other trees and of build output.
FILE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:h|cc|proto|py|sh|md|csv|txt)(?!\w)")
# A file, as the README in the same folder names it.
BESIDE = re.compile(r"^[\w/*.]+\.(?:h|cc|proto|\*)$")
METRIC = re.compile(r"^ckv_(?:build|directory|holder|lease|replicas|requester)_[a-z_]+")


def expand(path):
    """Expands a/{b,c}.h to a/b.h and a/c.h."""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [name for part in match.group(1).split(",")
            for name in expand(path[:match.start()] + part.strip() + path[match.end():])]


def is_there(root, path):
    if "*" in path:
        return any(root.glob(path.rstrip("/")))
    return (root / path).exists()


def names_in(page, text):
    """(line, name, whether it is relative to the page) of each path that a page names."""
    in_room = page.parts[0] in pages.FOLDERS
    prose = pages.without_blocks(text).split("\n")
    for number, (line, shown) in enumerate(zip(text.split("\n"), prose), 1):
        for target in pages.LINK.findall(shown):
            if not re.match(r"[a-z]+:|#", target):
                yield number, target.split("#")[0], True
        for span in pages.CODE_SPAN.findall(shown):
            if PATH.match(span):
                yield number, span, False
            elif in_room and BESIDE.match(span):
                yield number, span, True
        if line != shown:
            for name in FILE.findall(line):
                yield number, name, False


def metrics_in(text):
    for number, line in enumerate(pages.without_blocks(text).split("\n"), 1):
        for span in pages.CODE_SPAN.findall(line):
            match = METRIC.match(span)
            if match:
                yield number, match.group(0)


def moved(files, path):
    """The only file in the tree with the name of `path`, or None."""
    found = [name for name in files if name.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]]
    return found[0] if len(found) == 1 else None


def check(root, files, metrics):
    """(page, line, what is wrong, name, its new path or None) of each breach."""
    for page in pages.everything(root):
        text = (root / page).read_text(encoding="utf-8")
        for line, name, is_beside in names_in(page, text):
            base = root / page.parent if is_beside else root
            up = "../" * len(page.parent.parts) if is_beside else ""
            for path in expand(name):
                if not is_there(base, path):
                    new = moved(files, path)
                    yield page, line, f"{path} is not there", path, up + new if new else None
        for line, name in metrics_in(text):
            if name not in metrics:
                yield page, line, f"{name} is served nowhere", name, None


def check_rooms(root):
    lines = (root / "README.md").read_text(encoding="utf-8").split("\n")
    for page in pages.rooms(root):
        if len(page.parts) != 3:
            continue
        folder, room, _ = page.parts
        rows = [(n, line) for n, line in enumerate(lines, 1) if line.startswith(f"| `{folder}/`")]
        if not any(f"`{room}`" in line for _, line in rows):
            number = rows[0][0] if rows else 1
            yield pathlib.Path("README.md"), number, f"its table of folders has no {folder}/{room}", "", None


def fix(root, page, name, new):
    """Rewrites a path that a page names."""
    path = root / page
    text = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", new, path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


def main(arguments):
    root = ROOT
    if "--root" in arguments:
        root = pathlib.Path(arguments[arguments.index("--root") + 1])
    run = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True)
    files = run.stdout.split("\n") if run.returncode == 0 and (root / ".git").exists() else [
        str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    files = [name for name in files if (root / name).is_file()]
    metrics = set(re.findall(r'"(ckv_[a-z_]+)"', "".join(
        (root / name).read_text(encoding="utf-8") for name in files
        if name.startswith("server/") and name.endswith(".cc"))))
    errors = 0
    for page, line, what, name, new in [*check(root, files, metrics), *check_rooms(root)]:
        if new and "--fix" in arguments:
            fix(root, page, name, new)
            print(f"{page}:{line}: {name} is {new} now")
            continue
        errors += 1
        print(f"{page}:{line}: {what}" + (f"; {new} is (--fix)" if new else ""))
    print(f"links: {len(pages.everything(root))} pages, {errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
