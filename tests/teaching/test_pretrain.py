"""Pretraining: what lessons hold, that they are learned from, and that a run leaves a checkpoint that loads."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch

from arpo.agent.actions import Action, Click, Type
from arpo.agent.grammar import parse
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import PocketExpert
from arpo.errors import ConfigError
from arpo.model.checkpoint import load_checkpoint
from arpo.teaching.lessons import IGNORE, Lesson, Teacher, collate
from arpo.teaching.pretrain import PROMPT, Pretraining, Pupil, _all_right, corpus, losses, patch_places, pretrain
from arpo.teaching.tiny import make_config, make_tokenizer, new_model

SIZE = (448, 280)
VISION = {"depth": 2, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
TEXT = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {"num_key_value_heads": 1}


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return make_tokenizer(corpus(40), 700)


@pytest.fixture(scope="module")
def teacher(tokenizer: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    prompt = tmp_path_factory.mktemp("prompt") / "prompt.txt"
    prompt.write_text(PROMPT)
    return Teacher(tokenizer, prompt, "tests", SIZE)


def learned(teacher: Teacher, lesson: Lesson) -> str:
    return teacher.vocabulary.decode(tuple(lesson.ids[lesson.learn].tolist()))


def test_an_episode_teaches_replies_that_parse_and_shows_as_many_screens(teacher: Teacher) -> None:
    for _ in range(20):
        lesson = teacher.episode()
        replies = learned(teacher, lesson).split("<|im_end|>")[:-1]
        assert 1 <= len(replies) <= len(lesson.screens)
        for reply in replies:
            assert parse(reply, teacher.scaling.to_screen).thought
        pads = int((lesson.ids == teacher.dialect.image_pad).sum())
        assert pads == 160 * len(lesson.screens)
        assert lesson.positions.shape == (3, len(lesson.ids))


def test_wrong_moves_are_seen_and_not_taught(teacher: Teacher) -> None:
    seen = taught = 0
    for _ in range(60):
        lesson = teacher.episode()
        seen += teacher.vocabulary.decode(tuple(lesson.ids.tolist())).count("Thought: Try this.")
        taught += learned(teacher, lesson).count("Thought: Try this.")
    assert seen > 0 and taught == 0


def test_the_expert_is_asked_only_for_the_moves_that_are_made(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notes down what it has done, so a move that a wrong one takes the place of must not be asked for."""
    asked = 0

    class Counted(PocketExpert):
        def act(self, env: PocketEnv) -> tuple[str, Action]:
            nonlocal asked
            asked += 1
            return super().act(env)

    monkeypatch.setattr("arpo.teaching.lessons.PocketExpert", Counted)
    taught = sum(learned(teacher, teacher.episode()).count("<|im_end|>") for _ in range(60))
    assert asked == taught


def test_a_reading_asks_for_places_of_words_and_for_words_at_places(teacher: Teacher) -> None:
    texts = [learned(teacher, teacher.reading()) for _ in range(10)]
    assert any("<|box_start|>(" in text for text in texts)
    assert any(word in text for text in texts for word in ("Menu", "File", "Mail"))


def test_each_word_stands_in_the_patch_of_its_middle(teacher: Teacher) -> None:
    teacher.episode()
    words, _ = teacher.grids()
    word, (x0, y0, x1, y1) = teacher.env.words()[-1]
    x, y = (x0 + x1) // 2, (y0 + y1) // 2
    assert tuple(words[:, y // 14, x // 14]) == teacher.tokens(word)
    assert (words[0] != IGNORE).sum() > 5


def test_clicks_go_to_the_middle_of_a_patch_and_still_hit_what_they_are_meant_for(teacher: Teacher) -> None:
    """Every expert succeeds with its clicks moved, and nearly all of its clicks could be moved."""
    clicks = middles = 0
    for tasks in task_list("train").values():
        for name in tasks[::2]:
            task = get_task(name)
            teacher.env.load(task, 3)
            expert = PocketExpert(task)
            for _ in range(task.max_steps):
                if teacher.env.ended:
                    break
                _, action = teacher.aim(*expert.act(teacher.env))
                if isinstance(action, Click):
                    clicks += 1
                    middles += action.x % 14 == 7 and action.y % 14 == 7
                teacher.env.perform(action)
            assert teacher.env.score() == 1.0, name
    assert middles > 0.9 * clicks > 100


def test_a_point_that_is_no_controls_centre_stays(teacher: Teacher) -> None:
    teacher.env.load(get_task("shell-open-000"), 0)
    centres = {control.centre for control in teacher.env.parse()}
    free = next((x, 100) for x in range(448) if (x, 100) not in centres)
    assert teacher.middle(*free) == free
    assert teacher.aim("", Type("a")) == ("", Type("a"))


def test_places_of_patches_are_the_digits_that_a_reply_would_have() -> None:
    places = patch_places(SIZE)
    assert places.shape == (160, 4, 6)
    assert places[0, 0].tolist() == [0, 0, 7, 0, 0, 7]
    assert places[0, 3].tolist() == [0, 2, 1, 0, 2, 1]  # one patch to the right and one down
    assert places[-1, -1].tolist() == [4, 4, 1, 2, 7, 3]


def test_no_held_out_instance_and_no_held_out_family_is_taught(teacher: Teacher) -> None:
    heldout = {task for split in ("heldout", "heldout_families") for ids in task_list(split).values() for task in ids}
    families = {task.rpartition("-")[0] for ids in task_list("heldout_families").values() for task in ids}
    drawn = [teacher.task().id for _ in range(400)]
    assert not heldout & set(drawn)
    assert not families & {task.rpartition("-")[0] for task in drawn}


def test_a_few_steps_on_one_batch_lower_every_loss(tokenizer: tokenizers.Tokenizer, teacher: Teacher) -> None:
    torch.manual_seed(0)
    pupil = Pupil(new_model(make_config(tokenizer, VISION, TEXT)), SIZE)
    batch = collate([teacher.reading() for _ in range(2)])
    optimizer = torch.optim.AdamW(pupil.parameters(), 3e-3)
    before = [loss.item() for loss in losses(pupil, batch)]
    for _ in range(12):
        optimizer.zero_grad()
        sum(losses(pupil, batch)).backward()  # type: ignore[union-attr]
        optimizer.step()
    after = [loss.item() for loss in losses(pupil, batch)]
    assert all(later < earlier for earlier, later in zip(before, after, strict=True))


def test_only_places_and_answers_that_are_right_in_every_token_count() -> None:
    right = torch.tensor([True, True, False, True, True])
    assert _all_right(right, torch.tensor([0, 0, 1, 1, 2])) == pytest.approx(2 / 3)


@pytest.mark.heavy
def test_a_run_leaves_a_checkpoint_that_loads_and_a_second_run_goes_on_from_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    settings = {"seconds": 0.5, "workers": 1, "screens": 15, "episodes": 2}
    pretrain(Pretraining(out=first, vision=VISION, text=TEXT, **settings))  # type: ignore[arg-type]
    pretrain(Pretraining(out=second, start=first, **settings))  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["steps"] >= 1
    for name in ("heldout_readings_words", "heldout_episodes_places", "heldout_families_episodes_answers", "success"):
        assert 0 <= lines[-1][name] <= 1
    assert (second / "heads.safetensors").exists()
    checkpoint = load_checkpoint(str(second))
    assert checkpoint.vocabulary.special("<|box_start|>") > 0
    assert (second / "prompt.txt").read_text() == PROMPT


class Stopped:
    """Pretrains in a process of its own, slowed down or hindered by `setup`, Python that runs first."""

    def __init__(self, out: Path, setup: str) -> None:
        few = f"vision={VISION}, text={TEXT}, workers=0, screens=15, episodes=2, report_s=0, success_s=0"
        script = (
            "import sys\nfrom pathlib import Path\nfrom arpo import cli\n"
            "from arpo.teaching import pretrain as p\n"
            f"{setup}\n"
            f"cli.app = lambda **_: p.pretrain(p.Pretraining(Path({str(out)!r}), 9999, {few}))\n"
            "try: cli.main()\n"
            "except KeyboardInterrupt: sys.exit(130)\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if word in line:
                return
        raise AssertionError(f"it ended without {word!r}: {self.ended()}")

    def ended(self) -> tuple[int, str]:
        _, err = self.process.communicate()
        return self.process.returncode, err


SAYS = """
save = p._save
def told(*arguments):
    print("saving", flush=True)
    save(*arguments)
    print("saved", flush=True)
p._save = told
"""


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_who_stops_it_finds_a_checkpoint_and_is_told_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "an agent"
    one = Stopped(
        out,
        "p._success = lambda *_: 0.0\n"
        + SAYS
        + "_teach = p._teach\np._teach = lambda *a: (print('go', flush=True), _teach(*a))",
    )
    one.wait_for("go")
    one.process.send_signal(number)
    one.wait_for("saving")
    one.process.send_signal(number)  # as `timeout` does: the second does not break off what the first began
    status, err = one.ended()
    assert status == 130
    last = err.splitlines()[-1]
    assert re.fullmatch(rf"stopped; to go on: arpo pretrain '{out}-more' --start '{out}' --seconds \d+", last), err
    load_checkpoint(str(out))
    assert (out / "heads.safetensors").exists() and not (out / "part").exists()


@pytest.mark.heavy
def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    dies = """
import os
from safetensors.torch import save_file
calls = iter(range(9))
def dying(*arguments):
    save_file(*arguments)
    if next(calls) == 1:
        os.kill(os.getpid(), 9)
p.save_file = dying
p._success = lambda *_: 0.0
"""
    one = Stopped(tmp_path, dies + SAYS)
    one.wait_for("saved")
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    assert one.ended()[0] == -9
    assert first and {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")} == first
    load_checkpoint(str(tmp_path))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("room", "said"), [(1000, ": cannot be written (a full disk?)"), (60_000, "/part/model-0.part: File too large")]
)
def test_a_full_disk_is_one_line(room: int, said: str, tmp_path: Path) -> None:
    small = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room},) * 2); p._success = lambda *_: 0.0"
    assert Stopped(tmp_path / "out", small).ended() == (2, f"error: {tmp_path / 'out'}{said}\n")


@pytest.mark.parametrize("held", ["run.sqlite", "config.yaml", "model.safetensors", "notes.txt"])
def test_a_folder_that_holds_something_is_left_alone(held: str, tmp_path: Path) -> None:
    (tmp_path / held).write_text("mine")
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=rf"out={tmp_path}: holds {held} already; choose another folder"):
        pretrain(Pretraining(out=tmp_path, seconds=1))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {held: "mine", "metrics.jsonl": "mine"}


def test_a_start_without_a_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no checkpoint with a tokenizer\.json"):
        pretrain(Pretraining(out=tmp_path / "out", seconds=1, start=tmp_path))


def test_a_batch_too_small_for_an_episode_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"screens=4: a batch needs at least 15"):
        pretrain(Pretraining(out=tmp_path / "out", seconds=1, screens=4))
