"""Faults, as functions that start, hold and end them. Each kind names its victim by role:

leader       of partition 0 of the topic under load, at that moment
controller   the broker that is the controller
any          one of the three
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

from tests.chaos.cluster import BROKERS, SESSION_MS, Cluster
from tests.chaos.network import RESET, SILENCE, ZOOKEEPER
from tests.support.processes import wait_until

SESSION_S = SESSION_MS / 1000
ROLES = ("leader", "controller", "any")
BOUNCES = 5


@dataclass
class Scene:
    """A fault in progress. `since`: availability is checked from this time on; a fault may move
    it."""

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
        ask = self.cluster.controller if self.role == "controller" else lambda: self.cluster.leaders().get(0)
        broker: int | None = None

        def there() -> bool:
            nonlocal broker
            broker = ask()
            return broker in BROKERS and broker in self.cluster.alive()

        wait_until(there, timeout=30, what=f"a {self.role}")
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
    """Start again at once (the old session is alive), or after the session has expired."""
    number = scene.choose()
    scene.begin()
    scene.cluster.brokers[number].kill()
    wait = scene.random.choice((0.0, SESSION_S / 2, SESSION_S + 3))
    scene.victim += f" for {wait:.0f} s"
    time.sleep(wait)
    scene.cluster.start(number)


def pause(scene: Scene) -> None:
    """Until long after its session has expired: it wakes up as a leader, or controller, of the
    past."""
    number = scene.choose()
    process = scene.cluster.brokers[number].process
    scene.begin()
    process.signal(signal.SIGSTOP)
    try:
        time.sleep(SESSION_S + scene.random.uniform(3, 6))
    finally:
        process.signal(signal.SIGCONT)


def bounce(scene: Scene) -> None:
    """Five clean stops, each of the broker that has the role at that time."""
    _bounces(scene, clean=True)


def hard_bounce(scene: Scene) -> None:
    _bounces(scene, clean=False)


def _bounces(scene: Scene, *, clean: bool) -> None:
    whom: list[int] = []
    for _ in range(BOUNCES):
        number = scene.current()
        # The next one may fall before the cluster has got over this one: from the last on it has
        # to.
        scene.begin()
        whom.append(number)
        scene.victim = ",".join(map(str, whom))
        broker = scene.cluster.brokers[number]
        if clean:
            broker.stop()
        else:
            broker.kill()
        scene.cluster.start(number)


def zookeeper_restart(scene: Scene) -> None:
    """Away for a moment: no session is lost."""
    scene.victim = ZOOKEEPER
    scene.begin()
    if scene.random.random() < 0.5:
        scene.cluster.zookeeper.kill()
    else:
        scene.cluster.zookeeper.stop()
    scene.cluster.zookeeper.start()


def zookeeper_outage(scene: Scene) -> None:
    """Longer than a session. Producers and consumers continue."""
    scene.victim = ZOOKEEPER
    scene.begin()
    scene.cluster.zookeeper.kill()
    time.sleep(SESSION_S + scene.random.uniform(3, 6))
    scene.cluster.zookeeper.start()
    time.sleep(2)


def cut_brokers(scene: Scene) -> None:
    """Between two that are not the controller: each leaves the other's ISRs, and both serve on."""
    controller = scene.cluster.controller()
    left, other = scene.random.sample([number for number in BROKERS if number != controller], 2)
    _cut(scene, str(left), str(other), SESSION_S + scene.random.uniform(3, 6))


def cut_controller(scene: Scene) -> None:
    """Between the controller and another broker. A leader that cannot reach the controller
    cannot shrink its ISRs, so it acknowledges nothing while this lasts. Availability is checked
    after the fault."""
    controller = scene.cluster.controller()
    other = scene.random.choice([number for number in BROKERS if number != controller])
    _cut(scene, str(controller), str(other), SESSION_S + scene.random.uniform(2, 4))
    scene.begin()


def cut_zookeeper(scene: Scene) -> None:
    """A broker loses its session without noticing, while all others still reach it."""
    _cut(scene, str(scene.choose()), ZOOKEEPER, SESSION_S + scene.random.uniform(3, 6))


def _cut(scene: Scene, left: str, other: str, seconds: float) -> None:
    network = scene.cluster.network
    assert network is not None
    how = scene.random.choice((RESET, SILENCE))
    scene.victim = f"{left}-{other} {how}"
    scene.begin()
    network.cut(left, other, how)
    try:
        time.sleep(seconds)
    finally:
        network.heal()


def isolate(scene: Scene) -> None:
    """Isolated from both other brokers it appends records that no follower copies, then it is
    killed. None of them may have been acknowledged, and all of them must be truncated when it
    returns. It may have been the last member of the ISR, so availability is checked from its
    return."""
    network = scene.cluster.network
    assert network is not None
    number = scene.choose()
    how = scene.random.choice((RESET, SILENCE))
    # Mostly before it could have taken the others out of its ISRs: then one of them is elected.
    seconds, away = scene.random.choice((1, 2, 3, 8)), scene.random.choice((0.0, SESSION_S + 3, SESSION_S + 3))
    scene.victim = f"{number} {how} {seconds}+{away:.0f} s"
    for other in BROKERS:
        if other != number:
            network.cut(str(number), str(other), how)
    try:
        time.sleep(seconds)
    finally:
        scene.cluster.brokers[number].kill()
        network.heal()
    time.sleep(away)
    scene.cluster.start(number)
    scene.begin()


def disk_full(scene: Scene) -> None:
    """On a broker that leads nothing: it was stopped before, so its leaders have moved.
    Acknowledged records must be on the other two brokers. The broker may exit (Apache's does);
    it is started again when there is space."""
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
    """To the last byte."""
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


NOBODY = ("",)

KINDS: dict[str, Kind] = {
    "stop": Kind(stop),
    "kill": Kind(kill),
    "pause": Kind(pause),
    "bounce": Kind(bounce),
    "hard-bounce": Kind(hard_bounce),
    "zookeeper-restart": Kind(zookeeper_restart, NOBODY),
    "zookeeper-outage": Kind(zookeeper_outage, NOBODY),
    "cut-brokers": Kind(cut_brokers, NOBODY, network=True),
    "cut-controller": Kind(cut_controller, NOBODY, network=True),
    "cut-zookeeper": Kind(cut_zookeeper, network=True),
    "isolate": Kind(isolate, network=True),
    "disk-full": Kind(disk_full, NOBODY, small_disks=True),
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


def named(names: str) -> list[Fault]:
    """Faults by name, separated by commas; a kind without its role stands for all of them, "all"
    for everything."""
    faults = every_fault()
    chosen: list[Fault] = []
    for name in names.split(","):
        selected = [fault for key, fault in faults.items() if name in (key, "all") or fault.kind is KINDS.get(name)]
        if not selected:
            raise ValueError(f"there is no fault {name}; there are {', '.join([*KINDS, *faults])}")
        chosen += [fault for fault in selected if fault not in chosen]
    return chosen
