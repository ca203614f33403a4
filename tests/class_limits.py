"""Limits of a class: how many functions and data members it may declare. tests/tidy.py reports the breaches.

A class with more is several classes. A struct with only public data (settings, a wire header, a snapshot of counters) is a
record: its members have no limit.
"""

import re

CLASS_METHODS_MAX = 40
CLASS_MEMBERS_MAX = 25

HEAD = re.compile(
    r"^[ \t]*(?:template\s*<[^;{]*>\s*)?(?P<key>class|struct)\s+(?:\[\[[^\]]*\]\]\s*|alignas\([^)]*\)\s*|"
    r"[A-Z][A-Z_]+(?:\([^)]*\))?\s+)*(?P<name>\w+(?:::\w+)*)(?:\s+final)?\s*(?::(?!:)[^;{]*)?\{", re.M)
NOT_A_MEMBER = re.compile(r"(using|friend|class|struct|union|enum|typedef|static_assert|static constexpr|"
                          r"static inline constexpr|inline static constexpr)\b")
ACCESS = re.compile(r"\b(public|private|protected):")
# ABSL_GUARDED_BY(mu_) and its relatives look like calls.
ANNOTATION = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+(?:\((?:[^()]|\([^()]*\))*\))?")
# The arguments of templates: std::function<void(int)> is a type.
TEMPLATE = re.compile(r"<[^<>;]*>")


def body_of(code, opening):
    """The text between the brace at `opening` and its partner, with what inner braces contain left out."""
    depth, kept = 0, []
    for at in range(opening, len(code)):
        if code[at] == "}":
            depth -= 1
            if depth == 0:
                break
            if depth == 1:
                kept.append(";")  # the end of a function body, of an initialiser or of an inner type
        elif code[at] == "{":
            depth += 1
        elif depth == 1:
            kept.append(code[at])
    return "".join(kept)


def count(body):
    """(functions, data members) that a class body declares."""
    methods = members = 0
    for statement in ACCESS.sub(";", body).split(";"):
        statement = ANNOTATION.sub("", statement).strip()
        if not statement or NOT_A_MEMBER.match(statement):
            continue
        declared = statement
        while TEMPLATE.search(declared):
            declared = TEMPLATE.sub("", declared)
        if re.search(r"\boperator\b", declared) or "(" in re.split(r"(?<![=!<>])=(?!=)", declared)[0]:
            methods += 1
        elif re.search(r"\w\s+[*&]*\w", declared) or re.search(r"\w[*&]+\s*\w", declared):
            members += 1
    return methods, members


def breaches(code):
    """(line, message) for each class of the C++ text `code` (without comments and strings) over a limit."""
    for match in HEAD.finditer(code):
        methods, members = count(body_of(code, match.end() - 1))
        line = code[:match.start("key")].count("\n") + 1
        name = match.group("name")
        if methods > CLASS_METHODS_MAX:
            yield line, f"{name} declares {methods} functions, limit {CLASS_METHODS_MAX}: it is two classes"
        record = match.group("key") == "struct" and methods <= 3
        if members > CLASS_MEMBERS_MAX and not record:
            yield line, f"{name} has {members} data members, limit {CLASS_MEMBERS_MAX}: it is two classes"
