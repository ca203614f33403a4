"""Files of a holder's store that take as long to open as a test wants."""

import errno
import os
import select
import shutil
import time

PATIENCE_S = 60


class SlowFiles:
    """FIFOs in place of chunk files, in one folder. A holder that starts opens them one after the other, and
    blocks at each until the test opens it too. Then it finds no chunk in it, and quarantines it."""

    def __init__(self, store, count):
        """store: of a holder that has run, and is not running now."""
        folder = store / "chunks" / "00" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        self._paths = [folder / f"000{i:061x}" for i in range(count)]
        for path in self._paths:
            os.mkfifo(path)
        for path in (folder.parent, folder, *self._paths):
            shutil.chown(path, store.owner(), store.group())

    def let_go(self):
        """Waits until the holder blocks at a file, and releases that one."""
        end = time.monotonic() + PATIENCE_S
        while not any(self._open(path) for path in self._paths):
            if time.monotonic() > end:
                raise AssertionError(f"after {PATIENCE_S} s none of {len(self._paths)} slow files is opened")
            select.select([], [], [], 0.01)

    def _open(self, path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:  # no process waits at it
                raise
            return False
        self._paths.remove(path)
        return True
