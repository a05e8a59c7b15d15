"""An agent that does anything anywhere: for benchmarks, for wrong moves in lessons, and as the floor of evaluations."""

import random

from arpo.agent.actions import Action, Click, Drag, Hotkey, Scroll, Type, Wait


def random_action(rng: random.Random, size: tuple[int, int]) -> Action:
    """Anything that does not end the episode, anywhere on the screen."""
    x, y = rng.randrange(size[0]), rng.randrange(size[1])
    kinds = ("click", "double", "right", "drag", "scroll", "type", "key", "wait")
    match rng.choices(kinds, (8, 2, 1, 1, 2, 2, 2, 1))[0]:
        case "click":
            return Click(x, y)
        case "double":
            return Click(x, y, count=2)
        case "right":
            return Click(x, y, button="right")
        case "drag":
            return Drag(x, y, rng.randrange(size[0]), rng.randrange(size[1]))
        case "scroll":
            return Scroll(x, y, rng.choice(("up", "down")))
        case "type":
            return Type("".join(rng.choices("abcdefgh 0123.\n", k=rng.randrange(1, 12))))
        case "key":
            return Hotkey(rng.choice((("enter",), ("esc",), ("tab",), ("delete",), ("ctrl", "a"), ("ctrl", "v"))))
    return Wait()
