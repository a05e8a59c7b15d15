"""Every preset loads and dry-runs without a model, its numbers are those that it claims, and misfits are one line."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from arpo import cli
from arpo.agent.dialects.base import flatten, make_dialect
from arpo.config import Config, load_config, presets
from arpo.envs.base import catalog
from arpo.model.checkpoint import BASE, load_checkpoint, own_prompt
from arpo.model.layout import lay_out
from arpo.resize import QWEN2_5
from arpo.tasks.load import load_tasks
from arpo.training import memory, plan
from arpo.types import Observation

OSWORLD = Path(__file__).parents[2] / "shared" / "osworld"
POCKET = ("pocket", "pocket-compare", "pocket-fixed", "pocket-fixed16", "pocket-fresh", "pocket-subset32")
FILES = {
    "osworld-full": 128,
    "osworld-subset32": 32,
    "osworld-1gpu": 32,
    "osworld-1gpu-lora": 32,
}  # tasks in the list that each names


def make_osworld(folder: Path, count: int) -> str:
    """A task list and its files as an OSWorld checkout has them, made by hand; every fifth task is infeasible."""
    names = [f"task-{i:03d}" for i in range(count)]
    (folder / "examples" / "os").mkdir(parents=True)
    for i, name in enumerate(names):
        task: dict[str, Any] = {"id": name, "snapshot": "os", "instruction": f"Open file {i}.", "config": []}
        result = {"type": "vm_command_line", "command": ["cat", f"file {i}"]}
        task["evaluator"] = {"func": "exact_match", "result": result} if i % 5 else {"func": "infeasible"}
        (folder / "examples" / "os" / f"{name}.json").write_text(json.dumps(task))
    (folder / "list.json").write_text(json.dumps({"os": names}))
    return str(folder / "list.json")


class DryRun:
    """`arpo train … --dry-run` by the real entry point in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["arpo", "train", *arguments, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    def of(self, preset: str) -> tuple[Config, list[str]]:
        """The settings as they were printed, and what would be done."""
        source = [f"tasks.source={make_osworld(self.folder / 'osworld', FILES[preset])}"] if preset in FILES else []
        status, out, err = self(preset, *source)
        assert (status, err) == (0, "")
        printed = self.folder / "printed.yaml"
        printed.write_text(out)
        assert load_config(str(printed), []) == load_config(preset, source)
        return load_config(preset, source), [line for line in out.splitlines() if line.startswith("# ")]


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> DryRun:
    monkeypatch.chdir(tmp_path)
    return DryRun(tmp_path, monkeypatch, capsys)


def test_the_presets_have_their_names() -> None:
    assert presets() == tuple(sorted([*POCKET, "desktop", *FILES]))


@pytest.mark.parametrize("preset", presets())
def test_every_preset_dry_runs_and_says_what_would_be_done(preset: str, dry_run: DryRun) -> None:
    config, lines = dry_run.of(preset)
    train = config.train
    n = len(load_tasks(config.env.name, config.tasks.source))
    episodes = train.updates * train.rollout_tasks * config.algorithm.group
    steps = train.updates * train.rollout_tasks // train.optimizer_tasks
    assert train.rollout_tasks % train.optimizer_tasks == 0  # every optimiser step is a whole one
    assert lines[0] == "# What would be done:"
    assert f"{train.model} learns by arpo on the {n} tasks of {config.tasks.source}; infeasible: " in lines[1]
    assert f"in {train.updates} updates: {episodes:,} episodes, " in lines[3]
    assert lines[3].endswith(f"; optimiser steps: {steps:,}")
    assert f"{n * config.eval.trials} episodes of train" in lines[4]
    assert not (dry_run.folder / "runs").exists()
    told = next(i for i, line in enumerate(lines) if line.startswith("# memory of "))
    assert lines[-1].startswith("#   fits: ") and "AdamW's moments in " in lines[-1]
    parts = [line[4:].rsplit(maxsplit=2) for line in lines[told + 1 : -1]]
    for column in (1, 2):  # what is in each, and their sum
        *rows, total = (float(part[column]) for part in parts)
        assert sum(rows) == pytest.approx(total, abs=0.05)
    known = "the name, as of a qwen2.5-vl-7b" if preset in FILES else "its config.json"
    assert f"(by {known})" in lines[told]


def test_the_plan_of_the_papers_training_names_its_machines_and_hours(dry_run: DryRun) -> None:
    _, lines = dry_run.of("osworld-full")
    assert "# sampling and learning: in turn" in lines
    assert "# GPUs: 1 for the learner and the engine" in lines
    assert "# environments: 256 of osworld, in worker processes of this machine" in lines
    simulated = "as simulated with 256 environments and 32 GPUs"
    assert f"# hours for its episodes: 20 in lock-step, {simulated}; 1.9 with train.lag=3" in lines  # 15,360 episodes


@pytest.mark.parametrize(
    ("settings", "gpus", "hours"),
    [
        (
            "train.lag=3 train.ranks=4 engine.name=vllm engine.replicas=3",
            "4 for the learner, 3 for vLLM's servers",
            1.9,
        ),
        ("train.ranks=8 train.lag=1", "8 for the learner, the engine is on the first of them", 2.8),
        ("engine.name=vllm engine.servers=[http://a:1,http://b:1]", "1 for the learner, 2 for vLLM's servers", 20),
        ("env.workers=100 train.lag=2", "1 for the learner and the engine", 5.3),  # 100/128 as fast as 128
        ("env.workers=1024 train.lag=9", "1 for the learner and the engine", 0.57),
    ],
)
def test_the_plan_says_which_gpus_are_for_what(settings: str, gpus: str, hours: float, dry_run: DryRun) -> None:
    source = f"tasks.source={make_osworld(dry_run.folder / 'osworld', 128)}"
    out = dry_run("osworld-full", source, *settings.split())[1]
    assert f"\n# GPUs: {gpus}\n" in out and f"\n# hours for its episodes: {hours} " in out
    assert ("\n# memory of a vLLM server: 15 GiB of weights, 2.6 GiB of keys" in out) == ("vllm" in settings)
    assert ("the engine's weights" in out) == ("vllm" not in settings)


def test_the_hours_of_a_plan_are_those_of_the_simulation() -> None:
    runs = json.loads((Path(__file__).parents[1] / "docs" / "results" / "rollouts.json").read_text())
    usual = runs[0]
    simulated = {
        int(n): (round(rate["lockstep"]), round(rate["decoupled"]), usual["gpus"][n])
        for n, rate in usual["trajectories_per_hour"].items()
    }
    assert simulated == plan.SIMULATED and usual["lag_bound"] == 3
    short = [run for run in runs if run["lag_bound"] < 3 and not run["stragglers"]]
    rates = {run["lag_bound"]: run["trajectories_per_hour"]["256"]["decoupled"] for run in short}
    assert {lag: round(rate / simulated[256][1], 2) for lag, rate in rates.items()} == plan.SHORT_LAG


@pytest.mark.skipif(not OSWORLD.is_dir(), reason="OSWorld's own files are not beside this checkout")
@pytest.mark.parametrize(("preset", "infeasible"), [("osworld-full", 25), ("osworld-subset32", 0)])
def test_the_lists_that_presets_name_are_there_in_osworld(preset: str, infeasible: int, dry_run: DryRun) -> None:
    folder, name = load_config(preset, []).tasks.source.rsplit("/", 1)
    assert folder == "OSWorld/evaluation_examples"
    status, out, _ = dry_run(preset, f"tasks.source={OSWORLD / name}")
    assert status == 0
    assert f" on the {FILES[preset]} tasks of {OSWORLD / name}; infeasible: {infeasible}\n" in out


@pytest.mark.parametrize("preset", [name for name in presets() if load_config(name, []).train.model == BASE])
def test_an_episode_of_the_longest_replies_fits_into_the_context_of_base(preset: str) -> None:
    config, checkpoint = load_config(preset, []), load_checkpoint(BASE)
    assert config.agent.prompt_file is None and own_prompt(BASE) is not None
    agent = config.agent.model_copy(update={"prompt_file": own_prompt(BASE)})
    dialect = make_dialect(agent, checkpoint.vocabulary)
    most = min(checkpoint.config.text_config.max_position_embeddings, agent.context or 10**9)
    tasks = [task for split in catalog(config.env.name).SPLITS for task in load_tasks(config.env.name, split)]
    longest = max((task.instruction for task in tasks), key=lambda text: len(checkpoint.vocabulary.encode(text)))
    grid = QWEN2_5.grid(*config.env.size)
    for max_tokens in (config.train.max_tokens, config.eval.max_tokens):
        conversation, replies = dialect.start(longest), list[list[int]]()
        for turn in range(max(task.max_steps for task in tasks)):
            context = conversation.observe(Observation(b"", *config.env.size, hash=str(turn)))
            flat = flatten(conversation.segments, replies, context, dialect.image_pad)
            prompt = lay_out(flat.ids, [grid] * len(flat.images), dialect.image_pad).ids
            assert len(prompt) + max_tokens <= most, f"turn {turn + 1}, replies of {max_tokens} tokens"
            replies.append([0] * (max_tokens - 1) + [dialect.stop])
            conversation.reply(replies[-1])


def test_fixed_and_fresh_starts_are_compared_on_the_same_tasks_and_budget(dry_run: DryRun) -> None:
    fixed, fresh, usual = (load_config(name, []) for name in ("pocket-fixed", "pocket-fresh", "pocket-compare"))
    assert fixed.with_values({"env.starts": "fresh"}) == fresh
    judged = {"eval.trials": 4, "eval.held_out": 32}
    assert fresh == usual.with_values({"tasks.source": "seldom", "train.env_steps": 15_000} | judged)
    half = {"tasks.source": "seldom16", "train.env_steps": 3_750, "eval.held_out": 16}
    half |= {"train.rollout_tasks": 4, "train.optimizer_tasks": 4}
    speed = {"train.n_envs": 32, "eval.n_envs": 32, "train.save_every": 10}
    assert load_config("pocket-fixed16", []) == fixed.with_values(half | speed)
    told = {name: dry_run(name)[1] for name in ("pocket-fixed", "pocket-fresh")}
    assert "128 episodes of train, 128 episodes of fresh, 128 episodes of heldout, " in told["pocket-fixed"]
    assert "# a task always begins with the same screen; train: judged there, fresh: the " in told["pocket-fixed"]
    assert "128 episodes of train, 128 episodes of heldout, " in told["pocket-fresh"]
    assert "always begins" not in told["pocket-fresh"]
    assert "# a task always begins with one of 4 screens; " in dry_run("pocket-fixed", "env.n_starts=4")[1]


def test_training_without_a_preset_is_the_preset_pocket(dry_run: DryRun) -> None:
    assert dry_run() == dry_run("pocket")
    assert "  source: demo  # " in dry_run("seed=3")[1]


@pytest.mark.skipif(memory._driver(), reason="what a GPU has is asked of torch")
def test_a_dry_run_loads_no_model() -> None:
    script = (
        "import sys; sys.argv = ['arpo', 'train', '--dry-run']\n"
        "from arpo import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "What would be done" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ["tasks.source=shell-open-000"],
            "train.rollout_tasks=8: must be at most 1, the number of tasks in tasks.source=shell-open-000",
        ),
        (["train.rollout_tasks=4"], "train.optimizer_tasks=8: must be at most train.rollout_tasks, which is 4"),
        (["train.model=expert"], "train.model=expert: a script cannot be trained"),
        (["desktop", "env.size=10x10"], "env.size=10x10: a desktop's sides are from 200 to 8192"),
        (["env.size=10x10"], "size 10x10: pocket draws screens from 336x224 to 1920x1080"),
        (["tasks.source=dmeo"], "unknown split or task 'dmeo': did you mean demo?"),
        (
            ["env.name=osworld"],
            "unknown task 'demo': this environment's tasks are files; tasks.source must name a list of them, a .json "
            "file",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_one_line(settings: list[str], line: str, dry_run: DryRun) -> None:
    status, _, err = dry_run(*settings)
    assert (status, err) == (2, f"error: {line}\n")


def test_a_missing_osworld_checkout_is_one_line_after_the_settings(dry_run: DryRun) -> None:
    status, out, err = dry_run("osworld-full")
    assert status == 2 and "  lr: 1.0e-06  # " in out
    assert err.count("\n") == 1
    assert "git clone --recurse-submodules https://github.com/dvlab-research/ARPO" in err and "tasks.source=" in err


def test_more_and_fewer_episodes_than_planned_are_said(dry_run: DryRun) -> None:
    lines = dry_run("algorithm.name=dapo", "train.env_steps=5000")[1].splitlines()
    begin = lines.index("# What would be done:") + 5
    assert lines[begin : begin + 2] == [
        "# fewer updates, where 5,000 environment steps are reached before",
        "# more episodes, where groups with equal rewards are drawn again, up to 3 times",
    ]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("algorithm.name=arpo:group_least=9", "algorithm.group_least=9: must be at most algorithm.group, 8"),
        ("algorithm.name=arpo:group_most=4", "algorithm.group_most=4: must be at least algorithm.group, 8"),
        ("algorithm.name=arpo:group_most=16 train.lag=1", "train.lag=1: groups of changing size need 0"),
        ("algorithm.replay_count=9", "algorithm.replay_count=9: must be at most algorithm.replay_size, which is 8"),
        ("algorithm.name=dpo algorithm.kl=0.1", "algorithm.kl=0.1: has no effect on dpo; leave it at algorithm.kl=0.0"),
        ("algorithm.name=rft algorithm.kl=0.1", "algorithm.kl=0.1: has no effect on rft; leave it at algorithm.kl=0.0"),
        ("algorithm.name=kto algorithm.surprising=0.5", "algorithm.surprising=0.5: has no effect on kto"),
        ("algorithm.name=rft algorithm.partial=0.5", "algorithm.partial=0.5: has no effect on rft"),
        ("algorithm.name=ppo:replay=true", "algorithm.replay=true: has no effect on ppo"),
        ("algorithm.name=ppo train.ranks=2", "ppo has a value head, which one process learns; set it to 1"),
        ("algorithm.name=dpo algorithm.replay_count=2", "leave it at algorithm.replay_count=1"),
        ("algorithm.name=arpo+ algorithm.group=2", "algorithm.group_least=4: must be at most algorithm.group, 2"),
    ],
)
def test_settings_that_a_method_cannot_have_are_one_line(settings: str, why: str, dry_run: DryRun) -> None:
    status, _, err = dry_run(*settings.split())
    assert status == 2 and why in err and err.count("\n") == 1


def test_settings_of_a_method_with_effect_are_taken(dry_run: DryRun) -> None:
    for settings in ("ppo algorithm.kl=0.1", "ppo:redraw=2", "grpo:replay=true algorithm.replay_count=2", "dpo", "kto"):
        status, _, err = dry_run(*f"algorithm.name={settings}".split())
        assert status == 0, err
    sizes = dry_run("algorithm.name=arpo:group_least=2:group_most=16")[1]
    assert "# fewer episodes, where the first 2 of a task all solve it" in sizes
    assert "# more episodes, where all of a task fail, up to 16" in sizes


def flat(config: Config) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    sections = {name: section for name, section in values.items() if isinstance(section, dict)}
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


PAPER = {
    "env.size": "1920x1080",
    "env.workers": 256,
    "agent.screenshots": None,
    "agent.context": 64000,
    "algorithm.name": "arpo",
    "algorithm.group": 8,
    "algorithm.format_reward": -1.0,
    "algorithm.clip_low": 0.2,
    "algorithm.clip_high": 0.3,
    "algorithm.normaliser": "trajectory",
    "algorithm.replay": True,
    "algorithm.replay_size": 8,
    "train.model": "ByteDance-Seed/UI-TARS-1.5-7B",
    "train.updates": 15 * 128 // 32,
    "train.rollout_tasks": 32,
    "train.optimizer_tasks": 8,
    "train.temperature": 1.0,
    "train.lr": 1e-6,
    "train.warmup": 0,
    "train.grad_clip": 1.0,
    "train.lora_rank": 0,
    "eval.temperature": 0.6,
}


def test_osworld_full_has_the_papers_numbers() -> None:
    settings = flat(load_config("osworld-full", []))
    assert {key: settings[key] for key in PAPER} == PAPER


def test_osworld_subset32_differs_only_in_the_tasks_and_in_how_many_environments_there_are() -> None:
    full, subset = (flat(load_config(name, [])) for name in ("osworld-full", "osworld-subset32"))
    assert {key: subset[key] for key in full if subset[key] != full[key]} == {
        "env.workers": 16,
        "tasks.source": "OSWorld/evaluation_examples/test_subset32.json",
        "train.updates": 15,
        "train.n_envs": 16,
        "eval.n_envs": 16,
    }


SUBSET = {"train.checkpointing": None, "train.freeze_vision": True, "train.micro_tokens": 32768, "train.save_every": 5}


@pytest.mark.parametrize(
    ("preset", "own"),
    [
        ("osworld-1gpu", SUBSET | {"train.keep": 1}),
        ("osworld-1gpu-lora", SUBSET | {"train.lora_rank": 16, "train.lr": 1e-5}),
    ],
)
def test_the_presets_for_one_gpu_differ_from_subset32_in_what_they_say(preset: str, own: dict[str, Any]) -> None:
    subset, mine = (flat(load_config(name, [])) for name in ("osworld-subset32", preset))
    assert {key: mine[key] for key in mine if mine[key] != subset[key]} == own
    text = (resources.files("arpo") / "configs" / f"{preset}.yaml").read_text()
    assert all(key in text.partition("env:")[0] for key in own)


def test_pocket_visits_at_most_sixteen_tasks_at_least_four_times() -> None:
    config = load_config("pocket", [])
    n = len(load_tasks("pocket", config.tasks.source))
    assert n <= 16 and config.train.updates * config.train.rollout_tasks / n >= 4
    assert config.eval.temperature == 0.6


def test_pocket_subset32_has_the_settings_for_a_machine_without_a_gpu() -> None:
    config = load_config("pocket-subset32", [])
    assert len(load_tasks("pocket", config.tasks.source)) == 32
    assert 4 <= config.train.n_envs <= 8
    assert (config.algorithm.group, config.train.rollout_tasks, config.train.optimizer_tasks) == (2, 8, 2)


def test_pocket_compare_has_a_budget() -> None:
    config = load_config("pocket-compare", [])
    assert config.train.env_steps
    assert 32 <= len(load_tasks("pocket", config.tasks.source)) <= 64
