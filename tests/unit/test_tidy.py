"""House rules that a linter does not know: sizes of files and functions, open ends, and secrets of this or that machine."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 400
OPEN_ENDS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b|NotImplemented" + r"Error")


def _name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_file_and_its_functions_fit(path):
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES_MAX, f"{path.name}: split it"
    long = [
        f"{path.name}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, long


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_module_opens_with_its_idea_and_has_no_open_ends(path):
    text = path.read_text()
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path.name} opens without a docstring"
    found = OPEN_ENDS.search(text)
    assert not found, f"{path.name}: {found and found[0]}"


def test_no_module_is_dead():
    """A module nobody imports and nobody starts is dead weight; entry points are named here."""
    started = {
        "forebay.__main__",
        "forebay.emulator.__main__",
        "forebay.adapters.local.shim",
        "forebay.app.controller_main",
        "forebay.app.gateway_main",
        "forebay.app.relay_worker_main",
    }
    modules = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for path in SOURCES}
    imported = set()
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    parents = {module.rsplit(".", 1)[0] for module in modules if "." in module}
    assert sorted(modules - imported - started - parents - {"forebay"}) == []


def test_tests_of_several_folders_run_in_one_call():
    """pytest puts every folder of tests on the path: of two modules of one name each would be given the other's, as of `conftest`."""
    files = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "conftest.py"]
    twice = [name for name, times in Counter(path.name for path in files).items() if times > 1]
    assert twice == []
    taken = [_name(path) for path in files if re.search(r"^\s*(from|import) conftest\b", path.read_text(), re.MULTILINE)]
    assert taken == [], "move what is shared into a module with a name of its own"


def test_no_machine_is_named():
    """No absolute path of a work place, and no registry's address, in anything a user gets."""
    pattern = re.compile(r"(^|[^\w])/(wo" + r"rk|fa" + r"rm)/\w|(pypi|pythonhosted)\.or" + r"g|npm" + r"js\.|deb\.debi" + r"an")
    found = []
    for folder in ("src", "tests", "docs", "bench", "examples", "tools", "deploy", "designs"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in {".py", ".md", ".yaml", ".sh", ".txt", ".toml", ".html"}:
                found += [f"{_name(path)}: {match[0]}" for match in pattern.finditer(path.read_text(errors="replace"))]
    assert found == []
