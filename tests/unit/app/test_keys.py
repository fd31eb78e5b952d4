"""API keys of other people's engines: there, and fit for a header, or the gateway does not start."""

import pytest

from forebay.app.keys import spill_keys
from forebay.domain.errors import BadInput
from forebay.spec.types import EngineKind, Overflow, Pool, Spec, Spill

SPILL = Spill("far", "https://far.example/v1", "", "FAR_KEY")
SPEC = Spec(
    models=(),
    tiers=(),
    pools=(Pool("chat", "llama", EngineKind("attach"), overflow=Overflow("", 5.0, (SPILL, Spill("open", "http://x:1")), 10.0)),),
)


def test_keys_are_found_by_their_variables_and_who_needs_none_gets_none():
    assert spill_keys(SPEC, {"FAR_KEY": "sk-far-away"}) == {"FAR_KEY": "sk-far-away"}


@pytest.mark.parametrize("key", ["", "sk far", "sk-far ", "sk-far\n", "sk-far\r\nx-admin: yes", "sk-f\u00e4r", "sk-\x00"])
def test_a_spill_key_with_blanks_or_control_characters_is_refused_and_not_shown(key):
    with pytest.raises(BadInput, match="FAR_KEY") as told:
        spill_keys(SPEC, {"FAR_KEY": key})
    assert "sk-f" not in str(told.value)
