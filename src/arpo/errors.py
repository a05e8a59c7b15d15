"""The exceptions of the project, as one tree. What went wrong decides who is told, so the branches stay apart.

    ArpoError                 anything this project raises on purpose
    ├── ConfigError           the user's: a setting, a preset, a command-line value (one line, exit status 2)
    │   └── TaskError         an unknown task id, a broken task file
    ├── ParseError            the model's: a reply without a valid action; an outcome, never a crash
    ├── ActionError           the caller's: an action that this screen or this moment does not allow; nothing happened
    ├── EnvError              the machinery's: a desktop that died or hung; the episode is retried, never scored
    │   └── NoRoom            one more would not fit now: those that run stay, and it is retried later
    ├── EngineError           the machinery's: the sampler died or hung; likewise
    ├── DeviceError           what computes is out of memory or lost: the run ends, what is finished stays
    ├── Ruined                the agent's: it has ended or broken its computer; an outcome, scored 0
    ├── ContextTooLong        the episode's: a prompt that the model cannot take; an outcome, nothing is cut
    └── LearnerError          the learner's: learning cannot continue, the run ends (training/base.py)

A ValueError or an assert that escapes is a bug of ours, not one of these.
"""

import re

LONGEST = 4000  # characters of a text
KEPT = "\u00a0\u202f\u3000\u200c\u200d"  # spaces and joiners of honest text: French, Japanese, Persian, emoji


def printable(text: str) -> str:
    """On one line, not endless, and with nothing in it that a terminal would obey: names come from anywhere."""
    return "".join(c if c.isprintable() or c in KEPT else ascii(c)[1:-1] for c in text[:LONGEST])


class ArpoError(Exception):
    """Base of all. Its text is one line that says what is wrong and, where it can, what to do."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(ArpoError):
    """A setting that cannot be used, named together with the value and what is allowed."""


class TaskError(ConfigError):
    """A task that is unknown or whose file is broken."""


class ParseError(ArpoError):
    """A reply of the model in which no valid action was found. `str(error)` is the reason."""


class ActionError(ArpoError):
    """An action refused by an environment: off the screen, an unknown key, after the end. The state is unchanged."""


class EnvError(ArpoError):
    """An environment failed as a machine. Never a property of the agent, so never a reward."""


class NoRoom(EnvError):
    """There is no memory for one more environment now. Nothing has failed."""


class Ruined(ArpoError):
    """The agent has ended or broken its computer, and nothing else can have: the episode is over and scores 0."""


class EngineError(ArpoError):
    """An engine failed as a machine. Never a property of the agent, so never a reward."""


class DeviceError(ArpoError):
    """What computes has no memory left, or is lost. To try again would fail again: the run ends, and can be resumed."""

    def __init__(self, text: str, full: bool) -> None:
        super().__init__(text)
        self.full = full  # whether it is memory that was lacking


def device_error(error: BaseException) -> DeviceError | None:
    """The same where it is that. torch has kinds of its own for it on a GPU alone, so it is known by its words."""
    if isinstance(error, DeviceError):
        return error
    said = " ".join((str(error).strip() or type(error).__name__).split("\n")[0].split())
    full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    computing = isinstance(error, RuntimeError)
    full = full or (computing and re.search("out of memory|t allocate memory|not enough memory", said) is not None)
    lost = computing and re.search("CUDA|CUBLAS|cuDNN|CUDNN|NVML|MPS backend", said) is not None
    return DeviceError(said[:300], full) if full or lost else None


class ContextTooLong(ArpoError):
    """A prompt that does not fit into the model's context. An outcome of the episode; nothing is cut silently."""
