"""One row of a set of benchmarks: what it reads, and its bar."""

# A binary says this of itself, or with "/NAME" of one benchmark, if this machine has nothing to measure.
NOT_HERE = "not_here"


class NotHere(Exception):
    """This machine lacks what a row is about; the text says what."""


class Failed(Exception):
    """What a row measures did not work; the text says why. The row is short."""


def counter(benchmark, name):
    """The median over repetitions of a counter of one benchmark."""
    def value(run):
        for absent in (NOT_HERE, f"{NOT_HERE}/{benchmark}"):
            if absent in run:
                raise NotHere(run[absent])
        return run[benchmark][name]
    return value


class Bar:
    """`value` and `base` read the figures of one binary's run; the limit is an upper one or a lower,
    or there is none and the row is for reading."""

    def __init__(self, measure, binary, value, unit, at_most=None, at_least=None, base=None, base_unit=None):
        self.measure, self.binary, self.value, self.unit = measure, binary, value, unit
        self.at_most, self.at_least = at_most, at_least
        self.base, self.base_unit = base, base_unit or unit

    def limit(self):
        if self.at_most is not None:
            return f"<= {self.at_most} {self.unit}"
        return f">= {self.at_least} {self.unit}" if self.at_least is not None else "-"

    def verdict(self, value):
        if self.at_most is not None:
            return "ok" if value <= self.at_most else "short"
        if self.at_least is not None:
            return "ok" if value >= self.at_least else "short"
        return "-"
