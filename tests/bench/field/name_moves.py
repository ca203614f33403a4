"""The name of the directory moves to another address: how long until the fleet is served from there."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/bench"))
sys.path.append(str(ROOT / "tests/support"))
import skip  # noqa: E402
from bar import NOT_HERE  # noqa: E402
from priority import usual_priority  # noqa: E402


@usual_priority()
def figures(build):
    """{"name_moves": {"seconds": ..., "leases": the same in leases}}, or why there are none."""
    ran = subprocess.run([sys.executable, ROOT / "tests/e2e/name_moves_e2e.py", "--ckvd", build / "bin/ckvd", "--ckvctl",
                          build / "bin/ckvctl", "--seconds"], capture_output=True, text=True, check=False)
    if ran.returncode == skip.CODE:
        return {NOT_HERE: ran.stdout.strip()}
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr)
    seconds, lease_s = map(float, ran.stdout.split())
    return {"name_moves": {"seconds": seconds, "leases": seconds / lease_s}}
