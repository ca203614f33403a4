"""The table in which a quick start with an engine compares its agents."""


def table(head, rows):
    """Prints rows of texts under a head. All columns but the first are numbers, so they end together."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                        for i, (text, width) in enumerate(zip(row, widths))))


def mib(count):
    return f"{count / 2 ** 20:.2f} MiB"
