"""The exceptions of the project, as one tree. What went wrong decides who is told, so the branches stay apart.

    ArpoError                 anything this project raises on purpose
    ├── ConfigError           the user's: a setting, a preset, a command-line value (one line, exit status 2)
    │   └── TaskError         an unknown task id, a broken task file
    ├── ParseError            the model's: a reply without a valid action; an outcome, never a crash
    ├── ActionError           the caller's: an action that this screen or this moment does not allow; nothing happened
    ├── EnvError              the machinery's: a desktop that died or hung; the episode is retried, never scored
    │   └── NoRoom            one more would not fit now: those that run stay, and it is retried later
    ├── EngineError           the machinery's: the sampler died or hung; likewise
    ├── ContextTooLong        the episode's: a prompt that the model cannot take; an outcome, nothing is cut
    └── LearnerError          the learner's: learning cannot continue, the run ends (training/base.py)

A ValueError or an assert that escapes is a bug of ours, not one of these.
"""


class ArpoError(Exception):
    """Base of all. Its text is one line that says what is wrong and, where it can, what to do."""


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


class EngineError(ArpoError):
    """An engine failed as a machine. Never a property of the agent, so never a reward."""


class ContextTooLong(ArpoError):
    """A prompt that does not fit into the model's context. An outcome of the episode; nothing is cut silently."""
