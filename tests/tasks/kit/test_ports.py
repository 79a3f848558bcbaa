"""Free ports can be opened."""

import socket

from tasks.kit.ports import free_port, free_ports_with_twins


def test_a_free_port_can_be_opened() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


def test_ports_come_with_twins_and_pass_over_those_in_use() -> None:
    first = free_ports_with_twins(("one", "two"))
    with socket.socket() as twin:
        twin.bind(("127.0.0.1", first["two"] + 10_000))
        second = free_ports_with_twins(("one", "two"))
    assert not set(first.values()) & set(second.values())
    assert second["two"] == second["one"] + 1
