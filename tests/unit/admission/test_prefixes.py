"""The prefix index against a plain model of it, and what a chain of hashes means."""

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay.admission.prefixes import BLOCK_BYTES, BLOCKS_MAX, PrefixIndex, chain


def body(system: str, user: str, first: str = "") -> bytes:
    return f'{{"model":"m",{first}"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}]}}'.encode()


def test_requests_with_the_same_beginning_share_the_beginning_of_their_chains() -> None:
    system = "You are helpful. " * 200
    one, other = chain(body(system, "a" * 2000)), chain(body(system, "b" * 2000))
    shared = sum(mine == theirs for mine, theirs in zip(one, other, strict=True))
    assert shared == len(system) // BLOCK_BYTES
    assert one[:shared] == other[:shared]
    assert one[shared] != other[shared]


def test_what_comes_before_the_prompt_does_not_matter() -> None:
    assert chain(body("x" * 5000, "y", '"seed":1,')) == chain(body("x" * 5000, "y", '"user":"somebody else","seed":2,'))


def test_what_a_prompt_begins_with_stands_before_it_in_the_chain() -> None:
    lead = b"l" * 3 * BLOCK_BYTES
    one, other = chain(body("x" * 1000, "y"), lead=lead), chain(body("z" * 1000, "y"), lead=lead)
    assert one[:3] == other[:3]
    assert set(one[3:]).isdisjoint(other[3:])
    assert len(chain(b"", lead=lead * BLOCKS_MAX)) == BLOCKS_MAX


def test_a_body_of_less_than_a_block_has_no_chain() -> None:
    assert chain(b'{"messages":[]}') == ()


def test_a_very_long_prompt_is_known_by_its_first_blocks() -> None:
    assert len(chain(body("z" * (BLOCKS_MAX * BLOCK_BYTES * 3), ""))) == BLOCKS_MAX


@given(st.binary(max_size=3 * BLOCK_BYTES), st.binary(max_size=3 * BLOCK_BYTES))
def test_equal_hashes_mean_equal_bytes_up_to_there(one: bytes, other: bytes) -> None:
    for place, (mine, theirs) in enumerate(zip(chain(b'"prompt"' + one), chain(b'"prompt"' + other), strict=False), 1):
        size = place * BLOCK_BYTES - len(b'"prompt"')
        assert (mine == theirs) == (one[:size] == other[:size])


def test_what_was_used_longest_ago_is_evicted_first_and_from_the_end_of_its_chain() -> None:
    index = PrefixIndex()
    index.sent("a", (1, 2, 3), 4)
    index.sent("a", (7, 8), 4)
    assert index.depth((1, 2, 3), "a") == 2
    assert index.depth((7, 8), "a") == 2


def test_what_is_taken_back_before_its_prefill_leaves_only_what_others_were_sent_with() -> None:
    index = PrefixIndex()
    index.sent("a", (1, 2), 9, request=1)
    index.sent("a", (1, 2, 3, 4), 9, request=2)
    index.sent("b", (1, 2, 3, 4), 9, request=2)
    index.unsent("a", (1, 2, 3, 4), request=2)
    assert (index.depth((1, 2, 3, 4), "a"), index.depth((1, 2, 3, 4), "b")) == (2, 4)
    index.unsent("a", (1, 2), request=1)
    assert index.depth((1, 2), "a") == 2, "the second was sent there with them too, and may have begun"
    index.unsent("c", (1, 2), request=1)
    index.check()


REPLICAS = ["a", "b", "c"]
CHAINS = [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (5, 6), (5, 6, 7, 8)]


class IndexMachine(RuleBasedStateMachine):
    """Against one ordered dictionary a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.requests = 0
        self.model: dict[str, OrderedDict[int, set[int]]] = {}
        """By replica and hash, the requests that were sent there with it."""

    @rule(replica=st.sampled_from(REPLICAS), hashes=st.sampled_from(CHAINS), most=st.integers(0, 6))
    def sent(self, replica: str, hashes: tuple[int, ...], most: int) -> None:
        self.requests += 1
        self.index.sent(replica, hashes, most, self.requests)
        held = self.model.setdefault(replica, OrderedDict())
        for value in reversed(hashes):
            held[value] = {*held.pop(value, ()), self.requests}
        while len(held) > most:
            held.popitem(last=False)

    @rule(replica=st.sampled_from(REPLICAS), hashes=st.sampled_from(CHAINS), ago=st.integers(0, 3))
    def unsent(self, replica: str, hashes: tuple[int, ...], ago: int) -> None:
        request = self.requests - ago
        self.index.unsent(replica, hashes, request)
        held = self.model.get(replica, OrderedDict())
        for value in hashes:
            if held.get(value) == {request}:
                del held[value]

    @rule(replica=st.sampled_from(REPLICAS))
    def dropped(self, replica: str) -> None:
        self.index.drop(replica)
        self.model.pop(replica, None)

    @invariant()
    def matches(self) -> None:
        self.index.check()
        for hashes in CHAINS:
            depths = {}
            for replica in REPLICAS:
                held, depth = self.model.get(replica, OrderedDict()), 0
                while depth < len(hashes) and hashes[depth] in held:
                    depth += 1
                depths[replica] = depth
                assert self.index.depth(hashes, replica) == depth
            levels = self.index.levels(hashes)
            assert [depth for depth, _ in levels] == sorted({depth for depth in depths.values() if depth}, reverse=True)
            for replica in REPLICAS:
                assert next((depth for depth, bits in levels if bits & self.index.bits.get(replica, 0)), 0) == depths[replica]
        assert self.index.replicas() == set(self.model)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=25, stateful_step_count=20)
