"""The viewer: what runs hold as a web page. `arpo view` serves it, `arpo report` puts it into one file.

look.py, episodes.py   from a run's folder to plain JSON: curves, tasks, lists; one episode, its group
decoding.py            sampled tokens as pieces of text
site.py                what the page may ask for, by its address
serve.py               a server on loopback
static.py              the same answers as files: a folder, or one HTML file
page/                  the page, plain JavaScript without a build step
"""
