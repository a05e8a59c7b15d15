"""States of the families whose end is text, files and settings (states.py)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from states import (
    ELSEWHERE,
    HOME,
    Do,
    Params,
    States,
    ending,
    nothing,
    put,
    running,
    sh,
    text_file,
    then,
)

from arpo.agent.actions import Fail, Finish, Wait
from arpo.envs.desktop.families.calculator import MODES, SETTINGS
from arpo.envs.desktop.families.chromium import PAGES, PROFILE, SITE
from arpo.envs.desktop.families.editor import VIEW
from arpo.envs.desktop.families.vlc import VLCRC
from arpo.envs.desktop.sandbox import Sandbox

VIEWS = "show-line-numbers word-wrap auto-indent show-whitespace highlight-current-line insert-spaces".split()
BOXES = "qt-pause-minimized one-instance qt-minimal-view qt-start-minimized playlist-enqueue".split()


# The editor.


def editor_write(p: Params) -> States:
    return text_file(p["path"], p["text"])


def editor_replace(p: Params) -> States:
    text, old, new = p["text"], p["old"], p["new"]
    right, wrong = text_file(p["path"], text.replace(old, new), text)
    return right, wrong | {
        "only the first": put(p["path"], text.replace(old, new, 1)),
        "the new beside the old": put(p["path"], text.replace(old, f"{old} {new}")),
        "in capitals": put(p["path"], text.replace(old, f"{new[0].swapcase()}{new[1:]}x")),
        "only the last line": put(
            p["path"], "\n".join(text.split("\n")[:-2]) + "\n" + text.split("\n")[-2].replace(old, new)
        ),
        "a copy": put(f"{p['path']}.new", text.replace(old, new)),
    }


def editor_append(p: Params) -> States:
    text, line = p["text"], p["line"]
    right, wrong = text_file(p["path"], text + line, text)
    return right, wrong | {
        "at the beginning": put(p["path"], f"{line}\n{text}"),
        "behind the last line": put(p["path"], f"{text.rstrip()} {line}\n"),
        "above the last line": put(p["path"], "\n".join([*text.splitlines()[:-1], line, text.splitlines()[-1]])),
        "without the others": put(p["path"], line),
        "to every file": sh(
            f'for f in $(find . -type f); do echo {shlex.quote(line)} | cat - "$f" > x && cat x > "$f"; done'
        ),
    }


def editor_delete(p: Params) -> States:
    lines, at = p["text"].splitlines(keepends=True), p["line"] - 1

    def without(i: int) -> Do:
        return put(p["path"], "".join(lines[:i] + lines[i + 1 :]))

    right, wrong = text_file(p["path"], "".join(lines[:at] + lines[at + 1 :]), p["text"])
    return right, wrong | {
        "the line below": without(at + 1),
        "the line above": without(at - 1),
        "emptied": put(p["path"], "".join([*lines[:at], "\n", *lines[at + 1 :]])),
        "all from there": put(p["path"], "".join(lines[:at])),
    }


def editor_view(p: Params) -> States:
    def on(*keys: str) -> Do:
        return then(*(sh('gsettings set "$1" "$2" true', VIEW, key) for key in keys))

    others = [key for key in VIEWS if key != p["key"]]
    wrong = {f"{key} instead": on(key) for key in others[:3]}
    wrong |= {"all but this": on(*others), "every box": on(*VIEWS), "one more": on(p["key"], others[0])}
    return on(p["key"]), wrong | {"off again": then(on(p["key"]), sh(f"gsettings reset {VIEW} {p['key']}"))}


# The calculator.


def _kept(name: str, value: str) -> Do:
    """A value in its file of settings."""
    return sh(
        'mkdir -p "$(dirname "$3")"; touch "$3"; sed -i "/^$1=/d" "$3"; echo "$1=$2" >> "$3"', name, value, SETTINGS
    )


def calculator_result(p: Params) -> States:
    result = p["result"]
    wrong = {
        name: _kept("remembered_valuex", f'"{value}"')
        for name, value in {
            "one too much": int(result) + 1, "negative": -int(result), "turned round": result[::-1],
            "a digit more": f"{result}0", "the calculation": p["keys"], "a digit less": result[:-1],
            "all numbers": f"{p['keys']}{result}",
        }.items()
    }  # fmt: skip
    right = _kept("remembered_valuex", f'"{result}"')
    return right, wrong | {
        "in another register": _kept("remembered_valuey", f'"{result}"'),
        "beside the old one": then(right, sh('echo remembered_valuex=\\"0\\" >> "$1"', SETTINGS)),
        "the calculator still open": then(right, running("galculator")),
    }


def calculator_mode(p: Params) -> States:
    number = MODES.index(p["mode"])
    right = _kept("mode", str(number))
    wrong = {f"mode {other}": _kept("mode", str(MODES.index(other))) for other in MODES if other != p["mode"]}
    return right, wrong | {
        "by its name": _kept("mode", p["mode"]),
        "beside the old one": then(right, sh('echo mode=0 >> "$1"', SETTINGS)),
        "another setting": _kept("default_number_base", str(number)),
        "the calculator still open": then(right, running("galculator")),
    }


# The file manager.


def files_rename(p: Params) -> States:
    at, old, new = (f"{HOME}/{p['at']}", p["old"], p["new"])
    other = next(name for name in p["files"] if name != old)
    wrong = {
        "copied": 'cp "$1" "$2"',
        "another one": f'mv {other} "$2"',
        "in capitals": 'mv "$1" "$(echo $2 | tr a-z A-Z)"',
        "a letter more": 'mv "$1" "x$2"',
        "moved to another folder": f'mv "$1" "{ELSEWHERE}/$2"',
        "a new file": 'rm "$1"; touch "$2"',
        "a folder": 'rm "$1"; mkdir "$2"',
        "a link": f'mv "$1" {ELSEWHERE}; ln -s "{ELSEWHERE}/$1" "$2"',
        "the others emptied": f'mv "$1" "$2"; : > {other}',
        "the others gone": f'mv "$1" "$2"; rm {other}',
        "with something hidden beside it": 'cp "$1" ".$1"; mv "$1" "$2"',
    }
    return _at(at, 'mv "$1" "$2"', old, new), {name: _at(at, one, old, new) for name, one in wrong.items()}


def files_folder(p: Params) -> States:
    wrong = {
        "a file": 'touch "$1"',
        "in capitals": 'mkdir "$(echo $1 | tr a-z A-Z)"',
        "one level up": 'mkdir "../$1"',
        "a blank more": 'mkdir "$1 "',
        "two of them": 'mkdir "$1" "$1 2"',
        "one in the other": 'mkdir -p "$1/$1"',
        "the first part of the name": 'mkdir "$(echo $1 | cut -c 1-5)"',
        "with all moved into it": 'touch new; mkdir "$1"; mv * "$1" 2>&1 || true',
        "a link": 'ln -s /tmp "$1"',
        "with a file in it": 'mkdir "$1"; touch "$1/new"',
    }
    at = f"{HOME}/{p['at']}"
    return _at(at, 'mkdir "$1"', p["new"]), {name: _at(at, one, p["new"]) for name, one in wrong.items()}


def files_move(p: Params) -> States:
    other = next(name for name in p["files"] if name != p["file"])
    wrong = {
        "the other way": 'mv "$1" "$2"' if p["copy"] else 'cp "$1" "$2"',
        "another one": f'cp {other} "$2"' if p["copy"] else f'mv {other} "$2"',
        "an empty one": ": > $2/$1" if p["copy"] else "rm $1; : > $2/$1",
        "of another text": 'echo x > "$2/$1"' if p["copy"] else 'rm "$1"; echo x > "$2/$1"',
        "a link": 'ln -s "../$1" "$2/$1"' if p["copy"] else 'mv "$1" /tmp; ln -s "/tmp/$1" "$2/$1"',
        "under another name": 'cp "$1" "$2/copy-$1"' if p["copy"] else 'mv "$1" "$2/copy-$1"',
        "all of them": 'cp *.* "$2"' if p["copy"] else 'mv *.* "$2"',
        "to another folder": f'cp "$1" {ELSEWHERE}' if p["copy"] else f'mv "$1" {ELSEWHERE}',
        "and another emptied": f'{"cp" if p["copy"] else "mv"} "$1" "$2"; : > {other}',
    }
    at, names = f"{HOME}/{p['at']}", (p["file"], p["to"])
    right = _at(at, 'cp "$1" "$2"' if p["copy"] else 'mv "$1" "$2"', *names)
    return right, {name: _at(at, one, *names) for name, one in wrong.items()}


def files_delete(p: Params) -> States:
    other = next(name for name in p["files"] if name != p["file"])
    trash = f"{HOME}/.local/share/Trash/files"
    wrong = {
        "into the wastebasket": f'mkdir -p {trash}; mv "$1" {trash}',
        "moved away": f'mv "$1" {ELSEWHERE}',
        "renamed": 'mv "$1" "$1.old"',
        "hidden": 'mv "$1" ".$1"',
        "emptied": ': > "$1"',
        "all": "rm *",
        "another one": f"rm {other}",
        "and another emptied": f'rm "$1"; : > {other}',
    }
    at = f"{HOME}/{p['at']}"
    return _at(at, 'rm "$1"', p["file"]), {name: _at(at, one, p["file"]) for name, one in wrong.items()}


def _at(folder: str, script: str, *names: str) -> Do:
    return sh(f"cd '{folder}'; {script}", *names)


# The terminal.


def terminal_line(p: Params) -> States:
    """What the command should have done, what others would have done, and damage to the files that it read."""
    source, wanted = next(iter(p["files"])), p["expected"]
    right = sh(p["command"])
    if " > " not in p["command"]:
        return right, {name: sh(script) for name, script in _FILES[p["command"].split()[0]].items()}
    target = p["command"].rpartition(" > ")[2]
    _, wrong = text_file(f"{HOME}/{target}", wanted)
    return right, wrong | {
        "the source itself": sh(f"cp {source} {target}"),
        "the source moved": sh(f"mv {source} {target}"),
        "and the source emptied": then(right, sh(f": > {source}")),
        "and the source gone": then(right, sh(f"rm {source}")),
        "into the source": put(f"{HOME}/{source}", wanted),
        "with the name beside it": put(f"{HOME}/{target}", f"{wanted.rstrip()} {source}\n"),
    }


_FILES = {
    "chmod": {
        "for others": "chmod go+x backup.sh",
        "with all rights for all": "chmod 777 backup.sh",
        "a copy": "cp backup.sh run.sh; chmod u+x run.sh",
        "readable only": "chmod 444 backup.sh",
        "another script": "printf '#!/bin/sh\\nprintf \"saved\\\\n\"\\n' > backup.sh; chmod u+x backup.sh",
        "a link": "mv backup.sh b; chmod u+x b; ln -s b backup.sh",
    },
    "mkdir": {
        "copied": "mkdir photos; cp inbox/*.jpg photos",
        "all": "mkdir photos; mv inbox/* photos",
        "the folder only": "mkdir photos",
        "one of them": "mkdir photos; mv inbox/a.jpg photos",
        "renamed": "mv inbox photos; mkdir inbox",
        "empty ones": "mkdir photos; rm inbox/*.jpg; touch photos/a.jpg photos/b.jpg",
        "in inbox": "mkdir inbox/photos; mv inbox/*.jpg inbox/photos",
        "in capitals": "mkdir Photos; mv inbox/*.jpg Photos",
        "exchanged": "mkdir photos; mv inbox/a.jpg photos/b.jpg; mv inbox/b.jpg photos/a.jpg",
        "links": "mkdir photos p; mv inbox/*.jpg p; ln -s ../p/a.jpg ../p/b.jpg photos",
        "the other emptied": "mkdir photos; mv inbox/*.jpg photos; : > inbox/c.txt",
    },
    "tar": {
        "not compressed": "tar cf thesis.tar.gz thesis",
        "compressed in another way": "tar cf t.tar thesis; xz -c t.tar > thesis.tar.gz",
        "an empty archive": "tar czf thesis.tar.gz -T /dev/null",
        "without the folder": "tar czf thesis.tar.gz -C thesis .",
        "one file": "tar czf thesis.tar.gz thesis/main.tex",
        "empty files": "cp -r thesis /tmp; truncate -s 0 /tmp/thesis/*; tar czf thesis.tar.gz -C /tmp thesis",
        "and the folder gone": "tar czf thesis.tar.gz thesis; rm -r thesis",
        "under another name": "tar czf thesis.tgz thesis",
        "in the folder": "tar czf t.tar.gz thesis; mv t.tar.gz thesis/thesis.tar.gz",
        "the list of its files": "find thesis | gzip > thesis.tar.gz",
    },
}


# Two applications.


def multi_note(p: Params) -> States:
    right, wrong = text_file(p["out"], p["result"])
    more = {
        "the calculation too": f"{p['keys']}{p['result']}",
        "as a decimal": f"{p['result']}.0",
        "one more": f"{int(p['result']) + 1}",
    }
    return right, wrong | {name: put(p["out"], text) for name, text in more.items()}


def multi_page(p: Params) -> States:
    right, wrong = text_file(p["out"], p["answer"])
    digits = p["answer"][:-1] + str((int(p["answer"][-1]) + 1) % 10)
    more = {"the whole page": p["text"], "another number": digits, "the title too": f"{p['title']}: {p['answer']}"}
    return right, wrong | {name: put(p["out"], text) for name, text in more.items()}


def multi_run(p: Params) -> States:
    script, said = put(p["path"], f"echo {p['words']}\n"), put(p["out"], f"{p['words']}\n")
    _, wrong = text_file(p["out"], p["words"])
    return then(script, said), {name: then(script, one) for name, one in wrong.items()} | {
        "the output alone": said,
        "the script alone": script,
        "an empty script": then(put(p["path"], ""), said),
        "a script that says something else": then(put(p["path"], "echo other\n"), said),
        "the words for a script": then(put(p["path"], p["words"]), said),
        "a script that never ends": then(put(p["path"], f"echo {p['words']}; sleep 1000\n"), said),
        "the script elsewhere": then(put(f"{ELSEWHERE}/hello.sh", f"echo {p['words']}\n"), said),
    }


# VLC's files.


def vlc_playlist(p: Params) -> States:
    def listed(*films: str) -> str:
        tracks = "".join(f"<track><location>file://{HOME}/Videos/{film}</location>\n</track>" for film in films)
        whole = f'<playlist xmlns="http://xspf.org/ns/0/" version="1"><trackList>{tracks}</trackList></playlist>'
        return f'<?xml version="1.0"?>\n{whole}\n'

    films, out = p["films"], p["out"]
    _, wrong = text_file(out, listed(*films))
    texts = {
        "another film": listed("other.y4m"),
        "one film more": listed(*films, "other.y4m"),
        "each film twice": listed(*films, *films),
        "no film": listed(),
        "the lines without the rest": "".join(f"<location>file://{HOME}/Videos/{film}</location>\n" for film in films),
        "of another kind": "#EXTM3U\n" + "".join(f"file://{HOME}/Videos/{film}\n" for film in films),
        "cut short": listed(*films)[:-12],
    }
    if len(films) > 1:
        texts |= {"one film less": listed(*films[:-1]), "in the other order": listed(*reversed(films))}
    kept = ("an empty file of the name", "in another folder", "a folder of the name", "under the name in capitals")
    return put(out, listed(*films)), {name: wrong[name] for name in kept} | {
        name: put(out, one) for name, one in texts.items()
    }


def vlc_setting(p: Params) -> States:
    def lines(*settings: str) -> Do:
        return sh('printf "%s\\n" "$@" >> "$0"'.replace('"$0"', f'"{VLCRC}"'), *settings)

    key = p["key"]
    return lines(f"{key}=1"), {
        "off": lines(f"{key}=0"),
        "as a comment": lines(f"#{key}=1"),
        "another box": lines(*(f"{one}=1" for one in BOXES if one != key)),
        "every box": lines(*(f"{one}=1" for one in BOXES)),
        "misspelt": lines(f"{key}s=1"),
        "another number": lines(f"{key}=10"),
        "in another file": sh(f"echo {key}=1 >> .config/vlc/vlc-qt-interface.conf"),
    }


# Chromium, without a window where its files or the server of the pages are enough.

POST = """import http.client, json, sys, urllib.parse
for form in sys.argv[1:]:
    server = http.client.HTTPConnection("localhost", 8000)
    server.request("POST", "/", urllib.parse.urlencode(json.loads(form)))
    server.getresponse().read()
"""


def chromium_form(p: Params) -> States:
    def sent(*forms: Params) -> Do:
        return lambda sandbox: _ran(sandbox, ["python3", "-c", POST, *map(json.dumps, forms)])

    send, (first, *_) = p["send"], p["send"]
    choice, options = next((name, kind) for name, kind in p["fields"].items() if isinstance(kind, list))
    others = [{**send, choice: option} for option in options if option != send[choice]]
    return sent(send), {
        "nothing": nothing,
        "another choice": sent(others[0]),
        "every choice, the right one last": sent(*others, send),
        "twice": sent(send, send),
        "the wrong one first": sent({**send, first: "?"}, send),
        "without one field": sent({key: value for key, value in send.items() if key != first}),
        "in capitals": sent({**send, first: send[first].upper()}),
        "a blank more": sent({**send, first: f"{send[first]} "}),
        "one field more": sent({**send, "Message": "please"}),
        "only into the page": put(f"{PAGES}/sent.json", json.dumps(send)),
    }


def chromium_bookmark(p: Params) -> States:
    def marked(*pages: str, names: tuple[str, ...] = (), rest: str = "") -> Do:
        children: list[Params] = [{"name": page, "type": "url", "url": f"{SITE}/{page}"} for page in pages]
        children += [{"name": name, "type": "folder", "children": []} for name in names]
        roots = {"bookmark_bar": {"children": children, "name": "Bookmarks bar", "type": "folder"}}
        return put(f"{PROFILE}/Bookmarks", json.dumps({"roots": roots, "version": 1}, indent=3) + rest)

    page = p["page"]
    return marked(page), {
        "another page": marked("salad.html"),
        "all pages": marked(*p["pages"]),
        "a folder of its name": marked(names=(f"{SITE}/{page}",)),
        "the site": marked(""),
        "a letter more": marked(f"{page}l"),
        "twice": marked(page, page),
        "written behind the others": marked("salad.html", rest=f'\n"url": "{SITE}/{page}"\n'),
    }


def chromium_download(p: Params) -> States:
    path = f"{HOME}/Downloads/{p['file']}"
    right, wrong = text_file(path, p["text"])
    return right, wrong | {
        "not quite there": put(f"{path}.crdownload", p["text"]),
        "a second time, the first gone": put(path.replace(".", " (1)."), p["text"]),
        "the page": sh(f'mkdir -p Downloads; cp {PAGES}/index.html "$1"', path),
        "a link to the page's file": sh(f'mkdir -p Downloads; ln -s "{PAGES}/{p["file"]}" "$1"', path),
    }


def chromium_find(p: Params) -> States:
    right = p["answer"]
    answers = {
        "no answer": "",
        "another number of the page": p["wrong"][0],
        "all numbers": f"{right} or {p['wrong'][0].split()[0]}",
        "the whole page": p["pages"][p["page"]]["text"],
        "a digit more": f"{right}0",
        "a digit in front": f"1{right}",
        "a digit less": right[:-1],
        "every number": " ".join(map(str, range(300))),
        "negative": f"-{right}",
        "a part of a number": f"{right}.5",
        "a range": f"{right} to {int(right) + 50}",
    }
    return ending(Finish(right)), {name: ending(Finish(answer)) for name, answer in answers.items()}


BAR = f"""import json, sys
with open("{PROFILE}/Preferences") as file:
    settings = json.load(file)
settings.setdefault(sys.argv[1], {{}})[sys.argv[2]] = json.loads(sys.argv[3])
with open("{PROFILE}/Preferences", "w") as file:
    json.dump(settings, file, separators=(",", ":"))
"""


def chromium_bar(p: Params) -> States:
    def setting(*words: str) -> Do:
        return lambda sandbox: _ran(sandbox, ["python3", "-c", BAR, *words])

    right = setting("bookmark_bar", "show_on_all_tabs", "true")
    return right, {
        "off": setting("bookmark_bar", "show_on_all_tabs", "false"),
        "the home button": setting("browser", "show_home_button", "true"),
        "in another place": setting("bookmarks", "show_on_all_tabs", "true"),
        "written behind the others": sh(f"""printf '"show_on_all_tabs":true' >> {PROFILE}/Preferences"""),
        "the browser still open": then(right, running("chromium")),
        "as a word": setting("bookmark_bar", "show_on_all_tabs", '"true"'),
    }


def _ran(sandbox: Sandbox, command: list[str]) -> None:
    ran = sandbox.run(command)
    assert ran.status == 0, ran.err


# What nobody can do: only Fail is right.


def impossible(p: Params) -> States:
    return ending(Fail()), {
        "done": ending(Finish()),
        "in words": ending(Finish("It cannot be done here.")),
        "by its name": ending(Finish("FAIL")),
        "not ended": ending(Wait()),
        "something like it": then(sh("mkdir -p Documents; touch Documents/paid.pdf"), ending(Finish("Done."))),
    }


STATES: dict[str, Callable[[Params], States]] = {
    "editor-write": editor_write, "editor-replace": editor_replace, "editor-append": editor_append,
    "editor-delete": editor_delete, "editor-view": editor_view,
    "calculator-result": calculator_result, "calculator-mode": calculator_mode,
    "files-rename": files_rename, "files-folder": files_folder, "files-move": files_move, "files-delete": files_delete,
    "terminal-count": terminal_line, "terminal-text": terminal_line, "terminal-files": terminal_line,
    "multi-note": multi_note, "multi-page": multi_page, "multi-run": multi_run,
    "vlc-playlist": vlc_playlist, "vlc-setting": vlc_setting,
    "chromium-form": chromium_form, "chromium-bookmark": chromium_bookmark, "chromium-download": chromium_download,
    "chromium-find": chromium_find, "chromium-bar": chromium_bar,
    **{f"{domain}-impossible": impossible for domain in ("calculator", "calc", "chromium", "files", "gimp", "vlc")},
}  # fmt: skip
