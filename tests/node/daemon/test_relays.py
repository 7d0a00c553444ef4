from node.daemon.relays import is_bonded
from tasks.ledger.transitions import RETIRE_NODE
from tests.tasks.world import World


def test_who_has_registered_answers_with_a_bond_until_it_wants_it_back() -> None:
    world = World()
    assert not is_bonded(world.state, bytes([7]) * 20)
    address = world.add_machine(7)
    assert is_bonded(world.state, address) and not is_bonded(world.state, bytes([8]) * 20)
    assert world.send(address, RETIRE_NODE, []) is None
    assert not is_bonded(world.state, address)
