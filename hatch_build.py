"""The hot path in C for wheels and editable installs, where it can be compiled; else the same wheel without it."""

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    """Compiles before the wheel is put together, and then names the Python and the platform that it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install has it beside the source; a wheel is given its own, made somewhere else."""
        native = Path(self.root) / "src" / "forebay" / "native"
        relay = runpy.run_path(str(native / "build.py"))
        name = relay["file_name"]()
        self.folder = tempfile.mkdtemp()
        target = native / name if version == "editable" else Path(self.folder) / name
        why = relay["build"](target)
        if why:
            self.app.display_warning(f"streams will be relayed in Python: {why}")
            return
        if version != "editable":
            build_data["force_include"][str(target)] = f"forebay/native/{name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        del version, build_data, artifact_path
        shutil.rmtree(self.folder, ignore_errors=True)
