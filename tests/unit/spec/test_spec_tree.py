"""YAML as text: lines, duplicates, merges; and everything that isn't YAML, or too much of it, is refused with its line."""

import pytest

from forebay.spec.decode import decode
from forebay.spec.problems import BadSpec, Problem, Problems
from forebay.spec.tree import DEPTH_MAX, Mapping, Scalar, Sequence, decode_utf8, parse

GOOD = "pools:\n  chat:\n    attach: [http://127.0.0.1:9100]\n"


def refused(text: str) -> tuple[Problem, ...]:
    with pytest.raises(BadSpec) as caught:
        decode(text, "forebay.yaml", {})
    return caught.value.problems


def one(text: str) -> Problem:
    problems = refused(text)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def test_nodes_know_their_lines() -> None:
    problems = Problems()
    root = parse("a:\n  - 1\n  - b:\n      two\nc: 'x'\n", "f", problems)
    assert isinstance(root, Mapping)
    items = root.entries["a"].value
    assert isinstance(items, Sequence)
    assert (root.entries["a"].line, items.items[0], items.items[1].line) == (1, Scalar(2, "1", True), 3)
    assert root.entries["c"].value == Scalar(5, "x", False)
    assert not problems.kept


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "null\n", "{}\n"])
def test_an_empty_file_lacks_pools(text: str) -> None:
    problem = one(text)
    assert (problem.path, problem.found) == ("pools", "nothing")


@pytest.mark.parametrize(("text", "found"), [("- a\n- b\n", "a list"), ("hello\n", '"hello"'), ("42\n", "42"), ("true\n", "true")])
def test_a_root_that_is_no_mapping(text: str, found: str) -> None:
    problem = one(text)
    assert (problem.path, problem.line, problem.found) == ("document", 1, found)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("pools:\n\tchat: 1\n", 2),
        ("a: 1\nb: [1, 2\n", 3),
        ("a: 'x\n", 2),
        ("a: b: c\n", 1),
        ("a: *nowhere\n", 1),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\n\nb: \x00\n", 3),
        ("a: \x07\n", 1),
        ('a: "\\UFFFFFFFF"\n', 1),
        ("%YAML 1." + "9" * 5000 + "\n---\na: 1\n", 1),
        ("a: \ud800\n", 1),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line(text: str, line: int) -> None:
    problem = one(text)
    assert (problem.path, problem.line) == ("document", line)
    assert any(word in problem.allowed for word in ("key: value", "printable", "closed", "YAML"))


def test_a_tab_gets_a_hint() -> None:
    assert one("pools:\n\tchat: 1\n").hint == "indent with spaces"


def test_a_duplicate_key_is_told_with_both_lines() -> None:
    problem = one(GOOD + "    attach: [http://h:1]\n")
    assert (problem.line, problem.path, problem.hint) == (4, "pools.chat.attach", "it is on line 3 already")


def test_merges_of_anchors_work_and_own_keys_win() -> None:
    text = (
        "pools:\n  a: &a\n    attach: [http://h:1]\n    slo: {ttft: 2s, itl: 70ms}\n"
        "  b:\n    <<: *a\n    attach: [http://h:2]\n  c:\n    <<: [{attach: [http://h:3]}, *a]\n"
    )
    spec = decode(text, "f", {})
    assert [pool.engine.attach for pool in spec.pools] == [("http://h:1",), ("http://h:2",), ("http://h:3",)]
    assert [pool.slo.ttft_s for pool in spec.pools] == [2.0, 2.0, 2.0]


def test_a_merge_of_something_else_is_refused() -> None:
    assert one(GOOD + "    slo: {<<: 3}\n").path == "pools.chat.slo.<<"


def test_a_problem_inside_an_alias_names_the_line_of_the_anchor() -> None:
    problem = one(
        "pools:\n  a:\n    attach: [http://h:1]\n    slo: &slo {ttft: 3}\n  b:\n    attach: [http://h:2]\n    slo: *slo\n".replace(
            "{ttft: 3}", "{ttft: 3s}"
        )
        + "speed: x\n"
    )
    assert problem.line == 8
    both = refused("pools:\n  a:\n    attach: [http://h:1]\n    slo: &slo {ttft: 3}\n  b:\n    attach: [http://h:2]\n    slo: *slo\n")
    assert [(problem.line, problem.path) for problem in both] == [(4, "pools.a.slo.ttft"), (4, "pools.b.slo.ttft")]


def test_an_alias_bomb_is_refused_before_it_goes_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "100000" in one("\n".join(lines)).found


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "&a {<<: *a}\n"])
def test_a_structure_that_holds_itself_is_too_deep(text: str) -> None:
    assert f"at most {DEPTH_MAX}" in refused(text)[0].allowed


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 50_000, "- " * 50_000, "? " * 20_000])
def test_depth_is_refused_early(text: str) -> None:
    assert "levels" in one(text).found


def test_size_is_bounded() -> None:
    problem = one("#" + "x" * 2**20)
    assert "bytes" in problem.found


@pytest.mark.parametrize("text", ["a: !!python/object:os.system x\n", "a: !env HOME\n", "a: !!binary aGk=\n"])
def test_tags_are_refused(text: str) -> None:
    assert any(problem.found.startswith("the tag") and problem.path == "a" for problem in refused(text))


def test_a_key_must_be_a_name() -> None:
    assert any(problem.found == "a list or mapping as a key" for problem in refused(GOOD + "? [a, b]\n: 1\n"))


def test_what_a_terminal_would_obey_is_escaped() -> None:
    problem = one(GOOD + '"\\e[31m\\ud800": 1\n')
    assert problem.path == "\\x1b[31m\\ud800"
    str(problem).encode("utf-8")


def test_text_that_is_not_utf8_names_the_line() -> None:
    with pytest.raises(BadSpec) as caught:
        decode_utf8(b"a: 1\nb: \xff\n", "f.yaml")
    assert (caught.value.problems[0].line, caught.value.problems[0].found) == (2, "the byte 0xff")


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert decode_utf8(b"\xef\xbb\xbfa: 1", "f.yaml") == "a: 1"
