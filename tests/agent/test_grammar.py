"""The grammar reads every form that UI-TARS writes, refuses the rest with a reason, and writes what it reads."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arpo.agent.actions import Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.agent.coordinates import Scaling
from arpo.agent.grammar import Parsed, format_action, format_reply, parse
from arpo.errors import ParseError

SCREEN = Scaling.of(448, 280)  # the model sees it at its own size, so that the numbers below are screen pixels
BOX = "<|box_start|>(10,20)<|box_end|>"
MEGABYTE = 1_000_000


def action_of(call: str) -> Action:
    return parse(f"Thought: I see.\nAction: {call}", SCREEN.to_screen).action


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (f"click(start_box='{BOX}')", Click(10, 20)),
        (f"left_double(start_box='{BOX}')", Click(10, 20, count=2)),
        (f"right_single(start_box='{BOX}')", Click(10, 20, button="right")),
        (f"drag(start_box='{BOX}', end_box='<|box_start|>(30,40)<|box_end|>')", Drag(10, 20, 30, 40)),
        (f"drag(end_box='(30,40)',start_box='{BOX}')", Drag(10, 20, 30, 40)),
        (f"scroll(start_box='{BOX}', direction='down')", Scroll(10, 20, "down")),
        (f"scroll(start_box='{BOX}', direction='up')", Scroll(10, 20, "up")),
        (f"scroll(direction='left', start_box='{BOX}')", Scroll(10, 20, "left")),
        (f"scroll(start_box='{BOX}', direction=' Right ')", Scroll(10, 20, "right")),
        ("click(point='<point>10 20</point>')", Click(10, 20)),
        (
            "drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')",
            Drag(10, 20, 30, 40),
        ),
        ("scroll(point='<point>10 20</point>', direction='down')", Scroll(10, 20, "down")),
        ("wait()", Wait()),
        ("wait ( )", Wait()),
        ("finished()", Finish()),
        ("finished(content='42 files')", Finish("42 files")),
        ("fail()", Fail()),
        ("fail(content='no such file')", Fail("no such file")),
        ("error_env()", Fail()),
        ("error_env(content='it is gone')", Fail("it is gone")),
        ("call_user()", CallUser()),
        ("call_user(content='which one?')", CallUser("which one?")),
    ],
)
def test_every_call_is_read(call: str, action: Action) -> None:
    assert action_of(call) == action


@pytest.mark.parametrize(
    ("box", "point"),
    [
        ("(10,20)", (10, 20)),
        (" ( 10 , 20 ) ", (10, 20)),
        ("10,20", (10, 20)),
        ("10 20", (10, 20)),
        ("[10, 20]", (10, 20)),
        ("<|box_start|>10,20<|box_end|>", (10, 20)),
        ("<|box_start|>(10,20)", (10, 20)),
        ("<point>10 20</point>", (10, 20)),
        ("<point>10, 20</point>", (10, 20)),
        ("<bbox>10 20 30 50</bbox>", (20, 35)),
        ("[10, 20, 30, 50]", (20, 35)),
        ("(10,20,30,50)", (20, 35)),
        ("(10,20),(30,50)", (20, 35)),
        ("<|box_start|>(10,20),(30,50)<|box_end|>", (20, 35)),
        ("(10.4,19.6)", (10, 20)),
        ("(10.,+20.0)", (10, 20)),
        ("(-3,20)", (0, 20)),  # off by less than 2 % of the side
        ("(455,-5.5)", (447, 0)),
    ],
)
def test_every_form_of_a_point_is_read(box: str, point: tuple[int, int]) -> None:
    for quote in "'\"":
        assert action_of(f"click(start_box={quote}{box}{quote})") == Click(*point)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("'hello'", "hello"),
        ('"hello"', "hello"),
        ("''", ""),
        (r"'hello\n'", "hello\n"),
        ("'hello\n'", "hello\n"),  # a raw newline before the closing quote
        ("'one\ntwo'", "one\ntwo"),
        (r"'it\'s'", "it's"),
        (r'"say \"hi\""', 'say "hi"'),
        (r"'say \"hi\"'", 'say "hi"'),
        ("'say \"hi\"'", 'say "hi"'),
        ('"it\'s"', "it's"),
        ("'it's'", "it's"),  # forgotten escapes
        ("'echo 'a b' done'", "echo 'a b' done"),
        (r"'a\tb'", "a\tb"),
        (r"'C:\\dir'", r"C:\dir"),
        (r"'\d+\q'", r"\d+\q"),  # unknown escapes stay as they are
        (r"'\\n'", r"\n"),
        ("'你好，世界'", "你好，世界"),  # noqa: RUF001
        (r"'x\') wait(\''", "x') wait('"),
        ("'(a)'", "(a)"),
        ("'<|im_end|>'", "<|im_end|>"),
        ("'a',", "a"),  # Python allows a comma at the end, so models write one
    ],
)
def test_typed_text_is_read_with_its_quotes_and_escapes(content: str, text: str) -> None:
    assert action_of(f"type(content={content})") == Type(text)


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("ctrl c", ("ctrl", "c")),
        ("ctrl+c", ("ctrl", "c")),
        ("ctrl + c", ("ctrl", "c")),
        ("ctrl-c", ("ctrl", "c")),
        ("Ctrl+Shift+T", ("ctrl", "shift", "t")),
        ("control c", ("ctrl", "c")),
        ("ctrl +", ("ctrl", "+")),
        ("ctrl++", ("ctrl", "+")),
        ("ctrl+plus", ("ctrl", "+")),
        ("ctrl -", ("ctrl", "-")),
        ("ctrl--", ("ctrl", "-")),
        ("ctrl+-", ("ctrl", "-")),
        ("+", ("+",)),
        ("-", ("-",)),
        (" ", ("space",)),
        (r"\n", ("enter",)),
        ("Return", ("enter",)),
        ("ESCAPE", ("esc",)),
        ("del", ("delete",)),
        ("page_down", ("pagedown",)),
        ("page down", ("pagedown",)),
        ("pgdn", ("pagedown",)),
        ("ctrl+page-up", ("ctrl", "pageup")),
        ("arrow_left", ("left",)),
        ("ArrowLeft", ("left",)),
        ("alt arrow left", ("alt", "left")),
        ("cmd", ("win",)),
        ("super l", ("win", "l")),
        ("option", ("alt",)),
        ("spacebar", ("space",)),
        ("caps lock", ("capslock",)),
        ("f2", ("f2",)),
        (r"\'", ("'",)),
        ("ctrl shift _", ("ctrl", "shift", "_")),
    ],
)
def test_key_names_are_split_and_made_one(key: str, keys: tuple[str, ...]) -> None:
    assert action_of(f"hotkey(key='{key}')") == Hotkey(keys)
    assert action_of(f"press(key='{key}')") == Hotkey(keys)
    assert action_of(f"keydown(key='{key}')") == Hotkey(keys, phase="down")
    assert action_of(f"keyup(key='{key}')") == Hotkey(keys, phase="up")


@pytest.mark.parametrize(
    ("reply", "parsed"),
    [
        ("Thought: I wait.\nAction: wait()", Parsed("I wait.", Wait(), "")),
        ("Action: wait()", Parsed("", Wait(), "")),
        ("I wait.\n\nAction:wait()\n", Parsed("I wait.", Wait(), "")),
        ("Thought: 等一下。\nAction：wait()", Parsed("等一下。", Wait(), "")),  # noqa: RUF001
        ("Thought: I wait.\r\nAction: wait()\r\n", Parsed("I wait.", Wait(), "")),
        ("Thought: a\nb\n  Action:\n  wait()", Parsed("a\nb", Wait(), "")),
        ("Thought: I wait. Action: wait()", Parsed("I wait.", Wait(), "")),
        ("Thought: the next Action: none\nAction: wait()", Parsed("the next Action: none", Wait(), "")),
        ("```\nThought: I wait.\nAction: wait()\n```", Parsed("I wait.", Wait(), "")),
        ("Thought: I wait.\nAction: ```python\nwait()\n```", Parsed("I wait.", Wait(), "")),
        ("Thought: see `x`\nAction: `wait()`", Parsed("see `x`", Wait(), "")),
        ("Action: wait()\n\nclick(start_box='(1,2)')", Parsed("", Wait(), "click(start_box='(1,2)')")),
        ("Action: wait(); finished()", Parsed("", Wait(), "; finished()")),
        ("Action: wait()\nAction: fail()", Parsed("", Wait(), "Action: fail()")),
        ("Action: type(content='a\nAction: b')", Parsed("", Type("a\nAction: b"), "")),
    ],
)
def test_a_reply_is_a_thought_and_its_first_action(reply: str, parsed: Parsed) -> None:
    assert parse(reply, SCREEN.to_screen) == parsed


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "no 'Action:'"),
        ("click(start_box='(1,2)')", "no 'Action:'"),
        ("Action:", "no call"),
        ("Action: click", "no call such as click(…) after 'Action:' but 'click'"),
        ("Action: hover(start_box='(1,2)')", "unknown action 'hover'"),
        ("Action: __import__('os')", "unknown action '__import__'"),
        ("Action: click()", "click: start_box is missing"),
        ("Action: drag(start_box='(1,2)')", "drag: end_box is missing"),
        ("Action: scroll(start_box='(1,2)')", "scroll: direction is missing"),
        ("Action: scroll(start_box='(1,2)', direction='in')", "scroll: 'in' is not a direction"),
        ("Action: wait(time='5')", "wait: unknown argument 'time'"),
        ("Action: type(content='a', content='b')", "type: content is given twice"),
        ("Action: click(start_box='(1,2)', point='(1,2)')", "click: start_box is given twice"),
        ("Action: click(start_box=5)", "click: expected name='value' but got 'start_box=5)'"),
        ("Action: click('(1,2)')", "click: expected name='value'"),
        ("Action: click(,start_box='(1,2)')", "click: expected name='value'"),
        ("Action: wait(", "wait: expected name='value' but got ''"),
        ("Action: type(content='a'", "type: expected ',' or ')' but got ''"),
        ("Action: type(content='a'\nwait()", "type: expected ',' or ')' but got 'wait()'"),
        ("Action: type(content='a", "the quoted text 'a' does not end"),
        ("Action: type(content='a\\", "does not end"),
        ("Action: type(content='a\\')", "does not end"),
        ("Action: click(start_box='')", "'' is not a point"),
        ("Action: click(start_box='(1)')", "'(1)' is not a point"),
        ("Action: click(start_box='(1,2,3)')", "is not a point"),
        ("Action: click(start_box='(1,2,3,4,5)')", "is not a point"),
        ("Action: click(start_box='(a,b)')", "is not a point"),
        ("Action: click(start_box='(1e3,2)')", "is not a point"),
        ("Action: click(start_box='(٣,٤)')", "is not a point"),
        ("Action: click(start_box='(nan,nan)')", "is not a point"),
        ("Action: click(start_box='(2000,20)')", "the point (2000, 20) is off the 448x280 image"),
        ("Action: click(start_box='(20,-20)')", "off the 448x280 image"),
        (f"Action: click(start_box='({'9' * 150},2)')", "off the 448x280 image"),
        (f"Action: click(start_box='({'9' * 5000},2)')", "is not a point"),
        ("Action: hotkey(key='')", "no key is named"),
        ("Action: hotkey(key='   ')", "no key is named"),
        (f"Action: hotkey(key='{'ctrl ' * 50}')", "is not a key"),
    ],
)
def test_what_is_no_action_is_refused_with_a_reason(reply: str, reason: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(reply, SCREEN.to_screen)
    assert reason in str(error.value)


FRAGMENTS = st.sampled_from(
    [
        *("Thought:", "Action:", "\nAction:", "\n", " ", "(", ")", ",", "=", "'", '"', "\\", "`", "```", "+", "-", "."),
        *("click(", "drag(", "scroll(", "type(", "hotkey(", "wait()", "finished(", "fail(", "eval(", "point='"),
        *(
            "start_box=",
            "end_box='",
            "content='",
            "key='",
            "direction='down'",
            "(1,2)",
            "<point>",
            "</point>",
            "9" * 300,
        ),
        *(
            "<|box_start|>",
            "<|box_end|>",
            "<|im_end|>",
            "[1, 2, 3, 4]",
            "1",
            "\\n",
            "\\'",
            "')",
            "', ",
            "\ud800",
            "\x00",
        ),
    ]
)


@given(st.lists(FRAGMENTS | st.text(max_size=3), max_size=25).map("".join) | st.text())
@settings(max_examples=600, deadline=None)
@example("Action: click(start_box='(" + "9" * 4301 + ",1)')")
def test_any_text_is_an_action_or_a_parse_error(text: str) -> None:
    for reply in (text, f"Action: {text}", f"Action: type(content='{text}"):
        try:
            parsed = parse(reply, SCREEN.to_screen)
        except ParseError as error:
            reason = str(error)
            assert reason and reason.isprintable() and len(reason) < 600
        else:
            assert isinstance(parsed, Parsed)


@pytest.mark.parametrize(
    "unit",
    [
        *("'", '"', "\\", "(", "9", " ", "\n", "`", "\\'", "' ", "',", "', a", "',a ", "a='',", "-1,"),
        *("Action:", "\nAction", "Thought:", "<|box_start|>", "click(", "```a\n", "type(content='"),
    ],
)
def test_a_megabyte_of_anything_is_read_in_one_go(unit: str) -> None:
    """Nothing is measured here: a reader that is not linear would not come back."""
    for start in ("", "Action: ", "Action: type(content='", "Action: click(start_box='", "Action: hotkey("):
        for end in ("", "')"):
            try:
                parse(start + unit * (MEGABYTE // len(unit)) + end, SCREEN.to_screen)
            except ParseError as error:
                assert len(str(error)) < 600


XS, YS = st.integers(0, 447), st.integers(0, 279)
TEXTS = st.lists(
    st.sampled_from(
        ["'", '"', "\\", "\n", "\t", "\r", "')", "', a='", "\\n", "\nAction: wait()", "<|im_end|>", "<|box_end|>"]
    )
    | st.text(max_size=5),
    max_size=8,
).map("".join)
KEYS = (
    st.sampled_from(["ctrl", "shift", "alt", "win", "enter", "esc", "f2", "pagedown", "left", "+", "-", "'", "\\", "a"])
    | st.characters(exclude_categories=["Cs"]).filter(lambda c: c.isprintable() and not c.isspace() and c.lower() == c)
)  # fmt: skip
ACTIONS: st.SearchStrategy[Action] = st.one_of(
    st.builds(Click, XS, YS, count=st.sampled_from([1, 2])),
    st.builds(Click, XS, YS, button=st.just("right")),
    st.builds(Drag, XS, YS, XS, YS),
    st.builds(Scroll, XS, YS, st.sampled_from(["up", "down", "left", "right"])),
    st.builds(Type, TEXTS),
    st.builds(
        Hotkey, st.lists(KEYS, min_size=1, max_size=5).map(tuple), phase=st.sampled_from(["press", "down", "up"])
    ),
    st.just(Wait()),
    st.builds(Finish, TEXTS),
    st.builds(Fail, TEXTS),
    st.builds(CallUser, TEXTS),
)
THOUGHTS = TEXTS.map(str.strip).filter(lambda thought: "\nAction" not in thought)


@given(THOUGHTS, ACTIONS)
@settings(max_examples=600, deadline=None)
@example("", Hotkey(("ctrl", "+", "-", "+")))
@example("", Hotkey(("+", "+", "+")))
@example("Action: none", Type("')\nAction: wait()"))
def test_what_is_written_is_read_back(thought: str, action: Action) -> None:
    reply = format_reply(thought, format_action(action, SCREEN.to_model))
    assert parse(reply, SCREEN.to_screen) == Parsed(thought, action, "")


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (Click(10, 20), f"click(start_box='{BOX}')"),
        (Click(10, 20, count=2), f"left_double(start_box='{BOX}')"),
        (Click(10, 20, button="right"), f"right_single(start_box='{BOX}')"),
        (Drag(10, 20, 30, 40), f"drag(start_box='{BOX}', end_box='<|box_start|>(30,40)<|box_end|>')"),
        (Scroll(10, 20, "down"), f"scroll(start_box='{BOX}', direction='down')"),
        (Hotkey(("ctrl", "c")), "hotkey(key='ctrl c')"),
        (Hotkey(("enter",)), "hotkey(key='enter')"),
        (Hotkey(("shift",), phase="down"), "keydown(key='shift')"),
        (Hotkey(("shift",), phase="up"), "keyup(key='shift')"),
        (Type("it's\n"), r"type(content='it\'s\n')"),
        (Wait(), "wait()"),
        (Finish(), "finished(content='')"),
        (Fail("no"), "fail(content='no')"),
        (CallUser(), "call_user()"),
    ],
)
def test_actions_are_written_with_the_signatures_of_uitars(action: Action, call: str) -> None:
    assert format_action(action, SCREEN.to_model) == call


@pytest.mark.parametrize(
    "action",
    [Click(448, 0), Hotkey(("Enter",)), Hotkey(("return",)), Hotkey((" ",)), Hotkey(("\r",)), Hotkey(("a",) * 60)],
)
def test_what_could_not_be_read_back_is_not_written(action: Action) -> None:
    with pytest.raises(ValueError, match=r"not on a screen|not the names of keys"):
        format_action(action, SCREEN.to_model)


def test_a_thought_that_reads_as_an_action_is_not_written() -> None:
    with pytest.raises(ValueError, match="thought"):
        format_reply("first\nAction: fail()", "wait()")
