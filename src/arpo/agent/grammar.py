"""The grammar of UI-TARS replies: text of the model in, an Action out, and back. No `eval`, no `ast`: only reading.

    reply    = [ thought ] "Action:" call [ ignored ]
    call     = name "(" [ argument { "," argument } [ "," ] ] ")"
    argument = name "=" ( "'" text "'" | '"' text '"' )

- The first line that starts with `Action:` opens the action, so a thought may speak of actions inside its lines; only
  a reply without such a line is searched for an `Action:` in mid-line. A code fence around the call is skipped.
- The first call counts; what follows it is handed back as `ignored`.
- In quotes, `\\n`, `\\t`, `\\'`, `\\"` and `\\\\` are escapes, another backslash is a backslash, and a raw newline is
  allowed. Models forget to escape apostrophes ('it's'), so a bare quote closes the text only before `)`, before
  `, name=` and at the end of a line.
- A point is `(x,y)`, with or without box tokens, brackets or `<point>`; four numbers are a box, its centre is meant.

`parse` is total: any text gives a Parsed or a ParseError with a one-line reason. It is linear in the text's length:
each pattern is possessive (`*+`: what it took it never gives back), and what must be short (a point, keys) is refused
when long. `format_action` is its inverse for every action on the screen.
"""

import re
from collections.abc import Callable

from arpo.agent.actions import Action, CallUser, Click, Direction, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.agent.dialects.base import Parsed
from arpo.errors import ParseError

BOX_START, BOX_END = "<|box_start|>", "<|box_end|>"

_ACTION_LINE = re.compile(r"^[ \t]*+Action[ \t]*+[:\uff1a]", re.MULTILINE)
_ACTION_INLINE = re.compile(r"\bAction[ \t]*+[:\uff1a]")
_BEFORE_THOUGHT = re.compile(r"\s*+(?:```[a-z]*+\s*+)?(?:Thought[ \t]*+[:\uff1a])?")
_BEFORE_CALL = re.compile(r"\s*+(?:`{1,3}(?:[a-z]*+[ \t]*+\n)?)?\s*+")
_CALL = re.compile(r"([A-Za-z_]++)\s*+\(")
_SPACE = re.compile(r"\s*+")
_ARGUMENT = re.compile(r"([A-Za-z_]++)\s*+=\s*+(['\"])")
# Matches an escape, or a quote that closes. A look-ahead stops before the next quote, so all of them are linear too.
_ESCAPE_OR_CLOSE = {
    quote: re.compile(rf"\\.|{quote}(?=\s*+(?:\)|,\s*+(?:\)|[A-Za-z_]++\s*+=)|\Z)|[ \t]*+\n)", re.DOTALL)
    for quote in "'\""
}
_ESCAPE = re.compile(r"\\([nt'\"\\])")
_UNESCAPED = {"n": "\n", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_ESCAPED = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"})

_NUMBER = r"([+-]?[0-9]+(?:\.[0-9]*)?)"
_COMMA = r"(?:\s*,\s*|\s+)"
_POINT = re.compile(rf"{_NUMBER}{_COMMA}{_NUMBER}(?:(?:{_COMMA}|\)\s*,?\s*\(){_NUMBER}{_COMMA}{_NUMBER})?")
_WRAPPERS = (("<point>", "</point>"), ("<bbox>", "</bbox>"), ("(", ")"), ("[", "]"))
_LONGEST_POINT = 200
_LONGEST_KEYS = 100

# name: (arguments that must be there, arguments that may be)
_SIGNATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("click", "left_double", "right_single"), (("start_box",), ())),
    "drag": (("start_box", "end_box"), ()),
    "scroll": (("start_box", "direction"), ()),
    **dict.fromkeys(("hotkey", "press", "keydown", "keyup"), (("key",), ())),
    "type": (("content",), ()),
    "wait": ((), ()),
    **dict.fromkeys(("finished", "fail", "error_env", "call_user"), ((), ("content",))),
}
_NEWER_NAMES = {"point": "start_box", "start_point": "start_box", "end_point": "end_box"}

_DIRECTIONS: dict[str, Direction] = {"up": "up", "down": "down", "left": "left", "right": "right"}

_KEY_OR_SIGN = re.compile(r"[^\s+-]+|[+-]")
_TWO_WORD_KEY = re.compile(r"\b(page|arrow|caps|num|scroll|print)[ _-](up|down|left|right|lock|screen)\b")
_WHITESPACE_KEYS = {" ": "space", "\n": "enter", "\t": "tab"}
_KEY_ALIASES = {
    "control": "ctrl",
    "ctl": "ctrl",
    "option": "alt",
    **dict.fromkeys(("cmd", "command", "super", "meta", "windows"), "win"),
    "return": "enter",
    "escape": "esc",
    "del": "delete",
    "ins": "insert",
    "spacebar": "space",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
    **{f"arrow{side}": side for side in ("left", "right", "up", "down")},
    **{f"{side}arrow": side for side in ("left", "right", "up", "down")},
    "prtsc": "printscreen",
    "plus": "+",
    "minus": "-",
}

ToScreen = Callable[[float, float], tuple[int, int]]
ToModel = Callable[[int, int], tuple[int, int]]


def parse(text: str, to_screen: ToScreen) -> Parsed:
    """The thought and the first action of a reply. ParseError, and nothing else, where there is none."""
    header = _ACTION_LINE.search(text) or _ACTION_INLINE.search(text)
    if header is None:
        raise ParseError("the reply has no 'Action:'")
    call = _CALL.match(text, _end(_BEFORE_CALL, text, header.end()))
    if call is None:
        raise ParseError(f"no call such as click(…) after 'Action:' but {short(text, header.end())}")
    name = call[1]
    if name not in _SIGNATURES:
        raise ParseError(f"unknown action {short(name)}")
    arguments, end = _arguments(name, text, call.end())
    thought = text[: header.start()]
    return Parsed(
        thought=thought[_end(_BEFORE_THOUGHT, thought) :].strip(),
        action=_action(name, arguments, to_screen),
        ignored=text[end:].strip().strip("`").strip(),
    )


def format_action(action: Action, to_model: ToModel) -> str:
    """The call that `parse` reads as this action. ValueError for a point off the screen or a key of another name."""

    def box(x: int, y: int) -> str:
        model_x, model_y = to_model(x, y)
        return f"'{BOX_START}({model_x},{model_y}){BOX_END}'"

    match action:
        case Click(x, y, button, count):
            name = "right_single" if button == "right" else "left_double" if count == 2 else "click"
            return f"{name}(start_box={box(x, y)})"
        case Drag(x, y, to_x, to_y):
            return f"drag(start_box={box(x, y)}, end_box={box(to_x, to_y)})"
        case Scroll(x, y, direction):
            return f"scroll(start_box={box(x, y)}, direction='{direction}')"
        case Hotkey(keys, phase):
            name = {"press": "hotkey", "down": "keydown", "up": "keyup"}[phase]
            return f"{name}(key={_quote(_join_keys(keys))})"
        case Type(text):
            return f"type(content={_quote(text)})"
        case Wait():
            return "wait()"
        case Finish(answer):
            return f"finished(content={_quote(answer)})"
        case Fail(reason):
            return f"fail(content={_quote(reason)})"
        case CallUser(question):
            return f"call_user(content={_quote(question)})" if question else "call_user()"


def format_reply(thought: str, call: str) -> str:
    """A whole reply around a call. ValueError for a thought that would be read as an action."""
    opening = f"Thought: {thought}\n"
    if _ACTION_LINE.search(opening):
        raise ValueError("a line of the thought starts with 'Action:'")
    return f"{opening}Action: {call}"


def _arguments(call: str, text: str, start: int) -> tuple[dict[str, str], int]:
    """The arguments of a call, checked against its signature, and where the text goes on."""
    required, optional = _SIGNATURES[call]
    found: dict[str, str] = {}
    position = _end(_SPACE, text, start)
    while not text.startswith(")", position):
        argument = _ARGUMENT.match(text, position)
        if argument is None:
            raise ParseError(f"{call}: expected name='value' but got {short(text, position)}")
        name = _NEWER_NAMES.get(argument[1], argument[1])
        if name not in required and name not in optional:
            raise ParseError(f"{call}: unknown argument {short(name)}")
        if name in found:
            raise ParseError(f"{call}: {name} is given twice")
        found[name], position = _quoted(text, argument.end(), argument[2])
        position = _end(_SPACE, text, position)
        if text.startswith(",", position):
            position = _end(_SPACE, text, position + 1)
        elif not text.startswith(")", position):
            raise ParseError(f"{call}: expected ',' or ')' but got {short(text, position)}")
    for name in required:
        if name not in found:
            raise ParseError(f"{call}: {name} is missing")
    return found, position + 1


def _quoted(text: str, start: int, quote: str) -> tuple[str, int]:
    """The text in quotes whose first character is at `start`, unescaped, and the position after the closing quote."""
    for match in _ESCAPE_OR_CLOSE[quote].finditer(text, start):
        if match[0] == quote:
            return _ESCAPE.sub(lambda escape: _UNESCAPED[escape[1]], text[start : match.start()]), match.end()
    raise ParseError(f"the quoted text {short(text, start)} does not end")


def _quote(text: str) -> str:
    return f"'{text.translate(_ESCAPED)}'"


def _action(name: str, arguments: dict[str, str], to_screen: ToScreen) -> Action:
    content = arguments.get("content", "")
    match name:
        case "click":
            return Click(*_point(arguments["start_box"], to_screen))
        case "left_double":
            return Click(*_point(arguments["start_box"], to_screen), count=2)
        case "right_single":
            return Click(*_point(arguments["start_box"], to_screen), button="right")
        case "drag":
            return Drag(*_point(arguments["start_box"], to_screen), *_point(arguments["end_box"], to_screen))
        case "scroll":
            direction = _DIRECTIONS.get(arguments["direction"].strip().lower())
            if direction is None:
                raise ParseError(f"scroll: {short(arguments['direction'])} is not a direction")
            return Scroll(*_point(arguments["start_box"], to_screen), direction)
        case "hotkey" | "press":
            return Hotkey(keys_of(arguments["key"]))
        case "keydown":
            return Hotkey(keys_of(arguments["key"]), phase="down")
        case "keyup":
            return Hotkey(keys_of(arguments["key"]), phase="up")
        case "type":
            return Type(content)
        case "finished":
            return Finish(content)
        case "fail" | "error_env":
            return Fail(content)
        case "call_user":
            return CallUser(content)
        case _:
            return Wait()


def _point(value: str, to_screen: ToScreen) -> tuple[int, int]:
    """The screen point that a box or a point of the model means."""
    inner = value.replace(BOX_START, "").replace(BOX_END, "").strip() if len(value) <= _LONGEST_POINT else ""
    for opening, closing in _WRAPPERS:
        if inner.startswith(opening) and inner.endswith(closing):
            inner = inner[len(opening) : -len(closing)].strip()
    match = _POINT.fullmatch(inner)
    if match is None:
        raise ParseError(f"{short(value)} is not a point")
    x, y, other_x, other_y = (None if number is None else float(number) for number in match.groups())
    assert x is not None and y is not None
    if other_x is not None and other_y is not None:
        x, y = (x + other_x) / 2, (y + other_y) / 2
    return to_screen(x, y)


def keys_of(value: str) -> tuple[str, ...]:
    """Key names from `ctrl c`, `ctrl+c` or `ctrl-c`. A plus or minus is itself a key where no two keys are joined."""
    if value in _WHITESPACE_KEYS:
        return (_WHITESPACE_KEYS[value],)
    if len(value) > _LONGEST_KEYS:
        raise ParseError(f"{short(value)} is not a key")
    parts = _KEY_OR_SIGN.findall(_TWO_WORD_KEY.sub(r"\1\2", value.lower()))
    if not all(map(str.isprintable, parts)):  # no keyboard has it, and a terminal may obey it
        raise ParseError(f"{short(value)} is not a key")
    keys: list[str] = []
    joined = True  # whether the next part is a key for sure: nothing stands before it, or a joining sign does
    for place, part in enumerate(parts):
        if part in "+-" and not joined and place < len(parts) - 1:
            joined = True
            continue
        keys.append(_KEY_ALIASES.get(part.replace("_", ""), part))
        joined = False
    if not keys:
        raise ParseError("no key is named")
    return tuple(keys)


def _join_keys(keys: tuple[str, ...]) -> str:
    """The keys in UI-TARS's own form, `ctrl c`. In the middle a bare sign would join its neighbours: it is spelled."""
    spelled = {"+": "plus", "-": "minus"}
    inside = [spelled.get(key, key) for key in keys[1:-1]]
    text = " ".join([keys[0], *inside, *keys[1:][-1:]])
    try:
        read = keys_of(text)
    except ParseError:
        read = ()
    if read != keys:
        raise ValueError(f"{keys} are not the names of keys in this grammar")
    return text


def _end(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Where a pattern that may match nothing ends."""
    match = pattern.match(text, start)
    return start if match is None else match.end()


def short(text: str, start: int = 0) -> str:
    """A few characters for a reason, on one line however long or strange the text is."""
    piece = text[start : start + 41].strip()
    return repr(piece if len(piece) <= 40 else piece[:40] + "…")
