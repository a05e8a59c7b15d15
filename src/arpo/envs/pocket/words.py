"""The words that names and texts are made of, and how a task's parameters are made at random.

The words are few and short, so that a small model can learn to read them all.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NOUNS = (
    "apple bank bird boat book bread bridge budget cake car chair city clock cloud coffee corn door dream farm fish "
    "flower forest garden gift guest hotel house island king lamp lemon letter list market milk moon music night notes "
    "order paper party piano plan radio rain recipe river school ship snow song star story table tea ticket train tree "
    "trip water winter zebra"
).split()
PEOPLE = "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jana Kim Leo Mia Nora Omar Pia".split()
VERBS = "bring buy call check clean find move order paint pack send sell visit wash".split()


def nouns(rng: Random, count: int, avoid: tuple[str, ...] = ()) -> list[str]:
    """Different nouns, none of them in `avoid`."""
    return rng.sample([word for word in NOUNS if word not in avoid], count)


def noun(rng: Random) -> str:
    return nouns(rng, 1)[0]


def text_file(rng: Random) -> str:
    return f"{noun(rng)}.txt"


def person(rng: Random, avoid: tuple[str, ...] = ()) -> str:
    return rng.choice([name for name in PEOPLE if name not in avoid])


def sentence(rng: Random) -> str:
    """A short line such as "buy milk and bread"."""
    verb = rng.choice(VERBS)
    first, second = nouns(rng, 2, (verb,))
    return f"{verb} {first} and {second}"


def drawn(**how: Callable[[Random], Any]) -> Any:
    """A family's `random_params`, where no parameter depends on another."""
    return lambda self, rng: {name: draw_one(rng) for name, draw_one in how.items()}


def one_of(values: Sequence[Any]) -> Callable[[Random], Any]:
    return lambda rng: rng.choice(values)


def coin(rng: Random) -> bool:
    return rng.random() < 0.5
