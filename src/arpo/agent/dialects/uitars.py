"""The dialect of UI-TARS-1.5: points are pixels of the image that a Qwen2.5-VL sees, in box tokens."""

from __future__ import annotations

from arpo.agent import grammar
from arpo.agent.actions import Action, points
from arpo.agent.coordinates import Scaling
from arpo.agent.dialects.base import Parsed
from arpo.agent.dialects.chat import END_OF_REPLY, ChatDialect
from arpo.agent.grammar import BOX_END, BOX_START

# The signatures are UI-TARS's, to the letter: the model was trained on them. The sentences are ours.
PROMPT = f"""\
You operate a computer to get a task done. After each of your actions you are shown the screen as it then is.
Answer every screenshot with one thought and one action, in exactly this form:

Thought: what you see, what is still to do, and which step comes next
Action: one of the calls below

The calls:
click(start_box='{BOX_START}(x1,y1){BOX_END}')
left_double(start_box='{BOX_START}(x1,y1){BOX_END}')
right_single(start_box='{BOX_START}(x1,y1){BOX_END}')
drag(start_box='{BOX_START}(x1,y1){BOX_END}', end_box='{BOX_START}(x3,y3){BOX_END}')
scroll(start_box='{BOX_START}(x1,y1){BOX_END}', direction='down or up or right or left')
hotkey(key='ctrl c')
type(content='xxx')
wait()
finished(content='xxx')
fail(content='xxx')

How to use them:
- A point is given in pixels of the screenshot, counted from its top left corner.
- In the content of type, write a quote as \\' or \\" and the Enter key as \\n; a \\n at the end submits what was typed.
- wait() lets a few moments pass when the screen is still changing.
- finished(...) says that the task is done; where the task asks a question, the content is the answer.
- fail(...) says that the task cannot be done on this computer, and why. That is the right end of an impossible task.

The task: {{instruction}}"""


class UITars(ChatDialect):
    """The dialect of UI-TARS-1.5."""

    marks = (BOX_START, BOX_END)
    template = PROMPT

    def parse(self, text: str, screen_size: tuple[int, int]) -> Parsed:
        """A reply's thought and action on a screen of (width, height). ParseError where there is none."""
        return grammar.parse(text.removesuffix(END_OF_REPLY), Scaling.of(*screen_size).to_screen)

    def format(self, thought: str, action: Action, screen_size: tuple[int, int]) -> tuple[int, ...]:
        """The reply as the model would sample it: box tokens by id, the end token last."""
        call = grammar.format_action(action, Scaling.of(*screen_size).to_model)
        # Only a call with points holds box tokens of ours; in a thought or a typed text they are somebody's letters.
        pieces = self._marks.split(call) if points(action) else [call]
        return (*self._encode([grammar.format_reply(thought, pieces[0]), *pieces[1:]]), self.stop)
