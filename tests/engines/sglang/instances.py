"""Instances of SGLang's storage, each a process: two ranks, one that writes, one that reads and loses its fleet.

    instances.py --directory HOST:PORT --pids DIRECTORY,HOLDER,HOLDER --ckvctl PROGRAM

Runs in environment.py's Python; sglang_e2e.py calls it. Exits with 0 if all is as it should be. SGLang is imported
once, for ten seconds or so, and the others are forked before this process opens ckv.
"""

import argparse
import os
import sys
import tempfile
import traceback

import controllers
import ranks
import reader
import writer


def fork(work):
    """A child that runs work() and exits with 0 if that is true. Returns its id."""
    child = os.fork()
    if child != 0:
        return child
    code = 1
    try:
        code = 0 if work() else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(*children):
    """Waits for children. Exits if one was not well."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        sys.exit(f"processes ended with {codes}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--directory", required=True)
    parser.add_argument("--ckvctl", required=True)
    parser.add_argument("--pids", required=True, type=lambda text: [int(pid) for pid in text.split(",")])
    parser.parse_args(namespace=controllers.ARGUMENTS)
    with tempfile.TemporaryDirectory() as folder:
        ended(*[fork(lambda one=rank: ranks.run(one, f"{folder}/meet")) for rank in range(2)])
    ended(fork(writer.run))
    return 0 if reader.run() else 1


if __name__ == "__main__":
    sys.exit(main())
