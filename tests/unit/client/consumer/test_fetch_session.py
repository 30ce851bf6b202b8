"""Fetch sessions: client and broker agree on the partitions after any sequence of responses."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kavka.client.consumer.fetch_session import FetchSession, FetchTarget
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.fetch import FetchRequest, FetchResponse
from kavka.protocol.primitives import ZERO_UUID

A, B = UUID(int=1), UUID(int=2)


def target(offset: int, topic_id: UUID = A) -> FetchTarget:
    return FetchTarget(topic_id, offset, 0, 100)


def fetched(request: FetchRequest) -> dict[TP, int]:
    return {TP(t.topic, p.partition): p.fetch_offset for t in request.topics for p in t.partitions}


def forgotten(request: FetchRequest) -> set[TP]:
    return {TP(t.topic, p) for t in request.forgotten_topics_data for p in t.partitions}


def started() -> FetchSession:
    session = FetchSession()
    session.request({TP("a", 0): target(1), TP("a", 1): target(2)})
    assert session.handle_response(FetchResponse(session_id=9))
    return session


def test_first_request_contains_all_partitions() -> None:
    session = FetchSession()
    request, max_version = session.request({TP("a", 0): target(1), TP("b", 0): target(2, B)})
    assert (request.session_id, request.session_epoch, max_version) == (0, 0, None)
    assert fetched(request) == {TP("a", 0): 1, TP("b", 0): 2}
    assert session.names == {A: "a", B: "b"}


def test_later_requests_contain_changes_only() -> None:
    session = started()
    request, _ = session.request({TP("a", 0): target(5), TP("a", 1): target(2)})
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert (fetched(request), forgotten(request)) == ({TP("a", 0): 5}, set())
    assert session.handle_response(FetchResponse(session_id=9))
    request, _ = session.request({TP("a", 1): target(2)})
    assert request.session_epoch == 2
    assert (fetched(request), forgotten(request)) == ({}, {TP("a", 0)})


def test_every_request_is_full_without_a_session() -> None:
    session = FetchSession()
    for _ in range(2):
        request, _ = session.request({TP("a", 0): target(1)})
        assert (request.session_epoch, fetched(request)) == (0, {TP("a", 0): 1})
        assert session.handle_response(FetchResponse(session_id=0))


def test_session_restarts_after_session_id_not_found() -> None:
    session = started()
    assert not session.handle_response(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    request, _ = session.request({TP("a", 0): target(1)})
    assert (request.session_id, request.session_epoch, fetched(request)) == (0, 0, {TP("a", 0): 1})


def test_failed_request_replaces_the_session() -> None:
    session = started()
    session.reset()
    request, _ = session.request({TP("a", 0): target(1)})
    assert (request.session_id, request.session_epoch, fetched(request)) == (9, 0, {TP("a", 0): 1})


def test_topic_without_an_id_makes_the_session_use_names() -> None:
    session = started()
    request, max_version = session.request({TP("a", 0): target(1), TP("c", 0): target(0, ZERO_UUID)})
    assert max_version == 12
    assert (request.session_epoch, len(fetched(request))) == (0, 2)


def test_recreated_topic_is_forgotten_under_its_old_id() -> None:
    session = started()
    request, _ = session.request({TP("a", 0): target(0, B), TP("a", 1): target(2)})
    assert [(t.topic_id, t.partitions) for t in request.forgotten_topics_data] == [(A, [0])]
    assert [t.topic_id for t in request.topics] == [B]


def test_epochs_wrap_to_one() -> None:
    session = started()
    session.epoch = 0x7FFFFFFF
    session.handle_response(FetchResponse(session_id=9))
    assert session.epoch == 1


def test_close_request_exists_only_for_a_session() -> None:
    assert FetchSession().close_request() is None
    closing = started().close_request()
    assert closing is not None and (closing.session_id, closing.session_epoch) == (9, -1)


targets = st.dictionaries(
    st.builds(TP, st.sampled_from("ab"), st.integers(0, 3)), st.builds(target, st.integers(0, 5)), max_size=6
)


@given(st.lists(st.tuples(targets, st.sampled_from(["ok", "ok", "ok", "lost", "forgot", "none"])), max_size=12))
def test_broker_state_matches_the_targets_after_any_responses(steps) -> None:
    session = FetchSession()
    broker_state: dict[TP, int] = {}
    session_id = 0
    for requested, outcome in steps:
        request, _ = session.request(requested)
        if request.session_epoch == 0:
            broker_state = {}
            session_id += 1
        for tp in forgotten(request):
            del broker_state[tp]
        broker_state |= fetched(request)
        assert broker_state == {tp: partition.offset for tp, partition in requested.items()}
        if outcome == "lost":
            session.reset()
        elif outcome == "forgot":
            session.handle_response(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        else:
            session.handle_response(FetchResponse(session_id=session_id if outcome == "ok" else 0))
