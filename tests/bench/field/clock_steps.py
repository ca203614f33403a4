"""The long form of tests/e2e/clock_steps_e2e.py: the clock of each program is set, one after another, then all at once."""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from priority import usual_priority  # noqa: E402


@usual_priority()
def figures(build):
    """{"steps": counts over both rounds}; prints what failed first."""
    import clock_steps_e2e as steps

    steps.PROGRAMS.ckvd, steps.PROGRAMS.ckvctl, steps.PROGRAMS.attend_caller = (
        build / "bin" / name for name in ("ckvd", "ckvctl", "attend_caller"))
    library = next(pathlib.Path(build).resolve().glob("tests/**/libclock_step.so"))
    total = {}
    for one_by_one in (True, False):
        with tempfile.TemporaryDirectory(prefix="ckv-clock-steps-") as name:
            said = steps.play(pathlib.Path(name), library, one_by_one)
        print(f"clock_steps: {said}", file=sys.stderr, flush=True)
        for key in ("steps", "calls", "failed", "changed", "lost", "not_held", "unrenewed", "wall_waits"):
            total[key] = total.get(key, 0) + said[key]
    return {"steps": total}
