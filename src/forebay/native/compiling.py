"""Compiles the modules named in `compiled` by mypyc, where that and a C compiler are there: ``python …/native/compiling.py``.

It takes a minute or two of a core, so what is fresh is left as it is. The sources are copied first: what is edited meanwhile, and
perhaps taken back, must not be in it under another's hash. The whole folder is replaced at once and nothing in it is written into: a
gateway that runs has the old files mapped. Needs nothing of the package but the two modules beside it.
"""

import ast
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COMPILE_S_MAX = 1800.0
SCRATCH = ".compiling-"
SCRATCH_S_MAX = 2 * COMPILE_S_MAX
"""What is older was left by one that was killed."""
SWAPS_MAX = 5
"""Another may put its own in place at the same time."""
JOBS = 2
OPTIMISED = "2"
COMPILER_WORDS = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
"""What is called from one module to the next is called straight: a table in between is one more line of memory for each, and between two
requests the caches are cold…"""
LINKER_WORDS = ["-Wl,-Bsymbolic", "-Wl,-z,now"]
"""…a fifth of these modules' time. (As GNU's and LLVM's know them on Linux.)"""
_NEEDED = ("mypyc", "setuptools", "msgspec")
_COMPILED: dict[str, Any] = runpy.run_path(str(HERE / "compiled.py"))
_BUILD: dict[str, Any] = runpy.run_path(str(HERE / "build.py"))


def missing() -> str:
    """What it takes and is not there; empty: nothing."""
    words = _BUILD["command"](sysconfig.get_config_var("LDSHARED"), Path(sysconfig.get_path("include")), os.environ)
    if isinstance(words, str):
        return words
    lacks = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    return f"there is no {lacks[0]}" if lacks else ""


def manifest(sources: Path = _COMPILED["SOURCES"]) -> dict[str, Any]:
    """Of what is made of these ``sources`` (`compiled.Manifest`)."""
    compiled, source_of = list(_COMPILED["MODULES"]), _COMPILED["source_of"]
    named: set[str] = set(compiled)
    for module in compiled:
        for node in ast.walk(ast.parse(source_of(module, sources).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = sorted(name for name in named if name.startswith("forebay.") and source_of(name, sources).is_file())
    return {"modules": compiled, "sources": _COMPILED["digests"](ours, sources)}


def fresh(folder: Path) -> bool:
    """Whether what is there is whole, and was made of the present sources."""
    return bool(_COMPILED["all_there"](folder) and _COMPILED["manifest_of"](folder) == manifest())


def build(target: Path) -> str:
    """Make the folder ``target``; returns why that could not be, and nothing where it was."""
    why = missing()
    if why:
        return why
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        forget_killed(target.parent, time.time())
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
            return _build(target, Path(scratch))
    except OSError as error:  # an install that can't be written to, or a full disk
        return f"{target.parent} can't be written to: {error}"


def _build(target: Path, scratch: Path) -> str:
    sources, made = scratch / "sources", scratch / "made"
    others = shutil.ignore_patterns(_COMPILED["FOLDER"].parent.name, "__pycache__", "*.so")
    shutil.copytree(_COMPILED["SOURCES"] / "forebay", sources / "forebay", ignore=others)
    command = [sys.executable, __file__, "--into", str(made), "--scratch", str(scratch)]
    try:
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, errors="replace", timeout=COMPILE_S_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        return f"mypyc failed: {error}"
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return f"mypyc failed: {next((line for line in said if 'error' in line), said[-1] if said else 'without a word')}"
    (made / _COMPILED["MANIFEST"]).write_text(json.dumps(manifest(sources), indent=1))
    put_in_place(made, target, scratch)
    return ""


def put_in_place(made: Path, target: Path, scratch: Path) -> None:
    """``made`` is ``target`` from now on, whatever others put there meanwhile; raises OSError where that can't be."""
    for swap in range(SWAPS_MAX):
        try:
            if target.exists():
                target.rename(scratch / f"before-{swap}")
            made.rename(target)
        except OSError:
            if swap == SWAPS_MAX - 1:
                raise
        else:
            return


def forget_killed(folder: Path, now_s: float) -> None:
    """Remove what compilations left in ``folder`` that were killed. ``now_s``: as the times of files."""
    for left in folder.glob(f"{SCRATCH}*"):
        try:
            if now_s - left.stat().st_mtime > SCRATCH_S_MAX:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # another has just removed it


def _compile(made: Path, scratch: Path) -> None:
    """In a process of its own, in the folder of the sources: setuptools and mypy hold much for the whole of one."""
    from mypyc.build import mypycify
    from setuptools import setup  # type: ignore[import-untyped]

    options = ["--config-file", "", "--ignore-missing-imports", "--cache-dir", str(scratch / "cache")]
    paths = [str(_COMPILED["source_of"](module, Path())) for module in _COMPILED["MODULES"]]
    extensions = mypycify(
        [*options, *paths],
        target_dir=str(scratch / "c"),
        opt_level=OPTIMISED,
        debug_level="0",
        multi_file=True,
        group_name=_COMPILED["GROUP"],
    )
    for extension in extensions:
        if sys.platform == "linux":
            extension.extra_compile_args = [*extension.extra_compile_args, *COMPILER_WORDS]
            extension.extra_link_args = [*extension.extra_link_args, *LINKER_WORDS]
    words = ["-q", "build_ext", f"-j{JOBS}", "--build-lib", str(scratch / "lib"), "--build-temp", str(scratch / "o")]
    setup(name="forebay-compiled", packages=[], ext_modules=extensions, script_args=words)
    made.mkdir()
    lib = scratch / "lib"
    for file in lib.rglob(f"*{_COMPILED['SUFFIX']}"):
        shutil.move(file, made / ".".join(file.relative_to(lib).parts))


def main() -> None:
    """Compile them, or say in one line that requests will be handled in Python. That is no failure."""
    if "--into" in sys.argv:
        _compile(Path(sys.argv[sys.argv.index("--into") + 1]), Path(sys.argv[sys.argv.index("--scratch") + 1]))
        return
    target: Path = _COMPILED["FOLDER"]
    why = "" if fresh(target) else build(target)
    print(f"requests will be handled in Python: {why}" if why else f"requests will be handled in C: {len(_COMPILED['MODULES'])} modules")


if __name__ == "__main__":
    main()
