"""Every record survives its on-disk form, refuses what is not of its kind, and cannot be built to make no sense."""

import dataclasses
import json
import math
from typing import Any, get_args

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent.actions import ENDING, Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait, points
from arpo.types import (
    Completion,
    Group,
    Image,
    Observation,
    Outcome,
    Provenance,
    Reply,
    Sample,
    Step,
    Task,
    Tokens,
    Trajectory,
    from_json,
    to_json,
)

whole = st.integers(-(10**9), 10**9)
count = st.integers(0, 10**6)
texts = st.text(max_size=12)
names = st.text("abcdef0123456789-", max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
logprobs = st.floats(max_value=0, allow_nan=False)  # minus infinity: a token that the sampler had banned
values = st.recursive(
    st.none() | st.booleans() | whole | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(texts, values, max_size=3)


def tuples(elements: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=size).map(tuple)


clicks = st.builds(Click, whole, whole, st.just("left"), st.sampled_from([1, 2])) | st.builds(
    Click, whole, whole, st.just("right")
)
key_names = st.text(min_size=1, max_size=5)
actions = st.one_of(
    clicks,
    st.builds(Drag, whole, whole, whole, whole),
    st.builds(Scroll, whole, whole, st.sampled_from(["up", "down", "left", "right"])),
    st.builds(Type, texts),
    st.builds(Hotkey, st.lists(key_names, min_size=1, max_size=3).map(tuple), st.sampled_from(["press", "down", "up"])),
    st.builds(Wait),
    st.builds(Finish, texts),
    st.builds(Fail, texts),
    st.builds(CallUser, texts),
)
tasks = st.builds(Task, names, names, texts, names, objects, objects, names, count)
observations = st.builds(Observation, st.binary(max_size=40), count, count, names)
completions = st.integers(0, 4).flatmap(
    lambda n: st.builds(
        Completion,
        tokens=st.lists(count, min_size=n, max_size=n).map(tuple),
        logprobs=st.lists(logprobs, min_size=n, max_size=n).map(tuple),
        text=texts,
        version=count,
        temperature=numbers,
        top_p=numbers,
        finish=st.sampled_from(["stop", "length"]),
    )
)
steps = st.builds(
    Step,
    context=tuples(count),
    completion=completions,
    action=st.none() | actions,
    parse_error=st.none() | texts,
    ignored=texts,
    observation=st.none() | names,
    engine_s=numbers,
    env_s=numbers,
)
segments = st.builds(Tokens, tuples(count)) | st.builds(Image, names, count, count) | st.builds(Reply, count)
provenances = st.builds(
    Provenance, st.sampled_from(["rollout", "replay", "expert", "evaluation"]), names, count, st.none() | names
)


def trajectory_of(outcome: Outcome) -> st.SearchStrategy[Trajectory]:
    worth = numbers if outcome.valid else st.none()
    return st.builds(
        Trajectory,
        id=names,
        task_id=names,
        attempt=count,
        env_seed=count,
        start=names,
        segments=tuples(segments),
        steps=tuples(steps, 2),
        outcome=st.just(outcome),
        score=worth,
        reward=worth,
        provenance=provenances,
    )


trajectories = st.sampled_from(Outcome).flatmap(trajectory_of)
groups = st.builds(Group, names, tuples(trajectories, 2))


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    sampled = tuple(draw(st.lists(st.booleans(), max_size=6)))
    n_ids, n_sampled = len(sampled), sum(sampled)
    return Sample(
        trajectory_id=draw(names),
        ids=tuple(draw(st.lists(count, min_size=n_ids, max_size=n_ids))),
        images=draw(tuples(names)),
        sampled=sampled,
        logprobs=tuple(draw(st.lists(logprobs, min_size=n_sampled, max_size=n_sampled))),
        advantages=tuple(draw(st.lists(numbers, min_size=n_sampled, max_size=n_sampled))),
        version=draw(count),
        replayed_from=draw(st.none() | names),
    )


RECORDS: dict[type, st.SearchStrategy[Any]] = {
    Task: tasks,
    Observation: observations,
    Completion: completions,
    Step: steps,
    Trajectory: trajectories,
    Group: groups,
    Sample: samples(),
}
of_each_kind = pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)


@of_each_kind
def test_a_record_survives_its_disk_form(kind: Any) -> None:
    @given(RECORDS[kind])
    def survives(record: Any) -> None:
        data = to_json(record)
        again = from_json(kind, data)
        assert again == record
        assert repr(again) == repr(record)  # equality alone would not see 1 become 1.0 or -0.0 become 0.0
        assert to_json(again) == data
        assert from_json(kind, data.decode()) == record

    survives()


@given(actions)
def test_an_action_survives_in_its_step(action: Action) -> None:
    step = Step((), Completion((), (), "", 0, 1.0, 1.0, "stop"), action, None, "", None, 0.0, 0.0)
    again = from_json(Step, to_json(step)).action
    assert type(again) is type(action) and again == action


@of_each_kind
def test_a_key_that_a_record_does_not_have_is_refused(kind: Any) -> None:
    @given(RECORDS[kind])
    def refuses(record: Any) -> None:
        with pytest.raises(pydantic.ValidationError, match="extra"):
            from_json(kind, json.dumps(json.loads(to_json(record)) | {"extra": 1}))

    refuses()


@of_each_kind
def test_a_key_that_is_missing_is_refused(kind: Any) -> None:
    @given(RECORDS[kind])
    def refuses(record: Any) -> None:
        data = json.loads(to_json(record))
        for field in dataclasses.fields(kind):
            if field.default is dataclasses.MISSING:
                with pytest.raises(pydantic.ValidationError, match=field.name):
                    from_json(kind, json.dumps({key: data[key] for key in data if key != field.name}))

    refuses()


@of_each_kind
def test_a_record_is_frozen(kind: Any) -> None:
    @given(RECORDS[kind])
    def refuses(record: Any) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(kind)[0].name, None)

    refuses()


def test_extra_keys_are_refused_inside_actions_and_segments_too() -> None:
    step = Step((), Completion((), (), "", 0, 1.0, 1.0, "stop"), Click(1, 2), None, "", None, 0.0, 0.0)
    data = json.loads(to_json(step))
    data["action"]["force"] = True
    with pytest.raises(pydantic.ValidationError, match="force"):
        from_json(Step, json.dumps(data))


def test_an_action_of_no_known_kind_is_refused() -> None:
    step = Step((), Completion((), (), "", 0, 1.0, 1.0, "stop"), Wait(), None, "", None, 0.0, 0.0)
    data = json.loads(to_json(step)) | {"action": {"kind": "eval", "code": "1"}}
    with pytest.raises(pydantic.ValidationError, match="eval"):
        from_json(Step, json.dumps(data))


@pytest.mark.parametrize("data", ["", "{", "[]", "null", '"task"', "\x00"])
def test_what_is_no_record_is_a_value_error(data: str) -> None:
    with pytest.raises(ValueError):
        from_json(Task, data)


def test_not_a_number_survives_in_a_score() -> None:
    completion = Completion((1,), (math.nan,), "", 0, 1.0, 1.0, "stop")
    assert math.isnan(from_json(Completion, to_json(completion)).logprobs[0])


def test_every_action_has_a_kind_of_its_own() -> None:
    kinds = [{field.name: field.default for field in dataclasses.fields(kind)}["kind"] for kind in get_args(Action)]
    assert len(set(kinds)) == len(get_args(Action)) == 9


def test_what_makes_no_sense_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="right double click"):
        Click(1, 2, "right", 2)
    with pytest.raises(ValueError, match="at least one key"):
        Hotkey(())
    with pytest.raises(ValueError, match="without a name"):
        Hotkey(("ctrl", ""))
    with pytest.raises(ValueError, match="2 tokens with 1 log-prob"):
        Completion((1, 2), (-1.0,), "", 0, 1.0, 1.0, "stop")
    with pytest.raises(ValueError, match="2 ids with a mask of 1"):
        Sample("t", (1, 2), (), (True,), (-1.0,), (1.0,), 0)
    with pytest.raises(ValueError, match="1 sampled tokens, 0 log-prob"):
        Sample("t", (1,), (), (True,), (), (1.0,), 0)
    with pytest.raises(ValueError, match="1 sampled tokens, 1 log-probabilities, 2 adv"):
        Sample("t", (1,), (), (True,), (-1.0,), (1.0, 1.0), 0)


@pytest.mark.parametrize("outcome", Outcome)
def test_a_trajectory_has_a_score_exactly_where_its_outcome_is_valid(outcome: Outcome) -> None:
    fields: dict[str, Any] = dict.fromkeys(("id", "task_id", "start"), "x") | dict.fromkeys(("attempt", "env_seed"), 0)
    fields |= {"segments": (), "steps": (), "outcome": outcome, "provenance": Provenance("rollout", "r", 0)}
    right: dict[str, Any] = dict.fromkeys(("score", "reward"), 1.0 if outcome.valid else None)
    Trajectory(**fields, **right)
    halves: list[dict[str, Any]] = [{"score": None, "reward": 1.0}, {"score": 1.0, "reward": None}]
    for wrong in halves:
        with pytest.raises(ValueError, match=str(outcome)):
            Trajectory(**fields, **wrong)
    with pytest.raises(ValueError, match=str(outcome)):
        Trajectory(**fields, **dict.fromkeys(("score", "reward"), None if outcome.valid else 1.0))


def test_a_trajectory_that_is_invalid_on_disk_is_refused() -> None:
    fields = ("x", "x", 0, 0, "x", (), (), Outcome.FINISHED, 1.0, 1.0, Provenance("rollout", "r", 0))
    data = json.loads(to_json(Trajectory(*fields))) | {"score": None}
    with pytest.raises(pydantic.ValidationError):
        from_json(Trajectory, json.dumps(data))


def test_only_machinery_makes_an_outcome_invalid() -> None:
    assert {outcome for outcome in Outcome if not outcome.valid} == {"cancelled", "env_error", "engine_error"}


def test_a_task_is_infeasible_by_its_evaluator() -> None:
    task = Task("a", "b", "c", "pocket", {}, {"func": "pocket"}, "train")
    assert task.feasible
    assert not dataclasses.replace(task, evaluator={"func": "infeasible"}).feasible


@given(actions)
def test_points_are_the_numbers_that_an_action_holds(action: Action) -> None:
    held = tuple(value for value in dataclasses.astuple(action) if type(value) is int)
    flat = tuple(number for point in points(action) for number in point)
    assert flat == (held[:2] if isinstance(action, Click) else held)
    assert not (isinstance(action, ENDING) and flat)
