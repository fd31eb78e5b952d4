"""``forebay tune``: chosen on one span, judged on the next."""

import json

import pytest
from lab_case import invoke, said, spec, trace

from forebay.cli.tune import command


@pytest.fixture
def words(tmp_path):
    return ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 60, 120.0), "-j", "1"]


def test_the_choice_is_the_cheapest_that_holds_and_is_tried_on_what_was_held_out(words):
    result = invoke(command, *words, "--policies", "hpa-gpu", "--train", "40s", "--json", "-")
    assert result.exception is None, result.exception
    numbers = json.loads(result.stdout)
    (choice,) = numbers["choices"]
    assert choice["name"] == "hpa-gpu"
    assert len(choice["tried"]) == 6
    assert numbers["train_s"] == pytest.approx(40, abs=5)
    assert numbers["duration_s"] == pytest.approx(78, abs=2)
    names = {policy["name"] for policy in numbers["policies"]}
    assert names in ({"hpa-gpu"}, {"hpa-gpu", "hpa-gpu (tuned)"})
    held = [each for each in choice["tried"] if each["attainment"] >= 0.99]
    if held:
        chosen = next(each for each in choice["tried"] if each["settings"] == choice["settings"])
        assert chosen["gpu_hours"] == min(each["gpu_hours"] for each in held)


def test_people_see_what_was_chosen_and_why(words):
    result = invoke(command, *words, "--policies", "static-peak")
    assert result.exception is None, result.exception
    assert "On what was held out:" in result.stdout
    assert "defaults" in result.stdout
    assert "static-peak: nothing to choose: it has no settings to try." in result.stdout
    assert "held out is a short span to judge by" in result.stdout


def test_whether_to_take_what_was_chosen_is_said(words):
    result = invoke(command, *words, "--policies", "kpa,hpa-gpu", "--json", "-")
    assert result.exception is None, result.exception
    for choice in json.loads(result.stdout)["choices"]:
        assert choice["verdict"].startswith(("keep the defaults: ", "take "))
        assert choice["policy"].split(":")[0] == choice["name"]


def test_what_is_to_be_looked_for_is_not_given(words):
    assert "'kpa:target=3', allowed: names without settings" in said(invoke(command, *words, "--policies", "kpa:target=3"))


def test_something_must_be_held_out(words):
    assert "some must be held out" in said(invoke(command, *words, "--train", "10m"))
    assert "--train" in said(invoke(command, *words, "--train", "0s"))
