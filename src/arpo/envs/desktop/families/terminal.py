"""Tasks for xterm: what can be done with a line of shell."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params
from arpo.envs.desktop.families.moves import Look, Moves
from arpo.envs.desktop.families.parts import HOME, launch, shell_says, task, write
from arpo.types import Json

APPS = ("xterm",)
LINKS = "find . -maxdepth 2 -name '[!.]*' -not -path './.*' -type l"  # none: what a task asks for is a file


def _line(p: Params) -> Json:
    config = [*(write(f"{HOME}/{name}", text) for name, text in p["files"].items()), launch("xterm")]
    kept = p.get("kept", list(p["files"]))  # what was read is still there as it was
    expected = p["expected"] + "".join(p["files"][name] for name in kept)
    return task(p["say"], config, shell_says(f"cd {HOME}; {p['check']}; cat {' '.join(kept)}; {LINKS}", expected))


def _line_script(look: Look, p: Params) -> Moves:
    look.window("xterm")
    yield "Type the command.", Type(f"{p['command']}\n")
    look.until(lambda: look.sandbox.run(p["check"]).out == p["expected"], p["command"])


LOG = "".join(f"{'ERROR' if n % 7 == 3 else 'INFO'} request {n} took {n * 37 % 90} ms\n" for n in range(40))

FAMILIES = (
    DesktopFamily("terminal-count", APPS, _line, _line_script, (
        {"say": "How many lines has server.log? Write the number, and nothing else, to lines.txt in the home folder.",
         "files": {"server.log": LOG}, "command": "wc -l < server.log > lines.txt",
         "check": "cat lines.txt", "expected": "40\n"},
        {"say": "Count the lines of server.log that begin with ERROR, and put the number into errors.txt.",
         "files": {"server.log": LOG}, "command": "grep -c ^ERROR server.log > errors.txt",
         "check": "cat errors.txt", "expected": f"{LOG.count('ERROR')}\n"},
    )),
    DesktopFamily("terminal-text", APPS, _line, _line_script, (
        {"say": "Sort the lines of names.txt by the alphabet and save them as sorted.txt, with the terminal.",
         "files": {"names.txt": "Zoe\nAda\nMax\nEva\n"}, "command": "sort names.txt > sorted.txt",
         "check": "cat sorted.txt", "expected": "Ada\nEva\nMax\nZoe\n"},
        {"say": "Put the first three lines of poem.txt into a new file start.txt.",
         "files": {"poem.txt": "the moon\nthe lake\na boat\nno wind\nnobody\n"},
         "command": "head -3 poem.txt > start.txt",
         "check": "cat start.txt", "expected": "the moon\nthe lake\na boat\n"},
        {"say": "From the terminal, join one.txt and two.txt, in this order, into both.txt.",
         "files": {"one.txt": "first\n", "two.txt": "second\n"}, "command": "cat one.txt two.txt > both.txt",
         "check": "cat both.txt", "expected": "first\nsecond\n"},
    )),
    DesktopFamily("terminal-files", APPS, _line, _line_script, (
        {"say": "Make the script backup.sh in the home folder executable for its owner.",
         "files": {"backup.sh": "#!/bin/sh\necho saved\n"}, "command": "chmod u+x backup.sh",
         "check": "stat -c %A backup.sh | cut -c 1-4,6,9; ./backup.sh", "expected": "-rwx--\nsaved\n"},
        {"say": "Move all .jpg files of the folder inbox into a new folder called photos, also in the home folder.",
         "files": {"inbox/a.jpg": "a", "inbox/b.jpg": "b", "inbox/c.txt": "c"},
         "command": "mkdir photos && mv inbox/*.jpg photos", "kept": ["inbox/c.txt"],
         "check": "find inbox photos -printf '%y %p\n' | sort; cat photos/a.jpg; echo; cat photos/b.jpg; echo",
         "expected": "d inbox\nd photos\nf inbox/c.txt\nf photos/a.jpg\nf photos/b.jpg\na\nb\n"},
        {"say": "Pack the folder thesis into a compressed archive thesis.tar.gz in the home folder.",
         "files": {"thesis/intro.tex": "a", "thesis/main.tex": "b"}, "command": "tar czf thesis.tar.gz thesis",
         "check": "tar tzf thesis.tar.gz | sort | sed s,^[.]/,,; "
                  "for name in intro main; do tar xzOf thesis.tar.gz --wildcards *thesis/$name.tex; echo; done",
         "expected": "thesis/\nthesis/intro.tex\nthesis/main.tex\na\nb\n"},
    )),
)  # fmt: skip
