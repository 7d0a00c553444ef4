from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.market.container_room import Room, ahead_of, lack_of_room
from tasks.ledger.queries import Action, WorkDuty

MACHINE = Room(cores=8, memory_mib=16_384, gpus=2)
rooms = st.builds(Room, st.integers(1, 10), st.integers(16, 20_000), st.integers(0, 3))


def duty(number: int, action: Action) -> WorkDuty:
    return WorkDuty(bytes([number]) * 32, action, 0, 0, 0, b"", b"", (), blocked=False)


@given(st.lists(rooms, max_size=8))
def test_what_is_accepted_at_once_never_exceeds_the_machine(wishes: list[Room]) -> None:
    duties = [duty(number, Action.ACCEPT) for number, _ in enumerate(wishes)]
    wanted = {one.task: wish for one, wish in zip(duties, wishes, strict=True)}
    accepted = [
        one.task
        for one in duties
        if not lack_of_room(MACHINE, [wanted[other] for other in ahead_of(one.task, duties)], wanted[one.task])
    ]
    sums = [sum(values) for values in zip(*(wanted[task] for task in accepted), strict=True)]
    assert all(used <= has for used, has in zip(sums, MACHINE, strict=False))
    if duties and not lack_of_room(MACHINE, [], wanted[duties[0].task]):
        assert duties[0].task in accepted  # of several that come at once, they do not all decline for each other


def test_what_runs_goes_before_what_comes() -> None:
    running, coming = duty(9, Action.METER), duty(1, Action.ACCEPT)
    assert ahead_of(coming.task, [running, coming]) == [running.task]
    assert ahead_of(running.task, [running, coming]) == [coming.task]
    gpu = Room(1, 16, 1)
    assert lack_of_room(MACHINE, [gpu], gpu) == ""
    assert lack_of_room(MACHINE, [gpu, gpu], gpu) == "1 GPUs needed, 0 of 2 are free"
    assert lack_of_room(MACHINE, [Room(8, 16, 0)], Room(1, 16, 0)) == "1 cores needed, 0 of 8 are free"
