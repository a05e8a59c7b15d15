"""The branches of the exception tree stay where the rest of the project relies on them to be."""

import inspect

from arpo import errors


def test_everything_raised_on_purpose_can_be_caught_as_one() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    assert len(kinds) == 11
    assert all(issubclass(kind, errors.ArpoError) for kind in kinds)


def test_only_a_task_error_is_a_setting_of_the_user_as_well() -> None:
    assert errors.ConfigError.__subclasses__() == [errors.TaskError]


def test_machinery_is_never_mistaken_for_the_agent() -> None:
    for machinery in (errors.EnvError, errors.EngineError):
        assert not issubclass(machinery, (errors.ActionError, errors.ParseError, errors.ConfigError))


def test_the_tree_in_the_docstring_names_every_error() -> None:
    for name, _ in inspect.getmembers(errors, inspect.isclass):
        assert name in (errors.__doc__ or "")
