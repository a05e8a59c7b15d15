"""Tasks for Chromium, on pages of a small web server that a setup step starts in the sandbox.

What a form sends is added to SENT, a line each time: an order is not undone by the next. Pages are laid out by the
pixel, so that an expert knows where to click.
"""

import html
import json

from arpo.agent.actions import Finish, Type
from arpo.envs.desktop.families.base import DesktopFamily, Params, impossible
from arpo.envs.desktop.families.moves import Look, Moves, click, press
from arpo.envs.desktop.families.parts import HOME, check, every, launch, python_says, run, says, shell_says, task, write
from arpo.types import Json

APPS = ("chromium",)
SITE, PAGES, SENT = "http://localhost:8000", f"{HOME}/.pages", "/tmp/sent.json"
PROFILE = f"{HOME}/.config/chromium/Default"
TOP, FIRST, ROW, FIELD_X = 87, 110, 50, 300  # of the page in the window; of the first row, the next, and its field
# It goes into the background when it can be reached, so the step ends when the pages are there.
SERVER = f"""import http.server, json, os, urllib.parse
class Pages(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open("{SENT}", "a") as file:
            print(json.dumps(dict(urllib.parse.parse_qsl(sent)), sort_keys=True), file=file)
        self.send_response(303)
        self.send_header("Location", "/thanks.html")
        self.end_headers()
    def log_message(self, *said):
        pass
os.chdir("{PAGES}")
server = http.server.ThreadingHTTPServer(("localhost", 8000), Pages)
os.fork() and os._exit(0)
server.serve_forever()
"""
BOOKMARKED = """import json, sys
def urls(entry):
    for one in entry.get("children", []):
        yield from [one["url"]] if one["type"] == "url" else urls(one)
with open(sys.argv[1]) as file:
    print(*(url for root in json.load(file)["roots"].values() for url in urls(root)), sep="\\n")
"""
BAR_SHOWN = """import json, sys
with open(sys.argv[1]) as file:
    print(json.load(file)["bookmark_bar"]["show_on_all_tabs"] is True)
"""


def _form(p: Params) -> Json:
    return task(p["say"], _config(_form_page(p)), says(["cat", SENT], json.dumps(p["send"], sort_keys=True) + "\n"))


def _form_script(look: Look, p: Params) -> Moves:
    box = look.window(p["title"])
    for row, (name, kind) in enumerate(p["fields"].items()):
        value = p["send"].get(name)
        if value is None:
            continue
        y = TOP + FIRST + ROW * row
        yield from click(f"Go to the field {name}.", box, FIELD_X, y)
        if isinstance(kind, list):
            yield f"Choose {value}.", Type(f"{value}\n")
        elif kind == "text":
            yield f"Write {value}.", Type(value)
    yield from click("Send the form.", box, FIELD_X, TOP + FIRST + ROW * len(p["fields"]))
    look.window("Thank you")
    look.file(SENT, "}")


def _bookmark(p: Params) -> Json:
    saved = python_says(BOOKMARKED, f"{SITE}/{p['page']}\n", f"{PROFILE}/Bookmarks")
    later = {
        "postconfig": [{"type": "sleep", "parameters": {"seconds": 3}}]
    }  # the browser takes its time to write them
    return task(p["say"], _config(_site(p["pages"]), p.get("start") or p["page"]), saved | later)


def _bookmark_script(look: Look, p: Params) -> Moves:
    box = look.window(p["pages"][p.get("start") or p["page"]]["title"])
    if "start" in p:
        yield from _follow(look, box, p["pages"], p["start"], p["page"])
    yield from press("Bookmark this page.", "ctrl d")
    yield from press("The name is fine.", "enter")
    look.file(f"{PROFILE}/Bookmarks", p["page"])


def _open(p: Params) -> Json:
    rules = {"type": "url", "urls": [f"{SITE}/{page}" for page in p["tabs"]]}
    tabs = check("is_expected_tabs", {"type": "open_tabs_info"}, rules)
    return task(p["say"], _config(_site(p["pages"]), p["way"][0]), tabs)


def _open_script(look: Look, p: Params) -> Moves:
    box = look.window(p["pages"][p["way"][0]]["title"])
    if p["new"]:
        yield from press("Open a new tab.", "ctrl t")
        look.window("New Tab")
        yield from press("Go to the address bar.", "ctrl l")
        yield "Write the address there.", Type(f"localhost:8000/{p['way'][1]}\n")
        look.window(p["pages"][p["way"][1]]["title"])
        return
    for here, there in zip(p["way"], p["way"][1:], strict=False):
        yield from _follow(look, box, p["pages"], here, there)


def _download(p: Params) -> Json:
    return task(
        f"Download the file {p['file']} from this page; it belongs into the folder Downloads.",
        [write(f"{PAGES}/{p['file']}", p["text"]), *_config(_site(p["pages"]))],
        shell_says('test ! -L "$1" && cat "$1"', p["text"], f"{HOME}/Downloads/{p['file']}"),
    )


def _download_script(look: Look, p: Params) -> Moves:
    box = look.window(p["pages"]["index.html"]["title"])
    row = [link for link, _ in p["pages"]["index.html"]["links"]].index(p["file"])
    yield from click(f"Click the link {p['file']}.", box, 60, TOP + FIRST + ROW * row)
    look.file(f"{HOME}/Downloads/{p['file']}", p["text"][-8:])


def _find(p: Params) -> Json:
    answer = check("check_numbers", {"type": "answer"}, {"expected": [int(p["answer"])]})
    return task(p["say"], _config(_site(p["pages"])), answer)


def _find_script(look: Look, p: Params) -> Moves:
    box = look.window(p["pages"]["index.html"]["title"])
    yield from _follow(look, box, p["pages"], "index.html", p["page"])
    yield "The page says it.", Finish(p["answer"])


def _bar(p: Params) -> Json:
    shown = every(python_says(BAR_SHOWN, "True\n", f"{PROFILE}/Preferences"), shell_says("pgrep -c chromium", "0\n"))
    return task(
        "Let the browser show its bookmarks bar on all pages, and close the browser.", _config(_site(NEWS)), shown
    )


def _bar_script(look: Look, p: Params) -> Moves:
    look.window("News")
    yield from press("Show the bookmarks bar.", "ctrl shift b")
    yield from press("Close the browser.", "ctrl shift w")
    look.gone("Chromium")
    look.says("pgrep -c chromium; true", "0\n")


def _follow(look: Look, box: tuple[int, int, int, int], pages: Params, here: str, there: str) -> Moves:
    row = [page for _, page in pages[here]["links"]].index(there)
    yield from click(f"Follow the link to {pages[there]['title']}.", box, 60, TOP + FIRST + ROW * row)
    look.window(pages[there]["title"])


def _config(pages: dict[str, str], start: str = "index.html") -> list[Json]:
    return [
        *(write(f"{PAGES}/{name}", content) for name, content in pages.items()),
        run("sh", "-c", 'exec python3 -c "$1" < /dev/null > /dev/null 2>&1', "serve", SERVER),
        launch("chromium", "--remote-debugging-port=1337", f"{SITE}/{start}"),
    ]


def _form_page(p: Params) -> dict[str, str]:
    rows = [(html.escape(name), _field(name, kind)) for name, kind in p["fields"].items()]
    page = _page(p["title"], p["text"], [*rows, ("", f"<button>{p['button']}</button>")])
    return {
        "index.html": page.replace("<main>", '<main><form method="post" autocomplete="off">'),
        "thanks.html": _page("Thank you", "We have got it.", []),
    }


def _field(name: str, kind: str | list[str]) -> str:
    if isinstance(kind, list):
        options = "".join(f"<option>{one}</option>" for one in ["", *kind])
        return f'<select name="{name}">{options}</select>'
    return f'<input name="{name}" type="{kind}">'


def _site(pages: Params) -> dict[str, str]:
    return {
        name: _page(page["title"], page["text"], [(f'<a href="{to}">{text}</a>', "") for text, to in page["links"]])
        for name, page in pages.items()
    }


def _page(title: str, text: str, rows: list[tuple[str, str]]) -> str:
    lines = "".join(
        f'<p style="top:{FIRST - 20 + ROW * i}px">{left}<span>{field}</span></p>'
        for i, (left, field) in enumerate(rows)
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>body{{font:20px sans-serif;margin:20px}}"
        "p{position:absolute;left:20px;margin:0;line-height:40px}span{position:absolute;left:230px;white-space:nowrap}"
        "h1{font-size:28px;margin:0}input,select,button{font:18px sans-serif;min-width:150px}"
        f"</style><h1>{title}</h1>{text}<main>{lines}</main>"
    )


RECIPES = {
    "index.html": {"title": "Recipes", "text": "What shall we cook?",
                   "links": [("Lentil soup", "soup.html"), ("Apple cake", "cake.html"), ("Rice salad", "salad.html")]},
    "soup.html": {"title": "Lentil soup", "text": "Cook 250 g of lentils for 40 minutes.",
                  "links": [("All recipes", "index.html"), ("Bread for it", "bread.html")]},
    "cake.html": {"title": "Apple cake", "text": "Bake it at 175 degrees for 55 minutes.",
                  "links": [("All recipes", "index.html")]},
    "salad.html": {"title": "Rice salad", "text": "Needs two peppers and 90 g of corn.",
                   "links": [("All recipes", "index.html")]},
    "bread.html": {"title": "Flat bread", "text": "Flour, water, salt.", "links": [("All recipes", "index.html")]},
}  # fmt: skip
NEWS = {
    "index.html": {"title": "News", "text": "From our town.",
                   "links": [("New bridge opened", "bridge.html"), ("Library closed", "library.html")]},
    "bridge.html": {"title": "New bridge opened", "text": "It is 212 metres long and cost 9 million.",
                    "links": [("Home", "index.html")]},
    "library.html": {"title": "Library closed", "text": "Until 14 May; books may be returned at 3 Hill Road.",
                     "links": [("Home", "index.html")]},
}  # fmt: skip
DATA = {
    "index.html": {"title": "Open data", "text": "Take what you need.",
                   "links": [("rainfall.dat", "rainfall.dat"), ("traffic.dat", "traffic.dat")]},
}  # fmt: skip
TEA = {"title": "Tea shop", "text": "Order here.", "button": "Order",
       "fields": {"Name": "text", "Tea": ["Assam", "Green", "Mint"], "Packets": "text"}}  # fmt: skip
COURSE = {"title": "Courses", "text": "Put your name down.", "button": "Register",
          "fields": {"First name": "text", "Family name": "text", "Day": ["Monday", "Thursday"],
                     "Beginner": "checkbox"}}  # fmt: skip

FAMILIES = (
    DesktopFamily("chromium-form", APPS, _form, _form_script, (
        {**TEA, "send": {"Name": "Ines", "Tea": "Mint", "Packets": "3"},
         "say": "Order three packets of mint tea on this page, for Ines."},
        {**COURSE, "send": {"First name": "Omar", "Family name": "Haddad", "Day": "Thursday", "Beginner": "on"},
         "say": "Register Omar Haddad, a beginner, for the course on Thursday."},
        {**TEA, "send": {"Name": "Bo", "Tea": "Assam", "Packets": "12"},
         "say": "Bo wants 12 packets of Assam. Fill in the form and send it."},
    )),
    DesktopFamily("chromium-bookmark", APPS, _bookmark, _bookmark_script, (
        {"pages": RECIPES, "page": "cake.html", "say": "Bookmark this page."},
        {"pages": RECIPES, "start": "index.html", "page": "soup.html", "say": "Bookmark the recipe for lentil soup."},
    )),
    DesktopFamily("chromium-open", APPS, _open, _open_script, (
        {"pages": RECIPES, "way": ["index.html", "salad.html"], "tabs": ["salad.html"], "new": False,
         "say": "Show me the recipe for rice salad."},
        {"pages": RECIPES, "way": ["cake.html", "index.html", "soup.html", "bread.html"], "tabs": ["bread.html"],
         "new": False, "say": "There is a bread that goes with the lentil soup on this site. Open its recipe."},
        {"pages": NEWS, "way": ["index.html", "library.html"], "tabs": ["index.html", "library.html"], "new": True,
         "say": "Keep this page open and open localhost:8000/library.html in a second tab."},
    )),
    DesktopFamily("chromium-download", APPS, _download, _download_script, (
        {"pages": DATA, "file": "traffic.dat", "text": "street,cars\nMain,5120\nMill,310\n"},
        {"pages": DATA, "file": "rainfall.dat", "text": "month,mm\nMay,61\nJune,48\n"},
    )),
    DesktopFamily("chromium-find", APPS, _find, _find_script, (
        {"pages": NEWS, "page": "bridge.html", "answer": "212", "wrong": ["9 million"],
         "say": "How long is the new bridge, in metres? Finish with the number."},
        {"pages": RECIPES, "page": "cake.html", "answer": "175", "wrong": ["55"],
         "say": "At how many degrees does one bake the apple cake? Finish with the number alone."},
    )),
    DesktopFamily("chromium-bar", APPS, _bar, _bar_script, ({},), held_out=0),
    impossible("chromium-impossible", APPS, lambda p: _config(_form_page(p)),
        {**TEA, "say": "Order a packet of Darjeeling for Kim on this page; Kim takes no other tea."},
        {**COURSE, "say": "Register Lena Vogt for the course on Sunday here; she has no time on other days."},
    ),
)  # fmt: skip
