"""Compares what a plug-in wraps, overrides and calls of an engine with a wheel on PyPI: unpacked, not installed."""

import ast
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import skip


def methods(source, name):
    """{method: its parameters} of a class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _parameters(node)
    return {}


def functions(source):
    """{function: its parameters} of a module."""
    return _parameters(ast.parse(source))


def _parameters(node):
    return {one.name: tuple(a.arg for a in one.args.args) for one in node.body if isinstance(one, ast.FunctionDef)}


def fields(source, name):
    """Names of a class' annotated fields and its constants, in order."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [target.id for one in node.body if isinstance(one, (ast.AnnAssign, ast.Assign))
                    for target in ([one.target] if isinstance(one, ast.AnnAssign) else one.targets)]
    return []


def overridden(ours, theirs):
    """A line for each public method of ours that they have with other parameters, or not at all."""
    for method, given in ours.items():
        if not method.startswith("_") and theirs.get(method) != given:
            yield method, theirs.get(method), given


def missing_words(text, words):
    """words: {file: texts that it has}."""
    for name, wanted in words.items():
        yield from (f"{name} has no {word!r}" for word in wanted if word not in text(name))


def compare(package, differences):
    """Prints differences(text of a file by its name) of the wheel; the version is the program's argument.

    Returns the exit code: 1 if there are differences.
    """
    version = f"=={sys.argv[1]}" if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
                               f"{package}{version}"], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            return skip.cannot(f"no wheel of {package}{version}: {' '.join(done.stderr.split())[-200:]}",
                               "a network that reaches PyPI")
        (wheel,) = pathlib.Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as files:
            names = set(files.namelist())
            found = list(differences(lambda name: files.read(name).decode() if name in names else ""))
    for line in found:
        print(f"{wheel.name}: {line}")
    print(f"{wheel.name}: {len(found)} differences")
    return 1 if found else 0
