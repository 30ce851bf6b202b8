"""Faults as functions that inject a fault and end it. The role of a fault selects the broker:

leader       the current leader of partition 0 of the topic under load
controller   the current controller
any          a random broker
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.chaos.cluster import BROKERS, FAILURE_MS, SESSION_MS, Cluster
from tests.chaos.network import RESET, SILENCE, ZOOKEEPER
from tests.support.processes import wait_until

SESSION_S = SESSION_MS / 1000
FAILURE_S = FAILURE_MS / 1000
ROLES = ("leader", "controller", "any")
BOUNCES = 5
FLAPS = 8


@dataclass
class Scene:
    """A fault in progress. Availability is checked from `since` on. A fault may change this
    time."""

    cluster: Cluster
    random: random.Random
    role: str = ""
    victim: str = ""
    since: float = 0.0

    def choose(self) -> int:
        number = self.current()
        self.victim = str(number)
        return number

    def current(self) -> int:
        if self.role == "any":
            return self.random.choice(BROKERS)
        query = self.cluster.controller if self.role == "controller" else lambda: self.cluster.leaders().get(0)
        broker: int | None = None

        def is_alive() -> bool:
            nonlocal broker
            broker = query()
            return broker in BROKERS and broker in self.cluster.alive()

        wait_until(is_alive, timeout=30, what=f"a {self.role}")
        assert broker is not None
        return broker

    def begin(self) -> None:
        self.since = time.monotonic()


def stop(scene: Scene) -> None:
    number = scene.choose()
    scene.begin()
    scene.cluster.brokers[number].stop()
    time.sleep(scene.random.uniform(0, 4))
    scene.cluster.start(number)


def kill(scene: Scene) -> None:
    """Kill a broker, and start it at once while its session is alive, or after the session has
    expired."""
    number = scene.choose()
    scene.begin()
    scene.cluster.brokers[number].kill()
    wait = scene.random.choice((0.0, SESSION_S / 2, SESSION_S + 3))
    scene.victim += f" for {wait:.0f} s"
    time.sleep(wait)
    scene.cluster.start(number)


def pause(scene: Scene) -> None:
    """Pause a broker until long after its session has expired. It resumes as a stale leader or
    controller."""
    number = scene.choose()
    process = scene.cluster.brokers[number].process
    scene.begin()
    process.signal(signal.SIGSTOP)
    try:
        time.sleep(SESSION_S + scene.random.uniform(3, 6))
    finally:
        process.signal(signal.SIGCONT)


def bounce(scene: Scene) -> None:
    """Stop and start the broker that has the role, five times."""
    _bounces(scene, clean=True)


def hard_bounce(scene: Scene) -> None:
    _bounces(scene, clean=False)


def _bounces(scene: Scene, *, clean: bool) -> None:
    victims: list[int] = []
    for _ in range(BOUNCES):
        number = scene.current()
        # The cluster may not recover before the next restart. Availability is checked from the last
        # restart on.
        scene.begin()
        victims.append(number)
        scene.victim = ",".join(map(str, victims))
        broker = scene.cluster.brokers[number]
        if clean:
            broker.stop()
        else:
            broker.kill()
        scene.cluster.start(number)


def zookeeper_restart(scene: Scene) -> None:
    """Restart ZooKeeper at once: no session expires."""
    scene.victim = ZOOKEEPER
    scene.begin()
    if scene.random.random() < 0.5:
        scene.cluster.zookeeper.kill()
    else:
        scene.cluster.zookeeper.stop()
    scene.cluster.zookeeper.start()


def zookeeper_outage(scene: Scene) -> None:
    """Stop ZooKeeper for longer than a session. Producers and consumers continue."""
    scene.victim = ZOOKEEPER
    scene.begin()
    scene.cluster.zookeeper.kill()
    time.sleep(SESSION_S + scene.random.uniform(3, 6))
    scene.cluster.zookeeper.start()
    time.sleep(2)


def cut_brokers(scene: Scene) -> None:
    """Cut the connection between two brokers that are not the controller. Each leaves the ISRs of
    the other, and both continue to serve."""
    controller = scene.cluster.controller()
    first, second = scene.random.sample([number for number in BROKERS if number != controller], 2)
    _cut(scene, str(first), str(second), SESSION_S + scene.random.uniform(3, 6))


def cut_controller(scene: Scene) -> None:
    """Cut the connection between the controller and another broker. A leader that cannot reach the
    controller cannot shrink its ISRs, so it acknowledges no record during the fault. Availability
    is checked after the fault."""
    controller = scene.cluster.controller()
    other = scene.random.choice([number for number in BROKERS if number != controller])
    _cut(scene, str(controller), str(other), SESSION_S + scene.random.uniform(2, 4))
    scene.begin()


def nap(scene: Scene) -> None:
    """Pause a broker and cut it off from another broker until it is treated as failed, but not
    until its session expires. It resumes as a stale leader or controller with a valid session."""
    network = scene.cluster.network
    assert network is not None
    number = scene.choose()
    process = scene.cluster.brokers[number].process
    scene.begin()
    process.signal(signal.SIGSTOP)
    try:
        for other in BROKERS:
            if other != number:
                network.cut(str(number), str(other), RESET)
        time.sleep(FAILURE_S + scene.random.uniform(0.2, 1.5))
    finally:
        network.heal()
        process.signal(signal.SIGCONT)


def refuse(scene: Scene) -> None:
    """Refuse connections to the port of a broker that is alive: the other brokers treat it as dead
    at once, and replace it as the leader and as the controller. It can still connect to them, and
    its clients to it. It does not learn of the new leaders, so availability is checked after the
    fault."""
    _refuse(scene, scene.choose(), scene.random.choice((1, 3, SESSION_S + 3)))
    scene.begin()


def flap(scene: Scene) -> None:
    """Refuse connections to the broker that has the role, and accept them again, several times."""
    victims: list[int] = []
    for _ in range(FLAPS):
        number = scene.current()
        victims.append(number)
        scene.victim = ",".join(map(str, victims))
        _refuse(scene, number, scene.random.uniform(0.05, 1))
        time.sleep(scene.random.uniform(0.05, 1))
    scene.begin()


def _refuse(scene: Scene, number: int, seconds: float) -> None:
    network = scene.cluster.network
    assert network is not None
    scene.begin()
    network.refuse(str(number))
    try:
        time.sleep(seconds)
    finally:
        network.heal()


def cut_zookeeper(scene: Scene) -> None:
    """Cut the connection of a broker to ZooKeeper. Its session expires, and it does not notice.
    Other brokers can still reach it."""
    _cut(scene, str(scene.choose()), ZOOKEEPER, SESSION_S + scene.random.uniform(3, 6))


def _cut(scene: Scene, first: str, second: str, seconds: float) -> None:
    network = scene.cluster.network
    assert network is not None
    how = scene.random.choice((RESET, SILENCE))
    scene.victim = f"{first}-{second} {how}"
    scene.begin()
    network.cut(first, second, how)
    try:
        time.sleep(seconds)
    finally:
        network.heal()


def isolate(scene: Scene) -> None:
    """Cut the connections of a broker to both other brokers, then kill it. Meanwhile it appends
    records that no follower fetches. None of these records may be acknowledged, and all of them
    must be truncated after the restart. The broker may be the last member of an ISR, so
    availability is checked after its restart."""
    network = scene.cluster.network
    assert network is not None
    number = scene.choose()
    how = scene.random.choice((RESET, SILENCE))
    # Mostly too short to remove the other brokers from the ISRs, so that one of them is elected.
    seconds, downtime = scene.random.choice((1, 2, 3, 8)), scene.random.choice((0.0, SESSION_S + 3, SESSION_S + 3))
    scene.victim = f"{number} {how} {seconds}+{downtime:.0f} s"
    for other in BROKERS:
        if other != number:
            network.cut(str(number), str(other), how)
    try:
        time.sleep(seconds)
    finally:
        scene.cluster.brokers[number].kill()
        network.heal()
    time.sleep(downtime)
    scene.cluster.start(number)
    scene.begin()


def disk_full(scene: Scene) -> None:
    """Fill the disk of a broker that is leader of no partition: it is restarted first, so its
    leadership has moved. Acknowledged records must be on the other two brokers. The broker may exit
    (Apache's does). It is started again when there is space."""
    number = scene.random.choice(BROKERS)
    scene.victim = str(number)
    broker = scene.cluster.brokers[number]
    broker.stop()
    scene.cluster.start(number)
    scene.cluster.wait_in_sync(60)
    filling = broker.log_dirs[0] / "filling"
    scene.begin()
    _fill(filling)
    try:
        time.sleep(8)
    finally:
        filling.unlink()
    if not broker.process.running():
        scene.victim += " (ended)"
        scene.cluster.start(number)


def _fill(path: Path) -> None:
    """Write a file until the disk has no free byte."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        size = 1 << 20
        while size:
            try:
                file.write(b"\xff" * size)
            except OSError:
                if size == 1:
                    break
                size //= 2
        os.fsync(file.fileno())


class Kind(NamedTuple):
    run: Callable[[Scene], None]
    roles: tuple[str, ...] = ROLES
    network: bool = False
    small_disks: bool = False


NO_ROLE = ("",)

KINDS: dict[str, Kind] = {
    "stop": Kind(stop),
    "kill": Kind(kill),
    "pause": Kind(pause),
    "bounce": Kind(bounce),
    "hard-bounce": Kind(hard_bounce),
    "zookeeper-restart": Kind(zookeeper_restart, NO_ROLE),
    "zookeeper-outage": Kind(zookeeper_outage, NO_ROLE),
    "cut-brokers": Kind(cut_brokers, NO_ROLE, network=True),
    "cut-controller": Kind(cut_controller, NO_ROLE, network=True),
    "nap": Kind(nap, network=True),
    "refuse": Kind(refuse, network=True),
    "flap": Kind(flap, network=True),
    "cut-zookeeper": Kind(cut_zookeeper, network=True),
    "isolate": Kind(isolate, network=True),
    "disk-full": Kind(disk_full, NO_ROLE, small_disks=True),
}


class Fault(NamedTuple):
    name: str
    kind: Kind
    role: str

    def run(self, scene: Scene) -> None:
        scene.role = self.role
        self.kind.run(scene)


def every_fault() -> dict[str, Fault]:
    return {
        f"{name}-{role}" if role else name: Fault(f"{name}-{role}" if role else name, kind, role)
        for name, kind in KINDS.items()
        for role in kind.roles
    }


def faults_by_name(names: str) -> list[Fault]:
    """Return the faults with these names, which are separated by commas. A kind without a role
    selects all its roles, and "all" selects all faults."""
    faults = every_fault()
    selected: list[Fault] = []
    for name in names.split(","):
        matching = [fault for key, fault in faults.items() if name in (key, "all") or fault.kind is KINDS.get(name)]
        if not matching:
            raise ValueError(f"there is no fault {name}; the faults are {', '.join([*KINDS, *faults])}")
        selected += [fault for fault in matching if fault not in selected]
    return selected
