"""Files of a holder's store that take as long to open as a test wants."""

import errno
import os
import select
import shutil
import time

PATIENCE_S = 60


class SlowFiles:
    """FIFOs where chunks are, in one folder: a holder that starts opens them one after the other, and
    waits at each until it is let go. Then it finds no chunk there, and quarantines it."""

    def __init__(self, store, count):
        """store: of a holder that has run, and does not now."""
        folder = store / "chunks" / "00" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        self._paths = [folder / f"000{i:061x}" for i in range(count)]
        for path in self._paths:
            os.mkfifo(path)
        for path in (folder.parent, folder, *self._paths):
            shutil.chown(path, store.owner(), store.group())

    def let_go(self):
        """Waits until the holder waits at a file, and lets it go on with that."""
        end = time.monotonic() + PATIENCE_S
        while not any(self._open(path) for path in self._paths):
            if time.monotonic() > end:
                raise AssertionError(f"after {PATIENCE_S} s none of {len(self._paths)} slow files is opened")
            select.select([], [], [], 0.01)

    def _open(self, path):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody waits at it
                raise
            return False
        self._paths.remove(path)
        return True
