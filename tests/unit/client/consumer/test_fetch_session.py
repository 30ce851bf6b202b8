"""Fetch sessions: after any sequence of requests and answers, both sides agree on what is fetched."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kavka.client.consumer.fetch_session import FetchSession, Wanted
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.fetch import FetchRequest, FetchResponse
from kavka.protocol.primitives import ZERO_UUID

A, B = UUID(int=1), UUID(int=2)


def want(offset: int, topic_id: UUID = A) -> Wanted:
    return Wanted(topic_id, offset, 0, 100)


def asked(request: FetchRequest) -> dict[TP, int]:
    return {TP(t.topic, p.partition): p.fetch_offset for t in request.topics for p in t.partitions}


def forgotten(request: FetchRequest) -> set[TP]:
    return {TP(t.topic, p) for t in request.forgotten_topics_data for p in t.partitions}


def begun() -> FetchSession:
    session = FetchSession()
    session.request({TP("a", 0): want(1), TP("a", 1): want(2)})
    assert session.answered(FetchResponse(session_id=9))
    return session


def test_the_first_request_names_everything() -> None:
    session = FetchSession()
    request, highest = session.request({TP("a", 0): want(1), TP("b", 0): want(2, B)})
    assert (request.session_id, request.session_epoch, highest) == (0, 0, None)
    assert asked(request) == {TP("a", 0): 1, TP("b", 0): 2}
    assert session.names == {A: "a", B: "b"}


def test_the_next_ones_name_what_changed() -> None:
    session = begun()
    request, _ = session.request({TP("a", 0): want(5), TP("a", 1): want(2)})
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert (asked(request), forgotten(request)) == ({TP("a", 0): 5}, set())
    assert session.answered(FetchResponse(session_id=9))
    request, _ = session.request({TP("a", 1): want(2)})
    assert request.session_epoch == 2
    assert (asked(request), forgotten(request)) == ({}, {TP("a", 0)})


def test_without_a_session_every_request_is_whole() -> None:
    session = FetchSession()
    for _ in range(2):
        request, _ = session.request({TP("a", 0): want(1)})
        assert (request.session_epoch, asked(request)) == (0, {TP("a", 0): 1})
        assert session.answered(FetchResponse(session_id=0))


def test_a_session_that_the_broker_forgot_begins_anew() -> None:
    session = begun()
    assert not session.answered(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    request, _ = session.request({TP("a", 0): want(1)})
    assert (request.session_id, request.session_epoch, asked(request)) == (0, 0, {TP("a", 0): 1})


def test_after_a_lost_answer_a_new_session_takes_the_place_of_the_old() -> None:
    session = begun()
    session.failed()
    request, _ = session.request({TP("a", 0): want(1)})
    assert (request.session_id, request.session_epoch, asked(request)) == (9, 0, {TP("a", 0): 1})


def test_a_topic_without_an_id_is_asked_for_by_name_and_all_others_with_it() -> None:
    session = begun()
    request, highest = session.request({TP("a", 0): want(1), TP("c", 0): want(0, ZERO_UUID)})
    assert highest == 12
    assert (request.session_epoch, len(asked(request))) == (0, 2)


def test_a_topic_that_was_created_again_is_forgotten_under_its_old_id() -> None:
    session = begun()
    request, _ = session.request({TP("a", 0): want(0, B), TP("a", 1): want(2)})
    assert [(t.topic_id, t.partitions) for t in request.forgotten_topics_data] == [(A, [0])]
    assert [t.topic_id for t in request.topics] == [B]


def test_epochs_wrap_to_one() -> None:
    session = begun()
    session.epoch = 0x7FFFFFFF
    session.answered(FetchResponse(session_id=9))
    assert session.epoch == 1


def test_a_session_is_ended_where_there_is_one() -> None:
    assert FetchSession().closing() is None
    closing = begun().closing()
    assert closing is not None and (closing.session_id, closing.session_epoch) == (9, -1)


wishes = st.dictionaries(
    st.builds(TP, st.sampled_from("ab"), st.integers(0, 3)), st.builds(want, st.integers(0, 5)), max_size=6
)


@given(st.lists(st.tuples(wishes, st.sampled_from(["ok", "ok", "ok", "lost", "forgot", "none"])), max_size=12))
def test_the_broker_knows_what_is_wanted_after_any_answers(steps) -> None:
    session = FetchSession()
    known: dict[TP, int] = {}
    session_id = 0
    for wanted, outcome in steps:
        request, _ = session.request(wanted)
        if request.session_epoch == 0:
            known = {}
            session_id += 1
        for tp in forgotten(request):
            del known[tp]
        known |= asked(request)
        assert known == {tp: one.offset for tp, one in wanted.items()}
        if outcome == "lost":
            session.failed()
        elif outcome == "forgot":
            session.answered(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        else:
            session.answered(FetchResponse(session_id=session_id if outcome == "ok" else 0))
