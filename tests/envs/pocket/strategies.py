"""Hypothesis strategies for what an agent may do to a pocket desktop."""

from hypothesis import strategies as st

from arpo.agent.actions import Action, Click, Drag, Hotkey, Scroll, Type, Wait
from arpo.envs.pocket.keys import MODIFIERS, NAMED

WIDTH, HEIGHT = 448, 280

xs = st.integers(0, WIDTH - 1)
ys = st.integers(0, HEIGHT - 1)
KEYS = [*sorted(NAMED), *"acfhnosvxyz=+-19"]


def clicks() -> st.SearchStrategy[Action]:
    return st.one_of(
        st.builds(Click, xs, ys),
        st.builds(Click, xs, ys, count=st.just(2)),
        st.builds(Click, xs, ys, button=st.just("right")),
    )


def actions() -> st.SearchStrategy[Action]:
    """Anything but an ending action."""
    chords = st.tuples(st.lists(st.sampled_from(MODIFIERS), max_size=2, unique=True), st.sampled_from(KEYS))
    return st.one_of(
        clicks(),
        st.builds(Drag, xs, ys, xs, ys),
        st.builds(Scroll, xs, ys, st.sampled_from(["up", "down", "left", "right"])),
        st.builds(Type, st.text(max_size=12)),
        st.builds(Hotkey, chords.map(lambda pair: (*pair[0], pair[1])), st.sampled_from(["press", "down", "up"])),
        st.just(Wait()),
    )
