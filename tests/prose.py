#!/usr/bin/python3
"""Checks the tree's English. Lists the breaches of rule 13, and exits with 1 if there are any.

    python3 tests/tidy.py --prose [--count] [--root DIR] [FILE-OR-FOLDER...]

Reads the comments and strings of the product's .h, .cc and .proto files, the strings of its .py files,
README.md, those of the product's folders, deploy/handbook/, and the names of tests. Lists, each with file and line:
  * long     a sentence of more than 25 words, anywhere but in a .cc file
  * opener   a comment or a sentence that begins with "Of", "What", "Where" or "Whoever"; a question may
  * clause   "; null:", "; 0:", "; absent:" or "; empty:", which may also begin a sentence; write
             "If unset, ..."
  * word     "such" (but for "no such"), "so long", "whoever", "what it was asked for"; also verbs of posture
             and speech for data (DIALECT): lie, stand, tell, come near, anew, nobody; in strings also say,
             come, go, know, beside, "is asked" (DIALECT_OF_STRINGS). This rule alone reads .py files
  * name     a test's name with one of these words, or that begins with Of, What, Where, Who, Those or How;
             write what is done or refused: RefusesAFrameOfAnotherVersion
tests/prose_allow.txt has the exceptions, each with its justification. --count prints counts per file.
"""

import ast
import fnmatch
import pathlib
import re
import subprocess
import sys

SENTENCE_WORDS_MAX = 25
FOLDERS = ("attention/", "client/", "proto/", "server/", "store/", "transport/")
HANDBOOK = "deploy/handbook/"
ALLOW = "tests/prose_allow.txt"

OPENER = re.compile(r"(?:Of|What|Where|Whoever)(?=[\s,])")
CLAUSE = re.compile(r"(?:; |^)(?:null|0|absent|empty):", re.I)
WORD = re.compile(r"\b(?:(?<!\bno )such|so long|whoever|what it was asked for)\b", re.I)
# Verbs of posture and speech for data, and other words that a reader has to translate.
DIALECT = re.compile(r"\b(?:told|tells?|telling|untold|anew|of before|nobody|anybody|stood|stands?(?! (?:in|for)\b)|lies?|lay"
                     r"|comes? (?:near|back|again)|came (?:near|back)|made good)\b(?!-)", re.I)
# More of them, in strings: errors, logs, helps and metrics have a reader who has not read the code.
DIALECT_OF_STRINGS = re.compile(r"\b(?:says?|said|saying|comes?|came|coming|goes|went|going|knows?|knew|hears?|heard|beside"
                                r"|(?:is|are|was|were)(?: not)? asked)\b(?!-)", re.I)
# More of them, in names of tests, whose words are split: TheLogSaysWhy, test_the_log_says_why.
DIALECT_OF_NAMES = re.compile(r"\b(?:go|asks?|asked|speaks?)\b|^(?:of|what|where|whoever|who|those|how)\b", re.I)
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\s*\)|^TYPED_TEST\(\s*\w+,\s*(\w+)\s*\)"
                       r"|^\s+def test_(\w+)\(", re.M)
# A full stop ends a sentence unless it ends one of these.
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|eqs?|vs|cf|ca|al|incl|resp)|\.\.)\.$")
SENTENCE_END = re.compile(r"[.!?][\"')\]*]*(?=\s)")

# Comments, raw strings, strings and characters of C++ and proto, in that order.
LEXEME = re.compile(
    r'(?P<comment>//[^\n]*)|/\*.*?\*/|R"(?P<tag>\w*)\((?P<raw>.*?)\)(?P=tag)"'
    r'|"(?P<string>(?:\\.|[^"\\\n])*)"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'', re.S)
# Matches a line of code, a formula or a drawing, but no prose.
CODE = re.compile(r"[;{}]$|::|->|==| [=*+] |\(\)|[─►◄│|]|-->|^[A-Za-z_]+\(|^#|^\$|\[.*,.*\]|  //")
GENERATED = re.compile(r"\* (?:Uses|Used by): ")  # by tests/module_uses.py
LIST_ITEM = re.compile(r"(?:[*-]|\d+[.)])\s+")
TABLE_ROW = re.compile(r"(\S+(?: \S+)*?)(\s{2,})(?=\S)")


class Paragraph:
    """Text joined over lines, with the line of each of its characters."""

    def __init__(self, kind):
        self.kind = kind  # comment, string or text
        self.text = ""
        self.starts = []  # (first character, line)

    def add(self, line, text):
        text = text.strip()
        if not text:
            return
        if self.text:
            self.text += " "
        self.starts.append((len(self.text), line))
        self.text += text

    def line_of(self, offset):
        return max((start, line) for start, line in self.starts if start <= offset)[1]

    def sentences(self):
        """(first line, text) of each; code spans count as one word, and hide their full stops."""
        shown = re.sub(r"`[^`]*`", lambda m: "`" + "x" * (len(m.group(0)) - 2) + "`", self.text)
        begin = 0
        for match in list(SENTENCE_END.finditer(shown)) + [None]:
            end = len(shown) if match is None else match.end()
            if match is not None and ABBREVIATION.search(shown[:match.start() + 1]):
                continue
            text = self.text[begin:end]
            if text.strip():
                lead = len(text) - len(text.lstrip())
                yield self.line_of(begin + lead), text.strip()
            begin = end


def word_count(sentence):
    plain = re.sub(r"`[^`]*`", "x", sentence)
    return sum(1 for word in plain.split() if re.search(r"[A-Za-z0-9]", word))


def split_block(lines, kind):
    """Paragraphs of (line, text) pairs. An empty line, a list item or a table's row begins a new one.
    An indented block of lines that looks like code is left out."""
    paragraphs = []
    current = None
    run = []  # indented lines not yet judged

    def close_run():
        nonlocal current
        if run and not any(CODE.search(text.strip()) for _, text in run):
            paragraphs.extend(table_rows(run, kind))
        if run:
            current = None
        run.clear()

    for number, text in lines:
        body = text.strip()
        indent = len(text) - len(text.lstrip())
        if not body:
            close_run()
            current = None
            continue
        item = LIST_ITEM.match(body)
        in_item = current is not None and getattr(current, "is_item", False)
        if indent >= 2 and not item and not in_item:
            run.append((number, text))
            continue
        close_run()
        if item or current is None:
            current = Paragraph(kind)
            current.is_item = bool(item)
            paragraphs.append(current)
            body = body[item.end():] if item else body
        current.add(number, body)
    close_run()
    return paragraphs


def table_rows(run, kind):
    """Rows of "name   text", whose text may continue below itself. Other indented text is joined."""
    rows = []
    column = None
    for number, text in run:
        body = text.strip()
        indent = len(text) - len(text.lstrip())
        cell = TABLE_ROW.match(body)
        if cell and not (column is not None and indent >= column):
            column = indent + cell.end()
            rows.append(Paragraph(kind))
            rows[-1].is_cell = True
            rows[-1].add(number, body[cell.end():])
            continue
        if not rows or (column is not None and indent < column - 1):
            column = None
            rows.append(Paragraph(kind))
        rows[-1].add(number, body)
    return rows


def comment_blocks(text):
    """Blocks of // lines, as [(line, text after the slashes)]. A comment after code begins a new block,
    which continues in the lines below that start in the same column."""
    blocks = []
    before = None  # line and column of the comment last seen
    for match in LEXEME.finditer(text):
        if match.group("comment") is None:
            continue
        line = text.count("\n", 0, match.start()) + 1
        start = text.rfind("\n", 0, match.start()) + 1
        column = match.start() - start
        alone = not text[start:match.start()].strip()
        body = match.group("comment").lstrip("/")
        body = body[1:] if body.startswith(" ") else body
        if before and alone and before == (line - 1, column):
            blocks[-1].append((line, body))
        else:
            blocks.append([(line, body)])
        before = (line, column)
    return blocks


def strings(text):
    """(line, text) of each string literal, adjacent ones joined."""
    joined = None
    end = 0
    for match in LEXEME.finditer(text):
        body = match.group("raw") if match.group("raw") is not None else match.group("string")
        if body is None:
            continue
        if text[text.rfind("\n", 0, match.start()) + 1:match.start()].startswith("#include"):
            continue
        if match.group("string") is not None:
            body = body.replace("\\n", "\n").replace('\\"', '"').replace("\\t", " ")
        if joined is not None and not text[end:match.start()].strip():
            joined.append((text.count("\n", 0, match.start()) + 1, body))
        else:
            if joined:
                yield joined
            joined = [(text.count("\n", 0, match.start()) + 1, body)]
        end = match.end()
    if joined:
        yield joined


def string_paragraphs(pieces):
    """A literal of one word is a name; others are prose, a paragraph to each line they print."""
    paragraph = Paragraph("string")
    for line, body in pieces:
        for index, part in enumerate(body.split("\n")):
            if index:
                if len(paragraph.text.split()) > 1:
                    yield paragraph
                paragraph = Paragraph("string")
            paragraph.add(line, part)
    if len(paragraph.text.split()) > 1:
        yield paragraph


def source_paragraphs(text):
    for block in comment_blocks(text):
        yield from split_block(block, "comment")
    for pieces in strings(text):
        yield from string_paragraphs(pieces)


def python_paragraphs(text):
    """The strings of a Python file, documentation too, a paragraph to each line they print."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from string_paragraphs([(node.lineno, node.value)])


def plain_markdown(text):
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*\*|__", "", text)


def markdown_paragraphs(text):
    """Prose of a Markdown page: no code, no HTML comments; each cell of a table by itself."""
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    block = []
    fence = None
    for number, line in enumerate(text.split("\n") + [""], 1):
        body = line.strip()
        mark = re.match(r"(```+|~~~+)", body)
        if fence is not None or mark:
            if mark and fence is None:
                fence = mark.group(1)
            elif body == fence:
                fence = None
            line = body = ""
        if GENERATED.match(body):
            line = body = ""
        code = re.match(r" {4}|\t", line) and not block
        if body.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", body)[1:-1]:
                if cell.strip(" :-"):
                    block.append((number, plain_markdown(cell).strip()))
                    yield from split_block(block, "text")
                    block = []
        elif not body or code or re.match(r"#+ ", body):
            yield from split_block(block, "text")
            block = []
            if body and not code:
                yield from split_block([(number, plain_markdown(body.lstrip("# ")))], "text")
        else:
            block.append((number, plain_markdown(re.sub(r"^(> ?)+", "", body))))


def dialect_of(paragraph, line, sentence, words):
    for pattern in (DIALECT, DIALECT_OF_STRINGS) if paragraph.kind == "string" else (DIALECT,):
        for found in pattern.finditer(words):
            yield line, f"word: {found.group(0).lower()}, see deploy/handbook/terms.md", sentence


def breaches_of(paragraph, is_long_checked):
    for index, (line, sentence) in enumerate(paragraph.sentences()):
        count = word_count(sentence)
        if is_long_checked and paragraph.kind != "string" and count > SENTENCE_WORDS_MAX:
            yield line, f"long: {count} words", sentence
        # A comment's first word may be lower case. Elsewhere a lower-case "of" continues a sentence.
        head = sentence
        if index == 0 and paragraph.kind == "comment" and not getattr(paragraph, "is_cell", False):
            head = sentence[:1].upper() + sentence[1:]
        if OPENER.match(head) and not sentence.rstrip("\"')").endswith("?"):
            yield line, "opener", sentence
        for _ in CLAUSE.finditer(head):
            yield line, "clause", sentence
        words = re.sub(r"`[^`]*`", "x", sentence)
        for found in WORD.finditer(words):
            yield line, f"word: {found.group(0).lower()}", sentence
        yield from dialect_of(paragraph, line, sentence, words)


def name_breaches(text):
    """Breaches in names of tests, of C++ and Python."""
    for match in TEST_NAME.finditer(text):
        name = next(group for group in match.groups() if group)
        words = re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
        for pattern in (DIALECT, DIALECT_OF_STRINGS, DIALECT_OF_NAMES):
            for found in pattern.finditer(words):
                yield text.count("\n", 0, match.start(match.lastindex)) + 1, f"name: {found.group(0).lower()}", name


def check(name, text):
    """Yields (line, rule, sentence) for each breach in one file."""
    if name.startswith("tests/"):
        return sorted(name_breaches(text))
    if name.endswith(".py"):
        return sorted((breach for paragraph in python_paragraphs(text) for line, sentence in paragraph.sentences()
                       for breach in dialect_of(paragraph, line, sentence, re.sub(r"`[^`]*`", "x", sentence))),
                      key=lambda breach: breach[0])
    if name.endswith(".md"):
        paragraphs = markdown_paragraphs(text)
    else:
        paragraphs = source_paragraphs(text)
    is_long_checked = not name.endswith(".cc")
    found = []
    for paragraph in paragraphs:
        found.extend(breaches_of(paragraph, is_long_checked))
    return sorted(found, key=lambda breach: breach[0])


def is_read(name):
    if name == "README.md" or name.startswith(HANDBOOK) and name.endswith(".md"):
        return True
    if name.endswith(".py"):
        return name.startswith(FOLDERS + ("deploy/", "tests/"))
    if name.startswith("tests/"):
        return name.endswith(".cc")
    return name.startswith(FOLDERS) and name.endswith((".h", ".cc", ".proto", "/README.md"))


def read_allowed(root):
    """[path pattern, words, justification, used] of each entry "PATTERN: words # justification"."""
    entries = []
    path = root / ALLOW
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.match(r"(\S+): (.+?)\s+# (\S.*)$", line)
        if not match:
            raise SystemExit(f"{ALLOW}:{number}: not \"PATTERN: words # defence\"")
        entries.append([match.group(1), match.group(2), number, False])
    return entries


def is_allowed(name, sentence, entries):
    for entry in entries:
        if fnmatch.fnmatch(name, entry[0]) and entry[1] in sentence:
            entry[3] = True
            return True
    return False


def names_of(root):
    run = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True)
    if run.returncode == 0 and (root / ".git").exists():
        names = run.stdout.split("\0")
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*")]
    return sorted(name for name in names if is_read(name) and (root / name).is_file())


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent
    count_only = False
    wanted = []
    while arguments:
        argument = arguments.pop(0)
        if argument == "--count":
            count_only = True
        elif argument == "--root" and arguments:
            root = pathlib.Path(arguments.pop(0))
        elif argument.startswith("-"):
            print(__doc__)
            return 0 if argument in ("-h", "--help") else 2
        else:
            wanted.append(argument.rstrip("/"))
    allowed = read_allowed(root)
    total = 0
    file_count = 0
    for name in names_of(root):
        if wanted and not any(name == w or name.startswith(w + "/") for w in wanted):
            continue
        file_count += 1
        found = [b for b in check(name, (root / name).read_text(encoding="utf-8"))
                 if not is_allowed(name, b[2], allowed)]
        total += len(found)
        if count_only and found:
            print(f"{len(found):5} {name}")
        elif not count_only:
            for line, rule, sentence in found:
                print(f"{name}:{line}: {rule}: {sentence}")
    if not wanted:
        for pattern, words, number, used in allowed:
            if not used:
                total += 1
                print(f"{ALLOW}:{number}: allows what is not there: {pattern}: {words}")
    print(f"prose: {file_count} files, {total} breaches")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
