"""The bars of the set "field": what users of systems like this one reported, tried on ckv.

Each row's figures come from a script of tests/bench/field: `figures(build)` returns {name: {figure: value}}.
"""

# name of a script -> its figures(build); bars.py runs each once.
SCRIPTS = {}

BARS = []
