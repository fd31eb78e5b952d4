"""Compiled modules are used only where they are all there and of these very sources; and only such are compiled as keep their meaning."""

import ast
import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay.native import compiled, compiling

SOURCE = b"NAME = 1\n"


@pytest.fixture
def made(tmp_path):
    """A folder in which all modules were compiled, from sources that lie beside it."""
    for module in compiled.MODULES:
        source = compiled.source_of(module, tmp_path)
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(SOURCE)
    folder = tmp_path / "made"
    folder.mkdir()
    fill(folder)
    say(folder, list(compiled.MODULES), compiled.digests(compiled.MODULES, tmp_path))
    return folder


def fill(folder: Path) -> None:
    for file in compiled.files_in(folder).values():
        file.write_bytes(b"compiled")


def say(folder: Path, modules: list[str], sources: dict[str, str]) -> None:
    (folder / compiled.MANIFEST).write_text(json.dumps({"modules": modules, "sources": sources}))


@pytest.mark.parametrize("wanted", ["", "0"])
def test_what_was_compiled_of_these_sources_is_found(made, tmp_path, wanted):
    finder, said = compiled.chosen(made, tmp_path, wanted)
    assert said == "C"
    spec = finder.find_spec("forebay.admission.machine", None)
    assert spec.origin == str(made / f"forebay.admission.machine{compiled.SUFFIX}")
    assert finder.find_spec("forebay.gateway.pages", None) is None


def test_python_is_used_where_it_is_wanted(made, tmp_path):
    assert compiled.chosen(made, tmp_path, "1") == (None, "Python, as FOREBAY_PURE says")


def test_python_is_used_where_nothing_was_compiled(tmp_path):
    assert compiled.chosen(tmp_path, tmp_path) == (None, "Python, nothing was compiled")
    (tmp_path / compiled.MANIFEST).write_text("{")
    assert compiled.chosen(tmp_path, tmp_path) == (None, "Python, nothing was compiled")


@pytest.mark.parametrize("module", [compiled.MODULES[0], compiled.MODULES[-1]])
def test_after_a_change_of_one_module_none_is_used(made, tmp_path, module):
    compiled.source_of(module, tmp_path).write_bytes(SOURCE + b"\n")
    assert compiled.chosen(made, tmp_path) == (None, "Python, what was compiled is older than its source")


def test_after_a_change_of_what_they_import_none_is_used(made, tmp_path):
    imported = compiled.source_of("forebay.gateway.events", tmp_path)
    imported.write_bytes(SOURCE)
    say(made, list(compiled.MODULES), compiled.digests([*compiled.MODULES, "forebay.gateway.events"], tmp_path))
    assert compiled.chosen(made, tmp_path)[1] == "C"
    imported.write_bytes(b"NAME = 1.0\n")
    assert compiled.chosen(made, tmp_path)[0] is None


def test_where_other_modules_were_compiled_none_is_used(made, tmp_path):
    say(made, list(compiled.MODULES[1:]), compiled.digests(compiled.MODULES, tmp_path))
    assert compiled.chosen(made, tmp_path)[0] is None


def test_without_its_sources_what_was_compiled_is_used(made, tmp_path):
    assert compiled.chosen(made, tmp_path / "nowhere")[1] == "C"


def test_all_that_is_compiled_and_what_it_imports_is_watched():
    watched = compiling.manifest()
    assert watched["modules"] == list(compiled.MODULES)
    assert set(compiled.MODULES) < set(watched["sources"])
    assert {"forebay.gateway.events", "forebay.gateway.hops", "forebay.domain.shape", "forebay.native"} & set(watched["sources"]) == {
        "forebay.gateway.events",
        "forebay.gateway.hops",
        "forebay.domain.shape",
    }
    assert not any(name.startswith("forebay.cli") for name in watched["sources"])


def test_what_is_fresh_is_known_and_what_lacks_is_said(tmp_path, monkeypatch):
    assert not compiling.fresh(tmp_path)
    (tmp_path / compiled.MANIFEST).write_text(json.dumps(compiling.manifest()))
    assert not compiling.fresh(tmp_path)
    fill(tmp_path)
    assert compiling.fresh(tmp_path)
    monkeypatch.setattr(compiling, "_NEEDED", ("json", "no_such_package"))
    if not compiling.missing().startswith(("there is no C compiler", "there is no Python.h")):
        assert compiling.build(tmp_path / "target") == "there is no no_such_package"
    assert not (tmp_path / "target").exists()


def test_this_process_runs_what_the_environment_says():
    finder, said = compiled.chosen(wanted=os.environ.get("FOREBAY_PURE", ""))
    assert said == forebay.HANDLED_IN
    import forebay.admission.machine as machine

    assert (machine.__file__ or "").endswith(".py" if finder is None else compiled.SUFFIX)


@pytest.mark.parametrize("said", ["[]", "1", "null", "{}", '{"modules": 1, "sources": {}}', '{"modules": [], "sources": [1]}', "\\x00"])
def test_a_manifest_that_says_something_else_is_none(tmp_path, said):
    (tmp_path / compiled.MANIFEST).write_text(said)
    assert compiled.manifest_of(tmp_path) is None


@pytest.mark.parametrize("module", [compiled.MODULES[3], compiled.LIBRARY])
@pytest.mark.parametrize("left", [None, b""], ids=["removed", "empty"])
def test_where_one_file_is_not_there_none_is_used(made, tmp_path, module, left):
    """It would be found out by the import of that one, when others are in use: nothing would start."""
    file = compiled.files_in(made)[module]
    if left is None:
        file.unlink()
    else:
        file.write_bytes(left)
    assert compiled.chosen(made, tmp_path) == (None, "Python, what was compiled is not all there")


def test_where_what_was_compiled_cannot_be_loaded_python_is_used(tmp_path):
    broken = "forebay_broken__mypyc"
    file = tmp_path / f"{broken}{compiled.SUFFIX}"
    file.write_bytes(b"\x7fELF of another machine")
    before = list(sys.meta_path)
    with pytest.warns(UserWarning, match="requests are handled in Python, what was compiled can't be loaded"):
        said = compiled.found_by(compiled.Finder({broken: file}), broken)
    assert said == "Python, C can't be loaded"
    assert sys.meta_path == before


def test_a_shared_object_that_was_cut_off_is_not_loaded(tmp_path):
    """The loader maps what is not there, and the process dies of SIGBUS."""
    section_table = 64 * 3
    for order, mark in (("<", 1), (">", 2)):
        head = bytearray(b"\x7fELF\x02" + bytes([mark]) + b"\0" * 58)
        struct.pack_into(f"{order}Q", head, 0x28, 1000)
        struct.pack_into(f"{order}HH", head, 0x3A, 64, 3)
        file = tmp_path / "cut.so"
        for size, whole in (
            (1000 + section_table, True),
            (1000 + section_table + 8, True),
            (1000 + section_table - 1, False),
            (500, False),
        ):
            file.write_bytes(head + b"\0" * (size - len(head)))
            assert compiled.is_whole(file) is whole
        file.write_bytes(head[:40])
        assert not compiled.is_whole(file)
    file.write_bytes(b"\xcf\xfa\xed\xfe another format")
    assert compiled.is_whole(file)
    assert not compiled.is_whole(tmp_path / "none.so")


def sources_of(tmp_path, monkeypatch, during):
    """Compile, as far as that goes without a compiler: ``during`` is done in the meantime. Returns the folder."""
    sources = tmp_path / "src"
    for module in compiled.MODULES:
        source = compiled.source_of(module, sources)
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(SOURCE)
    monkeypatch.setitem(compiling._COMPILED, "SOURCES", sources)
    monkeypatch.setattr(compiling, "missing", lambda: "")

    def run(command, cwd, **_):
        made = Path(command[command.index("--into") + 1])
        made.mkdir()
        during(sources)
        fill(made)
        (made / "seen").write_bytes(compiled.source_of(compiled.MODULES[0], cwd).read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(compiling.subprocess, "run", run)
    return sources


def test_what_is_edited_while_it_is_compiled_and_taken_back_is_not_in_it(tmp_path, monkeypatch):
    """Else the hash would be that of one source, and the code of another."""
    target = tmp_path / "native" / "made"
    sources = sources_of(tmp_path, monkeypatch, lambda sources: compiled.source_of(compiled.MODULES[0], sources).write_bytes(b"NAME = 2\n"))
    assert compiling.build(target) == ""
    assert (target / "seen").read_bytes() == SOURCE
    assert compiled.chosen(target, sources)[1] == "Python, what was compiled is older than its source"
    compiled.source_of(compiled.MODULES[0], sources).write_bytes(SOURCE)
    assert compiled.chosen(target, sources)[1] == "C"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_of_two_that_compile_at_once_each_ends_well(tmp_path, monkeypatch):
    target, other = tmp_path / "native" / "made", tmp_path / "other"
    for folder in (target, other):
        folder.mkdir(parents=True)
    sources_of(tmp_path, monkeypatch, lambda _: None)
    rename, raced = Path.rename, []

    def racing(self, to):
        if self == target and not raced:
            raced.append(rename(self, tmp_path / "theirs"))  # the other has just taken it away…
            rename(other, target)  # …and put its own there
            (target / "theirs").write_bytes(b"1")
            raise FileNotFoundError
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", racing)
    assert compiling.build(target) == ""
    assert raced
    assert compiled.all_there(target)


def test_a_folder_that_cannot_be_written_to_is_said_and_no_failure(tmp_path, monkeypatch):
    sources_of(tmp_path, monkeypatch, lambda _: None)
    (tmp_path / "file").write_bytes(b"")
    assert "can't be written to" in compiling.build(tmp_path / "file" / "made")

    def full(_):
        raise OSError(28, "No space left on device")

    sources_of(tmp_path, monkeypatch, full)
    assert "No space left on device" in compiling.build(tmp_path / "native" / "made")


def test_what_a_killed_compilation_left_is_removed_once_it_must_be_dead(tmp_path):
    left, lives = tmp_path / f"{compiling.SCRATCH}a", tmp_path / f"{compiling.SCRATCH}b"
    for folder in (left, lives, tmp_path / "cpython-311"):
        (folder / "c").mkdir(parents=True)
    os.utime(left, (1000.0, 1000.0))
    os.utime(lives, (1001.0, 1001.0 + compiling.SCRATCH_S_MAX))
    compiling.forget_killed(tmp_path, 1001.0 + compiling.SCRATCH_S_MAX)
    assert {path.name for path in tmp_path.iterdir()} == {lives.name, "cpython-311"}


KEPT_BASES = {"ABC", "Generic", "NamedTuple", "Protocol", "StrEnum"}


@pytest.mark.parametrize("module", compiled.MODULES)
def test_no_class_of_a_compiled_module_means_something_else_in_c(module):
    """mypyc drops what a class is given beside its bases, as Structs are; and what inherits from a class in C crashes."""
    tree = ast.parse(compiled.source_of(module).read_bytes())
    ours = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in compiled.MODULES
        for alias in node.names
    } | {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
            assert bases <= ours | KEPT_BASES, f"{node.name} inherits from {bases}"
            assert not node.keywords, f"{node.name} is given {[word.arg for word in node.keywords]}"


def test_it_is_compiled_without_the_package():
    """Before anything is installed; nothing of Forebay is on this path."""
    found = importlib.util.find_spec("forebay.native.compiling").origin
    code = f"import runpy, sys; print(len(runpy.run_path({found!r})['manifest']()['modules']), 'forebay' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == [str(len(compiled.MODULES)), "False"]
