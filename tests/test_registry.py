"""What is known by name: a name has one owner, an unknown one is answered by names, a stranger's mistake is said."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from arpo import registry
from arpo.errors import ConfigError
from arpo.registry import Registry, imported


@dataclass(frozen=True)
class Tool:
    name: str
    weight: int = 1


SAW = Tool("saw")
BROKEN = "one\ntwo"


@pytest.fixture
def tools() -> Registry[Tool]:
    return Registry("tool", "arpo.tools", [Tool("hammer")])


def install(monkeypatch: pytest.MonkeyPatch, *places: str) -> list[str]:
    """These entry points are installed; returns what is asked for, as it is asked."""
    asked: list[str] = []

    def entry_points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("any", place, group) for place in places]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return asked


def test_a_name_has_one_owner(tools: Registry[Tool]) -> None:
    tools.register(Tool("hammer"))  # the same once more is no other
    with pytest.raises(ConfigError, match=r"^there is another tool of the name 'hammer': choose another name$"):
        tools.register(Tool("hammer", weight=2))
    assert tools["hammer"].weight == 1
    tools.register(Tool("hammer", weight=2), replace=True)
    assert tools.find("hammer").weight == 2


def test_an_unknown_name_is_answered_with_the_names(tools: Registry[Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, f"{__name__}:SAW")
    with pytest.raises(ConfigError, match=r"^unknown tool 'hamer': choose from hammer, saw$"):
        tools.find("hamer")


def test_entry_points_are_looked_at_only_where_a_name_is_not_known(
    tools: Registry[Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = install(monkeypatch, f"{__name__}:SAW")
    assert tools.find("hammer").name == "hammer" and asked == []
    assert tools.find("saw") is SAW and asked == ["arpo.tools"]
    assert tools.names() == ["hammer", "saw"] and asked == ["arpo.tools"]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no_such_module:TOOL", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{__name__}:NOTHING", "AttributeError: .*NOTHING.*"),
        (f"{__name__}:BROKEN", r"ConfigError: 'one\\ntwo': must be a Tool"),
        (f"{__name__}:HAMMER", "ConfigError: there is another tool of the name 'hammer': choose another name"),
    ],
)
def test_a_broken_entry_point_is_one_line_each_time(
    tools: Registry[Tool], monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    monkeypatch.setitem(globals(), "HAMMER", Tool("hammer", weight=3))
    install(monkeypatch, place)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"^{place}, an entry point of arpo\.tools: {why}$") as raised:
            tools.names()
        assert "\n" not in str(raised.value)
    assert tools.find("hammer").weight == 1  # those that are known can still be used


def test_what_is_given_by_its_place_is_imported() -> None:
    assert imported("arpo.registry:Registry") is Registry
    assert imported("arpo.registry") is registry
    assert imported(SAW) is SAW
