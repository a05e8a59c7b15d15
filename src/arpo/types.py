"""The records that travel through the project: frozen, plain, one line a field. They hold data and no behaviour.

    Task ─▶ Observation ─▶ context (segments) ─▶ Completion ─▶ Action      = one Step
    Steps ─▶ Trajectory (+ outcome, score, reward) ─▶ Group of G ─▶ Samples

An episode of one click, written out (8 is <|image_pad|>, 2 is <|im_end|>):

    Task(id="files-rename-003", domain="files", instruction="Rename draft.txt to plan.txt.", env="pocket",
         setup={"family": "files-rename", "params": {...}}, evaluator={"func": "pocket"}, split="train", max_steps=15)
    Trajectory(id="r1-files-rename-003-0", task_id="files-rename-003", attempt=0, env_seed=7, start="9f0c…",
         segments=(Tokens((1, 5, 6)), Image("9f0c…", 448, 280), Tokens((3, 4)), Reply(0), Tokens((5,)),
                   Image("77ab…", 448, 280)),
         steps=(Step(context=(0, 1, 2), completion=Completion(tokens=(40, 41, 2), logprobs=(-0.1, -2.3, 0.0), …),
                     action=Click(120, 44), observation="77ab…", …),),
         outcome=Outcome.FINISHED, score=1.0, reward=1.0, provenance=Provenance(source="rollout", run="r1", update=0))

On disk every record is one JSON object: `to_json(record)` and `from_json(kind, data)` are each other's inverse.
Screenshots are the one thing kept apart: records name them by the hash of their pixels and never hold them twice.
"""

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import pydantic

from arpo.agent.actions import Action

PIXELS = 2**26  # of the largest screen that there may be

Json: TypeAlias = dict[str, Any]
"""A JSON object whose meaning belongs to one environment."""

ByKind = pydantic.Discriminator("kind")


@dataclass(frozen=True, slots=True)
class Task:
    """An instruction, how to set the machine up, how to score it, a split, a step limit."""

    id: str
    domain: str  # the key in a task list of OSWorld's form {domain: [id, …]}
    instruction: str
    env: str  # the environment that understands `setup` and `evaluator`
    setup: Json
    evaluator: Json  # {"func": "infeasible"}: only Fail scores, in every environment
    split: str
    max_steps: int = 15
    partial: float = 0.0  # what it scores at most where it is done in part; only a training's attempts have it

    @property
    def feasible(self) -> bool:
        return bool(self.evaluator.get("func") != "infeasible")


@dataclass(frozen=True, slots=True)
class Observation:
    """One screenshot. The engine sees exactly these bytes, decoded."""

    image: bytes  # encoded, lossless where the environment can (PNG)
    width: int
    height: int
    hash: str  # of the decoded pixels, so that equal screens are equal whatever encoded them
    settle_s: float = 0.0  # how long the screen was waited for, where an environment does


@dataclass(frozen=True, slots=True)
class Tokens:
    """A segment of token ids that nobody sampled: template, instruction."""

    ids: tuple[int, ...]
    kind: Literal["tokens"] = field(default="tokens", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Image:
    """A segment that stands for one screenshot; the engine expands it to as many image tokens as its size needs."""

    hash: str
    width: int
    height: int
    kind: Literal["image"] = field(default="image", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """A segment that stands for the tokens sampled in a step of the same trajectory, so that none is stored twice."""

    step: int
    kind: Literal["reply"] = field(default="reply", kw_only=True, repr=False)


Segment: TypeAlias = Tokens | Image | Reply


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled in one turn, by one version of the policy from the first token to the last."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # the sampler's, at the sampling temperature and top-p, one a token
    text: str  # decoded with special tokens visible; for parsing and for people, never tokenised again
    version: int
    temperature: float
    top_p: float
    finish: Literal["stop", "length"]  # "length": cut off at the token limit
    usage: tuple[int, int] | None = None  # tokens of prompt and reply, where an endpoint of others counts its own

    def __post_init__(self) -> None:
        if self.usage is not None and not all(0 <= n < 2**40 for n in self.usage):
            raise ValueError(f"usage {self.usage}")
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens with {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: what the engine saw, what it said, what that meant, what came of it."""

    context: tuple[int, ...]  # indices into the trajectory's segments
    completion: Completion
    action: Annotated[Action, ByKind] | None  # None where the reply could not be parsed
    parse_error: str | None
    ignored: str  # what followed the first action in the reply, as text
    observation: str | None  # hash of the next screenshot; None where the episode ended here
    engine_s: float
    env_s: float
    settle_s: float = 0.0  # of env_s, what the screen took to settle


class Outcome(enum.StrEnum):
    """Why an episode ended."""

    FINISHED = "finished"
    GAVE_UP = "gave_up"
    ASKED_USER = "asked_user"
    STEP_LIMIT = "step_limit"
    CONTEXT_LIMIT = "context_limit"
    CUT_OFF = "cut_off"
    UNPARSABLE = "unparsable"
    RUINED = "ruined"
    CANCELLED = "cancelled"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"

    @property
    def valid(self) -> bool:
        """Whether the episode says something about the agent. If not, it has no score and is never trained on."""
        return self not in (Outcome.CANCELLED, Outcome.ENV_ERROR, Outcome.ENGINE_ERROR)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a trajectory comes from."""

    source: Literal["rollout", "replay", "expert", "evaluation", "offline"]  # offline: copied from another run
    run: str  # the name of its folder; of an offline one that of the run that it was copied from
    update: int  # how many updates the run had made, or which it is played for; with a lag another one may learn it
    replayed_from: str | None = None  # the id of the stored success that this one repeats


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at an episode: what is played, from which seeds, under which name. A failed machine makes another."""

    task: Task
    index: int  # which of the episodes of its task: the member of a group, or the trial
    episode: str  # its name, the same in every attempt
    number: int
    env_seed: int  # what the screen looks like
    sample_seed: int  # what the agent says
    provenance: Provenance

    @property
    def id(self) -> str:
        """Of its trajectory."""
        return f"{self.episode}-{self.number}"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, whole. `score` is the checker's word, `reward` is what is trained on."""

    id: str
    task_id: str
    attempt: int  # 0 for the first try; a failed machine makes another
    env_seed: int
    start: str  # hash of the first screenshot
    segments: tuple[Annotated[Segment, ByKind], ...]
    steps: tuple[Step, ...]
    outcome: Outcome
    score: float | None  # None where the outcome is not valid
    reward: float | None
    provenance: Provenance

    def __post_init__(self) -> None:
        if self.outcome.valid != (self.score is not None) or self.outcome.valid != (self.reward is not None):
            raise ValueError(f"{self.outcome} with score {self.score} and reward {self.reward}")


def refuse_gaps(trajectory: Trajectory) -> None:
    """ValueError where a step names segments, or a segment a step, that are not there: no episode ends so."""
    segments, steps = trajectory.segments, trajectory.steps
    named = [segment.step for segment in segments if isinstance(segment, Reply)]
    if not all(0 <= step < len(steps) for step in named):
        raise ValueError("a reply of no step")
    for number, step in enumerate(steps):
        context, last = step.context, max(step.context, default=-1)
        if min(context, default=-1) < 0 or segments[last + 1 : last + 2] != (Reply(number),) or context[-1] != last:
            raise ValueError("a reply that does not follow its context")


@dataclass(frozen=True, slots=True)
class Summary:
    """What can be said of a trajectory without reading its steps."""

    id: str
    task_id: str
    update: int
    source: str
    attempt: int
    env_seed: int
    outcome: Outcome
    score: float | None
    reward: float | None
    n_steps: int


@dataclass(frozen=True, slots=True)
class Group:
    """The G trajectories of one task that are compared with each other."""

    task_id: str
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sequence: a run of steps whose contexts extend each other.

    `ids` holds one image token where a screenshot stands; `images` names the screenshots in that order. `logprobs`
    and `advantages` have one entry for each true entry of `sampled`.
    """

    trajectory_id: str
    ids: tuple[int, ...]
    images: tuple[str, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]  # the sampler's
    advantages: tuple[float, ...]
    version: int  # the oldest version that sampled a token of it
    replayed_from: str | None = None  # the id of the stored success that this one repeats
    returns: tuple[float, ...] = ()  # what a value head is to predict, where there is one: one for each sampled token
    turns: tuple[tuple[int, int, int], ...] = ()  # of each: its number, from 1 on; its version; its sampled tokens
    task_id: str = ""
    offline: bool = False  # copied from another run

    @property
    def replayed(self) -> bool:
        return self.replayed_from is not None

    @property
    def stored(self) -> bool:
        """Whether it comes out of the store: a replayed success, or an episode of another run.

        Such a one is never fresh, whatever its version: it was not sampled for this update, perhaps by other weights or
        at another temperature, so nothing can be said of the engine by it. Its importance weight is that of replay.
        """
        return self.offline or self.replayed

    def __post_init__(self) -> None:
        n_sampled = sum(self.sampled)
        if len(self.ids) != len(self.sampled):
            raise ValueError(f"{len(self.ids)} ids with a mask of {len(self.sampled)}")
        if n_sampled != len(self.logprobs) or n_sampled != len(self.advantages):
            raise ValueError(
                f"{n_sampled} sampled tokens, {len(self.logprobs)} log-probabilities, {len(self.advantages)} advantages"
            )
        if self.returns and len(self.returns) != n_sampled:
            raise ValueError(f"{n_sampled} sampled tokens, {len(self.returns)} returns")


Record = TypeVar("Record", Task, Observation, Completion, Step, Trajectory, Group, Sample)
RECORDS = (Task, Observation, Completion, Step, Trajectory, Group, Sample)
_FORM = pydantic.ConfigDict(
    extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
)
_ADAPTERS: dict[type, Any] = {kind: pydantic.TypeAdapter(pydantic.with_config(_FORM)(kind)) for kind in RECORDS}


def to_json(record: Any) -> bytes:
    """The one on-disk form of a record."""
    data: bytes = _ADAPTERS[type(record)].dump_json(record)
    return data


def from_json(kind: type[Record], data: bytes | str) -> Record:
    """The record that `to_json` wrote. ValueError where the data is not of that kind."""
    record: Record = _ADAPTERS[kind].validate_json(data)
    return record
