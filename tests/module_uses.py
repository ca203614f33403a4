#!/usr/bin/python3
"""What each module of the product uses and who uses it, from the includes of its files.

    tests/module_uses.py         writes these two lines into each module's README.md
    tests/tidy.py                refuses a README.md that has others

A module is a folder with .h, .cc or .c files. `client` as a user means files of that folder itself.
"""

import pathlib
import re
import sys

FOLDERS = ("attention", "client", "proto", "server", "store", "transport")
LINES = re.compile(r"^\* Uses: .*\n\* Used by: .*\n", re.M)
ANY = re.compile(r"^\W*(?:Uses|Used by):", re.M)
NONE = "nothing"


def module(name):
    return name.rpartition("/")[0]


def uses(sources):
    """{module: modules that its files include}, of {name: text}."""
    found = {}
    for name, text in sources.items():
        if name.split("/")[0] not in FOLDERS:
            continue
        others = found.setdefault(module(name), set())
        for included in re.findall(r'^\s*#\s*include\s*[<"]([^">]+/[^">]+)[">]', text, re.M):
            if included.split("/")[0] in FOLDERS and included in sources and module(included) != module(name):
                others.add(module(included))
    return found


def lines(found, one):
    """The two lines of a module's README.md."""
    def named(modules):
        return ", ".join(f"`{other}`" for other in sorted(modules)) or NONE

    users = {other for other, others in found.items() if one in others}
    return f"* Uses: {named(found[one])}.\n* Used by: {named(users)}.\n"


def breaches(sources, readmes):
    """(README.md, what is wrong with it), of {name: text} of both."""
    found = uses(sources)
    for one in sorted(found):
        text = readmes.get(f"{one}/README.md")
        if text is not None and (LINES.findall(text) != [lines(found, one)] or len(ANY.findall(text)) != 2):
            yield f"{one}/README.md", "does not say what the module uses and who uses it; run tests/module_uses.py"


def write(root, sources, readmes):
    """Puts the lines where a README.md has them, and at its end where it has none."""
    found = uses(sources)
    for one in found:
        name = f"{one}/README.md"
        if name not in readmes:
            continue
        new = lines(found, one)
        text = readmes[name]
        text = LINES.sub(lambda _: new, text, count=1) if LINES.search(text) else text.rstrip("\n") + "\n\n" + new
        (root / name).write_text(text, encoding="utf-8")


def main():
    import tidy
    root = pathlib.Path(__file__).resolve().parent.parent
    sources, readmes = {}, {}
    for name in tidy.tracked(root):
        if name.endswith("/README.md"):
            readmes[name] = (root / name).read_text(encoding="utf-8")
        elif name.endswith((".h", ".cc", ".c")):
            sources[name] = (root / name).read_text(encoding="utf-8")
    write(root, sources, readmes)


if __name__ == "__main__":
    sys.exit(main())
