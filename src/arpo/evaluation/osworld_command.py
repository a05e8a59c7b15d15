"""What `arpo osworld-eval` does: the words of the release's evaluation script as settings of arpo.

    --max_steps, --max_trajectory_length    the release puts FAIL into the agent's mouth once it has spoken
                                            max_trajectory_length times; where max_steps is less it never comes to that
    --trial-id                              the seed, and the folder's name in OSWorld's layout
    --server_ip                             engine.name=openai at that address

Settings after the words change anything else, and win: `env.osworld_disk=…`, `eval.protocol=hard`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.config import Config, load_config, split_settings, to_yaml
from arpo.engines.scripted import LOOK_BEHIND
from arpo.errors import ConfigError, printable
from arpo.evaluation.command import judge
from arpo.evaluation.osworld_results import SEEN, SPACE, Results, as_name
from arpo.yaml_text import one_line

PRESET = "osworld-full"  # the paper's machine, prompt and lengths


@dataclass(frozen=True, slots=True)
class OsworldWords:
    """What the release's command line says."""

    headless: bool
    observation_type: str
    action_space: str
    max_steps: int
    max_trajectory_length: int | None
    temperature: float
    model: str
    num_envs: int
    result_dir: Path
    test_all_meta_path: str
    trial_id: int
    server_ip: str | None

    def refuse(self) -> None:
        """ConfigError for what arpo's agents do not do."""
        if not self.model:
            raise ConfigError("--model: name the model, as in --model ui-tars-1.5")
        for word, value, only in (
            ("observation_type", self.observation_type, SEEN),
            ("action_space", self.action_space, SPACE),
        ):
            if value != only:
                raise ConfigError(f"--{word} {value}: arpo's agents know only {only}")

    def settings(self) -> list[str]:
        """The same as `key=value`."""
        limit = self.max_steps if self.max_trajectory_length is None else self.max_trajectory_length
        values: dict[str, object] = {
            "tasks.source": self.test_all_meta_path,
            "tasks.max_steps": min(limit, self.max_steps),
            "eval.protocol": "standard" if limit <= self.max_steps else "plain",
            "eval.temperature": self.temperature,
            "eval.trials": 1,
            "eval.n_envs": self.num_envs,
            "env.workers": 0 if self.model in LOOK_BEHIND else self.num_envs,
            "seed": self.trial_id,
        }
        if self.server_ip is not None:
            values |= {"engine.name": "openai", "engine.servers": [address(self.server_ip)]}
        return [f"{key}={one_line(value)}" for key, value in values.items()]

    @property
    def results(self) -> Results:
        return Results(self.result_dir, self.model, trial=str(self.trial_id))

    @property
    def run_dir(self) -> Path:
        """Beside OSWorld's layout, where the same command finds it again."""
        return self.result_dir / "arpo-runs" / as_name(self.model) / str(self.trial_id)


def run_osworld(words: OsworldWords, settings: Sequence[str], as_json: bool, dry_run: bool) -> bool:
    """Evaluate, or only say with which settings. Whether any trial could be scored."""
    words.refuse()
    source, overrides = split_settings(list(settings))
    config = load_config(source or PRESET, [*words.settings(), *overrides])
    if config.eval.trials != 1:  # they would all be written into the same folders
        raise ConfigError(f"eval.trials={config.eval.trials}: --trial-id names a single one; run each with its own")
    if words.headless:
        print("--headless: changes nothing, since arpo's machines have no window", file=sys.stderr)
    if dry_run:
        print(to_yaml(config), end="")
        print(_plan(words, config))
        return True
    return judge(config, words.model, words.run_dir, None, words.results, as_json)


def address(server: str) -> str:
    """Of an OpenAI-compatible server: with http:// where no scheme is named, up to /v1."""
    server = server if "://" in server else f"http://{server}"
    scheme, _, rest = server.rstrip("/").partition("://")
    return f"{scheme}://{rest}" if "/" in rest else f"{scheme}://{rest}/v1"


def _plan(words: OsworldWords, config: Config) -> str:
    name = printable(f"{words.model} at {config.engine.servers[0]}" if config.engine.servers else words.model)
    return "\n".join(
        [
            f"# {name} would try each task of {config.tasks.source} {config.eval.trials} times;",
            f"# episodes in {words.run_dir}, in OSWorld's layout in {words.results.of_model / str(words.trial_id)}",
        ]
    )
