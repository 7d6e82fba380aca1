"""The source tree as the checks see it: tracked files, and new ones that git does not ignore."""

import os
import pathlib
import subprocess


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.warnings = []
        self.skipped = []
        self._lines = {}
        self._files = self._list_files()
        self._folders = {parent for path in self._files for parent in self._parents(path)}

    def _list_files(self):
        listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=self.root, capture_output=True,
                                 check=False)
        if listing.returncode == 0:
            names = {name for name in listing.stdout.decode().split("\0") if name}
        else:  # an unpacked archive
            names = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
            names = {name for name in names if not name.startswith(("build/", ".git/"))}
        return sorted(name for name in names if (self.root / name).is_file())

    @staticmethod
    def _parents(path):
        while "/" in path:
            path = path.rsplit("/", 1)[0]
            yield path

    def files(self, *endings):
        """Paths from the root whose name ends so; all without endings."""
        return [path for path in self._files if not endings or path.endswith(endings)]

    def text_files(self):
        return [path for path in self._files if self.lines(path)]

    def lines(self, path):
        if path not in self._lines:
            data = (self.root / path).read_bytes() if (self.root / path).is_file() else b""
            self._lines[path] = [] if b"\0" in data else data.decode("utf-8", "replace").splitlines()
        return self._lines[path]

    def exists(self, path):
        """A file or folder of the tree; a pattern matches when one does."""
        path = os.path.normpath(path)
        if any(mark in path for mark in "*?["):
            return any(self.root.glob(path))
        return path == "." or path in self._folders or (self.root / path).is_file()

    def warn(self, where, message):
        self.warnings.append((where, message))

    def skip(self, reason):
        self.skipped.append(reason)
