"""Which prefix groups each replica remembers, least recently used forgotten first, and which replica served a group last.

One hash table with linear probing answers both: (group, row) leads to the entry in the row's list, (group, -1) to the row.
"""

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import group_at, key_at, replica_at

HOME = -1
NOWHERE = -1


@kernel
def _wanted(fleet: World, group: int, row: int) -> int:
    """Where the key should be."""
    mixed = (group * 2 + 1) * 0x2545F4914F6CDD1D + (row + 1) * 0x9E3779B97F4A7C1
    mixed ^= mixed >> 29
    mixed *= 0x1B03738712FAD5C9
    mixed ^= mixed >> 32
    return int(mixed & fleet.keys_mask)


@kernel
def _find(fleet: World, group: int, row: int) -> int:
    """Where the key is, or the empty place where it would be."""
    place = _wanted(fleet, group, row)
    key = key_at(fleet, place)
    while key.value >= 0 and (key.group != group or key.row != row):
        place = (place + 1) & fleet.keys_mask
        key = key_at(fleet, place)
    return place


@kernel
def put(fleet: World, group: int, row: int, value: int) -> None:
    """The key leads to ``value`` from now on. The table is never more than half full."""
    key = key_at(fleet, _find(fleet, group, row))
    key.group, key.row, key.value = group, row, value


@kernel
def _drop(fleet: World, group: int, row: int) -> None:
    """Forget the key, and move up those that were pushed behind it."""
    mask = fleet.keys_mask
    hole = _find(fleet, group, row)
    place = hole
    while True:
        place = (place + 1) & mask
        key = key_at(fleet, place)
        if key.value < 0:
            break
        if ((place - _wanted(fleet, key.group, key.row)) & mask) >= ((place - hole) & mask):
            empty = key_at(fleet, hole)
            empty.group, empty.row, empty.value = key.group, key.row, key.value
            hole = place
    key_at(fleet, hole).value = NOWHERE


@kernel
def home_of(fleet: World, group: int) -> int:
    """The row that served ``group`` last and still remembers it, or -1."""
    if group < 0 or not fleet.groups_max:
        return NOWHERE
    return int(key_at(fleet, _find(fleet, group, HOME)).value)


@kernel
def remembers(fleet: World, group: int, row: int) -> bool:
    """Whether ``row`` has the group's prefix in its cache."""
    if group < 0 or not fleet.groups_max:
        return False
    return bool(key_at(fleet, _find(fleet, group, row)).value >= 0)


@kernel
def _unlink(fleet: World, row: int, entry: int) -> None:
    replica, mine = replica_at(fleet, row), group_at(fleet, entry)
    if mine.newer >= 0:
        group_at(fleet, mine.newer).older = mine.older
    else:
        replica.newest_group = mine.older
    if mine.older >= 0:
        group_at(fleet, mine.older).newer = mine.newer
    else:
        replica.oldest_group = mine.newer
    replica.groups -= 1


@kernel
def _link_newest(fleet: World, row: int, entry: int) -> None:
    replica, mine = replica_at(fleet, row), group_at(fleet, entry)
    mine.newer, mine.older = -1, replica.newest_group
    if replica.newest_group >= 0:
        group_at(fleet, replica.newest_group).newer = entry
    else:
        replica.oldest_group = entry
    replica.newest_group = entry
    replica.groups += 1


@kernel
def _forget_oldest(fleet: World, row: int) -> None:
    entry = replica_at(fleet, row).oldest_group
    group = group_at(fleet, entry).group
    _unlink(fleet, row, entry)
    _drop(fleet, group, row)
    if home_of(fleet, group) == row:
        _drop(fleet, group, HOME)
    group_at(fleet, entry).older = fleet.free_group
    fleet.free_group = entry
    fleet.groups_free += 1


@kernel
def remember(fleet: World, group: int, row: int) -> None:
    """``row`` serves ``group``: the newest in its list, and the group's home. The caller has made sure of room."""
    if group < 0 or not fleet.groups_max:
        return
    entry = int(key_at(fleet, _find(fleet, group, row)).value)
    if entry >= 0:
        _unlink(fleet, row, entry)
    else:
        entry = fleet.free_group
        fleet.free_group = group_at(fleet, entry).older
        fleet.groups_free -= 1
        group_at(fleet, entry).group = group
        put(fleet, group, row, entry)
    _link_newest(fleet, row, entry)
    put(fleet, group, HOME, row)
    if replica_at(fleet, row).groups > fleet.groups_max:
        _forget_oldest(fleet, row)


@kernel
def forget_all(fleet: World, row: int) -> None:
    """The cache of ``row`` is gone."""
    while replica_at(fleet, row).groups:
        _forget_oldest(fleet, row)
