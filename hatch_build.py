"""The hot path in C for wheels and editable installs, where it can be compiled; else the same wheel without it."""

import runpy
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Compiles before the wheel is put together, and then names the Python and the platform that it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install has them beside the sources; a wheel is given its own, made somewhere else."""
        self.folder = tempfile.mkdtemp()
        native = Path(self.root) / "src" / "forebay" / "native"
        relay, modules = runpy.run_path(str(native / "build.py")), runpy.run_path(str(native / "compiling.py"))
        compiled = modules["_COMPILED"]["FOLDER"]
        editable = version == "editable"
        found = [
            self._made(native / relay["file_name"](), relay["build"], editable, "streams will be relayed in Python"),
            # What was compiled takes a minute or two: an editable install keeps what is fresh.
            self._made(compiled, modules["build"], editable, "requests will be handled in Python", fresh=modules["fresh"](compiled)),
        ]
        for made, inside in zip(found, ("", "_compiled/"), strict=True):
            if made is not None and not editable:
                build_data["force_include"][str(made)] = f"forebay/native/{inside}{made.name}"
        if any(found):
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def _made(self, beside: Path, build: Callable[[Path], str], editable: bool, otherwise: str, fresh: bool = False) -> Path | None:
        target = beside if editable else Path(self.folder) / beside.name
        why = "" if fresh and editable else build(target)
        if why:
            self.app.display_warning(f"{otherwise}: {why}")
        return None if why else target

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        del version, build_data, artifact_path
        shutil.rmtree(self.folder, ignore_errors=True)
