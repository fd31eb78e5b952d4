"""Compiled modules are used only where they are all there and of these very sources; and only such are compiled as keep their meaning."""

import ast
import importlib.util
import json
import os
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
    say(folder, list(compiled.MODULES), compiled.digests(compiled.MODULES, tmp_path))
    return folder


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
