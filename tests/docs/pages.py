"""Lists the pages that people read, and parses their blocks of code, with marks, and the names in them.

A block of code is fenced and names its language. A block of commands (sh), a configuration (yaml) or
a program (python) follows an HTML comment that states what tests do with it:

    <!-- run -->               run_commands.py runs it, in the order of the page, in one shell
    <!-- check-config -->      a configuration: ckvd --check-config takes it
    <!-- not run: REASON -->   why a test cannot

A page about several hosts names them. tests/deploy/hosts_test.py reads these:

    <!-- file on HOST: NAME -->    a configuration, which that host has as NAME; it is checked, too
    <!-- run on HOST, HOST -->     commands, which each of them runs
    <!-- prints -->                text: the commands before it print these lines, "..." is anything
    <!-- shows: MISTAKE -->        text: what is seen after a mistake, likewise
"""

import pathlib
import re

FOLDERS = ("attention", "client", "proto", "server", "store", "transport")
MARKED_LANGUAGES = ("sh", "yaml", "python")
PLAIN_LANGUAGES = ("text", "c", "cpp", "cmake", "json")
MARK = re.compile(r"<!-- (run|check-config|not run: \S.*?|file on [\w-]+: [\w.-]+|run on [\w-]+(?:, [\w-]+)*"
                  r"|prints|shows: \S.*?) -->$")
TEXT_MARK = re.compile(r"prints$|shows: ")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block:
    def __init__(self, line, language, mark):
        self.line = line  # of its first line of code
        self.language = language
        self.mark = mark
        self.code = ""


def manual(root):
    """README and the handbook: the pages whose commands run."""
    return [pathlib.Path("README.md"),
            *sorted(p.relative_to(root) for p in (root / "deploy/handbook").glob("*.md"))]


def rooms(root):
    """The READMEs of the product's folders."""
    return sorted(p.relative_to(root) for folder in FOLDERS for p in (root / folder).rglob("README.md"))


def everything(root):
    """The pages of `manual` and `rooms`, and the decisions."""
    adr = sorted(p.relative_to(root) for p in (root / "deploy/adr").glob("*.md"))
    return manual(root) + adr + rooms(root)


def blocks(text):
    """(blocks of code, errors), each error as (line, what)."""
    found, errors = [], []
    block = mark = None
    above = ""
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if block is not None:
            if stripped == "```":
                block = mark = None
            else:
                block.code += line + "\n"
        elif stripped.startswith("```"):
            language = stripped[3:].strip()
            if language not in MARKED_LANGUAGES + PLAIN_LANGUAGES:
                errors.append((number, f"a block of code in '{language}': say one of "
                               + ", ".join(MARKED_LANGUAGES + PLAIN_LANGUAGES)))
            if language in MARKED_LANGUAGES and mark is None:
                errors.append((number, "a block that says neither <!-- run --> nor <!-- not run: REASON -->"))
            elif mark is not None and (language == "text") != bool(TEXT_MARK.match(mark)):
                errors.append((number, f"<!-- {mark} --> before a block in '{language}'"))
            block = Block(number + 1, language, mark)
            found.append(block)
        elif re.match(r" {4}\S", line) and not above:
            errors.append((number, "code by indentation: fence it"))
        elif stripped:
            match = MARK.match(stripped)
            mark = match.group(1) if match else None
        above = stripped
    if block is not None:
        errors.append((block.line, "a block of code without an end"))
    return found, errors


def is_configuration(block):
    return block.mark is not None and (block.mark == "check-config" or block.mark.startswith("file on "))


def lines_missing(expected, text):
    """The lines of a block of text that an output lacks. "..." matches anything; runs of spaces match each other."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    for wanted in filter(None, (" ".join(line.split()) for line in expected.split("\n"))):
        pattern = re.compile(".*?".join(re.escape(part.strip()) for part in wanted.split("...")))
        if not any(pattern.search(line) for line in lines):
            yield wanted


def without_blocks(text):
    """The page without blocks of code. Line numbers do not change."""
    return re.sub(r"^```.*?^```$", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.M | re.S)
