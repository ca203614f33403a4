"""The results of tests/deploy as figures: systemd's rating of the units, and how many steps of the tests of units and
packages passed under a real systemd.

    python3 tests/bench/unit_figures.py BUILD_DIR
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1] / "deploy"
TREE = TESTS.parents[1]
CANNOT = 77


def run(*command):
    return subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def steps(said, name, *command):
    """Adds to `said` the number of steps that passed, or why there is none. A failed step is the last one printed."""
    done = run(*command)
    if done.returncode == CANNOT:
        said[f"not_here/{name}"] = done.stdout.strip().splitlines()[-1]
        return
    told = len(re.findall(r"(?m)^-- ", done.stdout))
    said[name] = {"steps": told if done.returncode == 0 else max(0, told - 1)}


def figures(build):
    build = pathlib.Path(build).resolve()
    said = {}
    rated = run(sys.executable, TESTS / "exposure_test.py")
    if rated.returncode == CANNOT:
        said["not_here/exposure"] = rated.stdout.strip()
    else:
        limits = re.findall(r"exposure ([\d.]+), limit ([\d.]+)", rated.stdout)
        said["exposure"] = {name: max(float(rating) for rating, limit in limits if limit == of)
                            for name, of in (("plain", "1.2"), ("rdma", "1.5"))}
    machine, programs = TESTS / "machine.sh", build / "bin"
    steps(said, "units", machine, sys.executable, TESTS / "units_test.py", "--ckvd", programs / "ckvd",
          "--ckvctl", programs / "ckvctl")
    with tempfile.TemporaryDirectory() as folder:
        made = run(TREE / "deploy" / "packages.sh", "--preset", build.name, folder)
        if made.returncode == CANNOT:
            said["not_here/packages"] = made.stdout.strip()
        elif made.returncode != 0:
            said["packages"] = {"steps": 0}
        else:
            steps(said, "packages", machine, "--bind", folder, sys.executable, TESTS / "packages_test.py",
                  "--packages", folder)
    return said


if __name__ == "__main__":
    print(json.dumps(figures(sys.argv[1]), indent=2))
