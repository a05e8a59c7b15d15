"""Settings load from presets, files and overrides, print as a file again, and are refused in one line that helps."""

from pathlib import Path

import pydantic
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.base import METHODS
from arpo.config import (
    Config,
    TasksConfig,
    known_keys,
    load_config,
    parse_size,
    presets,
    split_settings,
    to_yaml,
)
from arpo.errors import ConfigError


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", presets())
def test_every_packaged_preset_loads(name: str) -> None:
    assert isinstance(load_config(name, []), Config)


def test_without_a_preset_all_is_default() -> None:
    assert load_config(None, []) == Config()


def test_overrides_go_on_top_of_a_file_and_the_last_one_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "env: {size: [640, 400]}\nseed: 1\n")
    config = load_config(path, ["seed=2", "agent.screenshots=5", "seed=3"])
    assert (config.env.size, config.seed, config.agent.screenshots) == ((640, 400), 3, 5)
    assert config.env.name == "pocket"


def test_a_part_of_a_task_never_counts_as_the_whole() -> None:
    assert load_config(None, ["algorithm.partial=0.5"]).algorithm.partial == 0.5
    with pytest.raises(ConfigError) as refused:
        load_config(None, ["algorithm.partial=0.5", "algorithm.solved=0.5"])
    assert "algorithm.solved" in str(refused.value) and "more than algorithm.partial" in str(refused.value)


@pytest.mark.parametrize("size", ["448x280", "[448, 280]", "[448,280]"])
def test_a_size_is_written_with_an_x_or_as_a_list(size: str) -> None:
    assert load_config(None, [f"env.size={size}"]).env.size == (448, 280)


def test_an_empty_value_is_null() -> None:
    assert load_config(None, ["agent.prompt_file=x", "agent.prompt_file="]).agent.prompt_file is None


def test_no_more_screenshots_are_dropped_at_a_time_than_are_shown() -> None:
    for block in (1, 3):
        assert load_config(None, ["agent.screenshots=3", f"agent.block={block}"]).agent.block == block
    with pytest.raises(ConfigError) as refused:
        load_config(None, ["agent.block=4", "agent.screenshots=3"])
    assert str(refused.value) == "agent.block=4: must be at most agent.screenshots, which is 3"
    for screenshots in ("1", "null"):  # the default goes with any
        load_config(None, [f"agent.screenshots={screenshots}"])


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "# nothing\n"), []) == Config()


def test_a_config_is_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        Config().seed = 3


REFUSED = {
    "env.sise=448x280": "env.sise=448x280: unknown key; did you mean env.size?",
    "sede=3": "sede=3: unknown key; did you mean seed?",
    "seed.x=1": "seed.x=1: unknown key; did you mean seed?",
    "env.name.x=1": "env.name.x=1: unknown key; did you mean env.name?",
    "zzz=1": f"zzz=1: unknown key; the keys are {', '.join(known_keys())}",
    "a.b.c=1": f"a.b.c=1: unknown key; the keys are {', '.join(known_keys())}",
    "seed=soon": "seed=soon: must be a whole number",
    "seed=true": "seed=true: must be a whole number",
    "seed='3'": "seed='3': must be a whole number",
    "seed=1.0": "seed=1.0: must be a whole number",
    "seed=-1": "seed=-1: must be at least 0",
    "agent.block=0": "agent.block=0: must be at least 1",
    "agent.dialect=qwen": "agent.dialect=qwen: must be one of uitars, qwen3vl",
    "agent.device=gpu": "agent.device=gpu: must be auto, cpu, cuda, cuda:N or mps",
    "agent.device=cuda:one": "agent.device=cuda:one: must be auto, cpu, cuda, cuda:N or mps",
    "agent.dtype=half": "agent.dtype=half: must be 'auto', 'float32' or 'bfloat16'",
    "agent.prompt_file=3": "agent.prompt_file=3: must be the path of a file",
    "tasks.source=3": "tasks.source=3: must be text",
    "env.name=desk": "env.name=desk: must be one of pocket, desktop, osworld",
    "env.size=big": "env.size=big: must be WIDTHxHEIGHT in pixels, as in 448x280",
    "env.size=0x280": "env.size=0x280: must be WIDTHxHEIGHT in pixels, as in 448x280",  # YAML reads a number here
    "env.size=448": "env.size=448: must be WIDTHxHEIGHT in pixels, as in 448x280",
    "env.starts=same": "env.starts=same: must be 'fresh' or 'fixed'",
    "env.n_starts=0": "env.n_starts=0: must be at least 1",
    "env.n_starts=3": "env.n_starts=3: needs env.starts=fixed; fresh starts are without number",
    "env.size=[1, 2, 3]": "env.size=[1, 2, 3]: must be WIDTHxHEIGHT in pixels, as in 448x280",
    "env.size=[true, 4]": "env.size=[true, 4]: must be WIDTHxHEIGHT in pixels, as in 448x280",
    "tasks.source=''": "tasks.source='': must not be empty",
    "eval.price=[1]": "eval.price=[1]: must have at least 2 items, not 1",
    "eval.price=[1,2,3]": "eval.price=[1,2,3]: must have at most 2 items, not 3",
    "eval.price=[1,-2]": "eval.price.1=-2: must be at least 0",
    "tasks=train": "tasks=train: is a section; its keys are tasks.source, tasks.max_steps",
    "env={nom: x}": "env.nom=x: unknown key; did you mean env.name?",
    "agent={block: x, screenshots: y}": "agent.screenshots=y: must be a whole number (and 1 more)",
    "pocket": "pocket: a setting is written key=value, as in seed=3",
    "=3": "=3: a setting is written key=value, as in seed=3",
    "\udcff=3": "'\\udcff=3': a setting is written key=value, as in seed=3",
    'tasks.source="\\udcff"': 'tasks.source="\\udcff": must be text in UTF-8',
    "env.size=[1": "env.size=[1: line 1, column 3: expected ',' or ']', but got '<stream end>'",
    "seed={a: 1, a: 2}": "seed={a: 1, a: 2}: line 1, column 8: the key 'a' is given twice",
    "seed=2024-99-99": "seed=2024-99-99: not YAML: month must be in 1..12",
    "seed=" + "[" * 5000: "seed=" + "[" * 55 + "…: nested too deeply",
}


@pytest.mark.parametrize(("override", "line"), REFUSED.items(), ids=lambda text: text[:30])
def test_a_wrong_setting_is_refused_in_one_line_that_names_key_value_and_what_is_allowed(
    override: str, line: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [override])
    assert str(refused.value) == line


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_override_loads_or_is_refused_in_one_printable_line(key: str, value: str) -> None:
    for override in (f"{key}={value}", f"seed={value}", f"agent.{key}={value}", key):
        try:
            load_config(None, [override])
        except ConfigError as refused:
            assert str(refused).isprintable(), repr(str(refused))


BROKEN_FILES = {
    "- a\n- b\n": "must hold settings as `key: value` lines, not [a, b]",
    "just text": "must hold settings as `key: value` lines, not just text",
    "seed: 1\nseed: 2\n": "line 2, column 1: the key 'seed' is given twice",
    "env:\n  name: pocket\n  name: pocket\n": "line 3, column 3: the key 'name' is given twice",
    "seed: [1\n": "line 2, column 1: expected ',' or ']', but got '<stream end>'",
    "? [a]\n: b\n": "line 1, column 3: found unhashable key",
    "seed: !!python/name:os.system\n": "line 1, column 7: could not determine a constructor for the tag "
    "'tag:yaml.org,2002:python/name:os.system'",
    "tasks: 3\n": "tasks=3: is a section; its keys are tasks.source, tasks.max_steps",
    "env: {sise: 4}\n": "env.sise=4: unknown key; did you mean env.size?",
    "1: 2\n": f"1=1: unknown key; the keys are {', '.join(known_keys())}",
    "env: &loop {size: *loop}\n": "line 1, column 19: an alias; write it out",
    "seed: \x07": 'not YAML: unacceptable character #x0007: special characters are not allowed in "<unicode string>", '
    "position 6",
}


@pytest.mark.parametrize(("text", "line"), BROKEN_FILES.items())
def test_a_broken_file_is_refused_with_its_name_and_the_place(text: str, line: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_config(path, ["seed=1"])
    assert str(refused.value) == f"{path}: {line}"


def test_what_is_no_preset_and_no_readable_file_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for source, reason in {
        "pocet": "pocet: neither a preset nor a file; did you mean pocket?",
        "miniwob": f"miniwob: neither a preset nor a file; the presets are {', '.join(presets())}",
        str(tmp_path): "Is a directory",
        str(binary): "not a text file in UTF-8",
        "a\0b": "cannot be read",
    }.items():
        with pytest.raises(ConfigError) as refused:
            load_config(source, [])
        assert reason in str(refused.value)
        assert str(refused.value).isprintable()


def test_the_resolved_config_loads_again_to_the_same(tmp_path: Path) -> None:
    config = load_config(None, ["env.size=640x400", "agent.screenshots=3", "agent.prompt_file=a/b.txt", "seed=9"])
    assert load_config(write(tmp_path, to_yaml(config)), []) == config


@given(st.text(min_size=1, max_size=20))
def test_any_text_in_a_setting_survives_being_printed(text: str) -> None:
    config = Config(tasks=TasksConfig(source=text))
    assert Config.model_validate(yaml.safe_load(to_yaml(config))) == config


def test_every_setting_is_documented_where_it_is_printed() -> None:
    lines = to_yaml(Config()).splitlines()
    assert len([line for line in lines if not line.split("#")[0].strip().endswith(":")]) == len(known_keys())
    assert all("  # " in line and not line.endswith("None") for line in lines)


def test_a_new_method_on_top_of_resolved_settings_is_that_method(tmp_path: Path) -> None:
    path = write(tmp_path, to_yaml(load_config(None, ["algorithm.name=arpo+", "algorithm.group=4"])))
    for name in METHODS:
        found = load_config(path, [f"algorithm.name={name}"]).algorithm
        assert found == load_config(None, [f"algorithm.name={name}", "algorithm.group=4"]).algorithm


def test_a_method_with_another_field_has_another_name(tmp_path: Path) -> None:
    changed = load_config(None, ["algorithm.name=arpo+:redraw=2:group_most=16"])
    assert (changed.algorithm.group_most, changed.algorithm.redraw, changed.algorithm.replay) == (16, 2, True)
    assert changed.algorithm.name == "arpo+:group_most=16:redraw=2"
    assert load_config(write(tmp_path, to_yaml(changed)), []) == changed
    assert Config.model_validate({"algorithm": {"name": "grpo", "replay": True}}).algorithm.name == "grpo:replay=true"
    assert load_config(None, ["algorithm.name=arpo+:group_most=24"]).algorithm.name == "arpo+"


@pytest.mark.parametrize(
    ("file", "settings", "line"),
    [
        (
            "",
            ["algorithm.replay=false"],
            "algorithm.replay=false: makes arpo another method; name it arpo:replay=false",
        ),
        (
            "algorithm: {name: grpo, replay: true, redraw: 2}",
            [],
            "FILE: algorithm.redraw=2: makes grpo another method; name it grpo:redraw=2:replay=true",
        ),
        (
            "algorithm: {name: 'grpo:replay=true'}",
            ["algorithm.replay=false"],
            "algorithm.replay=false: makes grpo:replay=true another method; name it grpo",
        ),
        (
            "",
            ["algorithm.name=arpo:group=2"],
            "algorithm.name=arpo:group=2: a name holds what it changes of group_least, group_most, redraw, replay, "
            "as in arpo:redraw=2",
        ),
        ("", ["algorithm.name=arpo:redraw=-1"], "algorithm.redraw=-1: must be at least 0"),
    ],
)
def test_a_name_that_says_another_method_than_its_fields_is_refused(
    file: str, settings: list[str], line: str, tmp_path: Path
) -> None:
    path = write(tmp_path, file)
    with pytest.raises(ConfigError) as refused:
        load_config(path, settings)
    assert str(refused.value) == line.replace("FILE", path)


def test_a_stored_name_that_says_too_little_is_completed(tmp_path: Path) -> None:
    path = write(tmp_path, "algorithm: {name: arpo+, group_most: null}")
    named = load_config(None, ["algorithm.name=arpo+:group_most=null"])
    assert load_config(path, [], stored=True) == named


def test_a_run_of_an_earlier_arpo_is_read_where_settings_that_are_gone_were_off(tmp_path: Path) -> None:
    off = "replay_tau: null, replay_truncate: null, replay_reject: null, replay_spares: false"
    path = write(tmp_path, f"algorithm: {{name: arpo, replay: true, {off}}}")
    assert load_config(path, [], stored=True) == load_config(None, ["algorithm.name=arpo"])
    with pytest.raises(ConfigError, match=r"algorithm.replay_tau=null: unknown key"):
        load_config(path, [])  # a user's file is told
    named = "arpo:replay_tau=null:redraw=2:replay_spares=false"
    path = write(tmp_path, f"algorithm: {{name: {named}, replay: true, redraw: 2, {off}}}")
    assert load_config(path, [], stored=True) == load_config(None, ["algorithm.name=arpo:redraw=2"])
    path = write(tmp_path, "algorithm: {name: arpo+, replay: true, replay_tau: 8.0}")
    with pytest.raises(ConfigError, match=r"algorithm.replay_tau=8.0: arpo has this setting no more"):
        load_config(path, [], stored=True)


def test_the_first_argument_without_an_equals_sign_is_the_source() -> None:
    assert split_settings(["pocket", "seed=1"]) == ("pocket", ["seed=1"])
    assert split_settings(["seed=1", "pocket"]) == (None, ["seed=1", "pocket"])
    assert split_settings([]) == (None, [])


def test_a_size_on_the_command_line_is_refused_like_a_setting() -> None:
    assert parse_size("640x400") == (640, 400)
    with pytest.raises(ConfigError, match=r"^size=huge: must be WIDTHxHEIGHT"):
        parse_size("huge")


@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_a_number_is_finite(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^train.lr={value}: must be a finite number$"):
        load_config(None, [f"train.lr={value}"])
