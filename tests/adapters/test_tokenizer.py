"""A tokenizer.json is read by the library that wrote it; without the library, or a file, one is told what to do."""

import builtins

import pytest

from forebay.adapters.tokenizer import FileTokenizer, NoLibrary
from forebay.domain.errors import Unusable

PLACE = "pools.chat.estimate.tokenizer"


def test_without_the_library_one_is_told_how_to_install_it(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(NoLibrary, match=r"pools\.chat\.estimate\.tokenizer: found no library.*forebay\[exact\]"):
        FileTokenizer(str(tmp_path / "tokenizer.json"), PLACE)
    with pytest.raises(Unusable, match=r"none\.json \(no such file or directory\)"):
        FileTokenizer(str(tmp_path / "none.json"), PLACE)


def test_it_counts_as_the_library_does(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra `exact` is not installed")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    counter = FileTokenizer(str(tmp_path / "tokenizer.json"), PLACE)
    assert counter.count("a b a b nobody") == 5, "what the file says of truncation is not what an engine prefills"
    assert counter.count("") == 0


def test_a_file_that_is_none_is_named(tmp_path):
    pytest.importorskip("tokenizers", reason="the extra `exact` is not installed")
    (tmp_path / "empty.json").write_text("{}")
    for name in ("missing.json", "empty.json"):
        with pytest.raises(Unusable, match=rf"found no tokenizer in .*{name}"):
            FileTokenizer(str(tmp_path / name), PLACE)
