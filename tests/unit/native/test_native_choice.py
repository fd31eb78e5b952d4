"""Which of both is used, what is said of it, and that what is older than its source never is."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from both import BUILT, needs_built

from forebay import native
from forebay.native import build, chosen, compiled, pure


@pytest.fixture
def made(monkeypatch):
    """``made(source)``: the name of a module that says it was built from the file ``source``, and what lies beside it."""

    def go(source: Path) -> str:
        module = types.ModuleType("made")
        module.SOURCE = build.hash_of(source)
        monkeypatch.setitem(sys.modules, "made", module)
        return "made"

    return go


@pytest.mark.parametrize("wanted", ["1", "yes"])
def test_python_is_used_where_it_is_wanted(wanted, made):
    assert chosen(built=made(native.SOURCE), wanted=wanted) == (pure, "Python, as FOREBAY_PURE says")


@pytest.mark.parametrize("wanted", ["", "0"])
def test_c_is_used_where_it_was_built_from_this_source(wanted, made):
    name = made(native.SOURCE)
    assert chosen(built=name, wanted=wanted) == (sys.modules[name], "C")


def test_python_is_used_where_nothing_was_built():
    assert chosen(built="forebay.native._relay_of_nobody") == (pure, "Python, C was not built")


def test_what_is_older_than_its_source_is_not_used(tmp_path, made):
    source, header = tmp_path / "relay.c", tmp_path / "more.h"
    source.write_bytes(b"old")
    header.write_bytes(b"old")
    built = made(source)
    assert chosen(source, built)[1] == "C"
    for file in (source, header):
        file.write_bytes(b"new")
        with pytest.warns(UserWarning, match=r"older than relay\.c: build it with `python -m forebay\.native\.build`"):
            assert chosen(source, built) == (pure, "Python, C is older than its source")
        file.write_bytes(b"old")


def test_without_its_source_what_was_built_is_used(tmp_path, made):
    assert chosen(tmp_path / "relay.c", made(native.SOURCE))[1] == "C"


def test_what_was_cut_off_is_not_loaded(tmp_path):
    """As on a full disk: the loader would map what is not there, and the process die of SIGBUS."""
    (tmp_path / f"cut{compiled.SUFFIX}").write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 100)
    with pytest.warns(UserWarning, match="is cut off; build it with"):
        assert chosen(tmp_path / "relay.c", "cut") == (pure, "Python, C can't be loaded")


def test_a_folder_that_cannot_be_written_to_is_said_and_no_failure(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    said = build.build(tmp_path / "file" / build.file_name())
    assert said.startswith(("it could not be made: ", "there is no"))


def test_what_cannot_be_loaded_is_not_used(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken.py").write_text("raise ImportError('undefined symbol')")
    with pytest.warns(UserWarning, match="can't be loaded: undefined symbol; build it with"):
        assert chosen(built="broken") == (pure, "Python, C can't be loaded")


@needs_built
def test_this_process_runs_what_the_environment_says():
    wanted = os.environ.get("FOREBAY_PURE", "") in ("", "0")
    assert native.Takes is (BUILT if wanted else pure).Takes
    assert ("C" if wanted else "Python, as FOREBAY_PURE says") == native.RELAYED_IN


def include(folder: Path) -> Path:
    (folder / "Python.h").write_text("")
    return folder


def test_the_compiler_is_pythons_or_the_environments(tmp_path):
    words = build.command(f"{sys.executable} -shared -L/x", include(tmp_path), {})
    assert words[:4] == [sys.executable, "-shared", "-L/x", "-fPIC"]
    assert words[-1] == f"-I{tmp_path}"
    assert build.command("no-such-compiler -shared", tmp_path, {"CC": f"{sys.executable} -m64"})[:3] == [sys.executable, "-m64", "-shared"]


@pytest.mark.parametrize("named", ["no-such-compiler -shared", "", None])
def test_without_a_compiler_it_says_so(tmp_path, named):
    assert build.command(named, include(tmp_path), {}).startswith("there is no C compiler")


def test_without_pythons_headers_it_says_so(tmp_path):
    assert build.command(f"{sys.executable} -shared", tmp_path, {}) == f"there is no Python.h in {tmp_path}"


def test_what_the_compiler_says_is_told_and_what_was_built_is_left(tmp_path, monkeypatch):
    if isinstance(build.command(build.sysconfig.get_config_var("LDSHARED"), Path(build.sysconfig.get_path("include")), {}), str):
        pytest.skip("no C compiler, or no Python.h")
    source, target = tmp_path / "relay.c", tmp_path / build.file_name()
    source.write_text("int broken(")
    target.write_bytes(b"the last one")
    assert build.build(target, source).startswith("the C compiler failed: ")
    assert target.read_bytes() == b"the last one"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["relay.c", target.name])


def test_what_is_built_replaces_the_file_that_others_have_mapped(tmp_path, monkeypatch):
    source, target = tmp_path / "relay.c", tmp_path / build.file_name()
    source.write_text("int whole;")
    target.write_bytes(b"the last one")
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nfor word; do last=$word; done\necho "$*" > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    if isinstance(build.command("cc", Path(build.sysconfig.get_path("include")), os.environ), str):
        pytest.skip("no Python.h")
    mapped = target.open("rb")
    assert build.build(target, source) == ""
    assert mapped.read() == b"the last one"
    mapped.close()
    assert hashlib.sha256(b"int whole;").hexdigest() in target.read_text()


def test_it_is_built_without_the_package():
    """Before anything is installed; nothing of Forebay is on this path."""
    found = importlib.util.find_spec("forebay.native.build").origin
    code = f"import runpy, sys; print(runpy.run_path({found!r})['file_name'](), 'forebay' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == [build.file_name(), "False"]
