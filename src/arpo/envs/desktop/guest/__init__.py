"""What runs inside a sandbox, in another process than ours. They travel as text; arpo imports none of them.

    inside.py  screen.py  programs.py    a desktop's resident process, under the system's Python, as the package `guest`
    pyautogui_calls.py                   the module `pyautogui` of a desktop's Python
    accessibility.py                     run in a desktop to read its accessibility tree
    bin/                                 first on the PATH of a desktop: `google-chrome`, `sudo`, `apt` (shims.py)
    serving.py                           how a process in a sandbox answers questions, each in a child with limits
    judge_worker.py                      checkers of ours (../checks), under arpo's own Python
    osworld_worker.py                    metrics and getters of OSWorld's client, under the client's Python
    osworld_setup.py                     the client itself, for `env.name=osworld`: prepares a task, fetches results

Each imports the standard library, what its interpreter has (Xlib, gi, the client, arpo), and the files that travel with
it.
"""
