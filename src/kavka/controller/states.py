"""[pure] A state machine as a table: the allowed transitions, their actions and their reasons.

The controller checks every transition against the table. The diagrams in the docs are generated
from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Action = TypeVar("Action", bound=Enum)


@dataclass(frozen=True, slots=True)
class Transition(Generic[State, Action]):
    source: State
    target: State
    action: Action
    when: str


class IllegalTransition(Exception):
    def __init__(self, subject: object, source: Enum, target: Enum) -> None:
        super().__init__(f"{subject} cannot go from {source.value} to {target.value}")


class TransitionTable(Generic[State, Action]):
    """The transitions of one state machine. Immutable."""

    def __init__(self, rows: Iterable[Transition[State, Action]]) -> None:
        self.rows = tuple(rows)
        self._by_states: dict[tuple[State, State], Transition[State, Action]] = {}
        for row in self.rows:
            if (row.source, row.target) in self._by_states:
                raise ValueError(f"{row.source} to {row.target} is in the table twice")
            self._by_states[row.source, row.target] = row

    def action(self, subject: object, source: State, target: State) -> Action:
        """The action of the transition. Raises IllegalTransition if it is not allowed."""
        row = self._by_states.get((source, target))
        if row is None:
            raise IllegalTransition(subject, source, target)
        return row.action

    def diagram(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = [f"    {row.source.value} --> {row.target.value}: {row.when}" for row in self.rows]
        return "\n".join(["stateDiagram-v2", *lines]) + "\n"
