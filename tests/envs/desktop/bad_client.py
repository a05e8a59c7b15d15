"""A stand-in for OSWorld's client whose metrics are what agents would like them to be."""

import sys
from pathlib import Path

from arpo.envs.evaluators import Evaluators

BAD = """
import ctypes, json, os, resource, socket, stat, subprocess, sys, time
def equal(found, wanted): return open(found).read() == open(wanted).read()
def writes(path): return bool(open(path, "w"))
def reads(path): return len(open(path, "rb").read())
def lists(path): return len(os.listdir(path))
def sees_variable(name): return name in os.environ
def is_root(_): return 0 in (os.getuid(), os.geteuid(), os.getgid())
def connects(port): return bool(socket.create_connection(("127.0.0.1", port)))
def reaches(name): return bool(socket.socket(socket.AF_UNIX).connect(name))
def makes_namespaces(_): return subprocess.run(["unshare", "--user", "true"]).returncode == 0
def takes_memory(_): return len(bytearray(8 << 30))
def takes_memory_in_parts(_):
    parts = []
    while True: parts.append(bytes(64 << 20))
def touches_memory(_): return len(b"x" * (1 << 30))
def forks_and_touches_memory(_):
    if not os.fork(): touches_memory("")
    return 1 / os.wait()[1] and 1 / 0
def fills(path):
    with open(path, "wb") as file:
        while True: file.write(bytes(1 << 20))
def waits(_): time.sleep(1000)
def spins(_):
    while True: pass
def waits_for_a_pipe(path):
    os.mkfifo(path)
    return open(path).read()
def forks(_):
    made = 0
    while True:
        try:
            if not os.fork(): time.sleep(1000)
        except OSError:
            return made
        made += 1
def crashes(_): os.kill(os.getpid(), 11)
def is_killed(_): os.kill(os.getpid(), 9)
def exits(_): os._exit(3)
def leaves(path):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        while True: time.sleep(1)
    os.makedirs(path + "/a/b")
    os.chdir(path)
    for _ in range(3000):
        os.mkdir("deep"); os.chdir("deep")
    os.chmod(path + "/a", 0)
    return 1
def processes(_): return sum(name.isdigit() for name in os.listdir("/proc"))
def ends_the_parent(_):
    for number in range(1, 65): os.kill(1, number)
    return 1
def looks_into_the_parent(_): return len(os.listdir("/proc/1/fd"))
def opens_memory_of_the_parent(_): return bool(open("/proc/1/mem", "rb"))
def takes_from_the_parent(_):
    libc, pidfd, taken = ctypes.CDLL(None), os.pidfd_open(1), 0
    for fd in range(64): taken += libc.syscall(438, pidfd, fd, 0) >= 0  # pidfd_getfd
    return taken
def lowers_limits_of_the_parent(_): return resource.prlimit(1, resource.RLIMIT_FSIZE, (0, 0)) != (0, 0)
def writes_a_byte(path): return os.write(os.open(path, os.O_CREAT | os.O_WRONLY), b"x")
def sockets(_):
    found = set()
    for fd in range(64):
        try: known = os.fstat(fd)
        except OSError: continue
        if stat.S_ISSOCK(known.st_mode): found.add(known.st_ino)
    return len(found)
def say(line, then=b""):
    for fd in range(3, 64):
        try: socket.socket(fileno=os.dup(fd)).sendall(line)
        except OSError: continue
        if then:
            heard = b""
            while b"\\n" not in heard: heard += os.read(fd, 65536) or b"\\n"
            os.write(fd, json.dumps({"id": json.loads(heard)["id"], "is": 1}).encode() + then)
def own_number():
    frame = sys._getframe()
    while "request" not in frame.f_locals: frame = frame.f_back
    return frame.f_locals["request"]["id"]
def replies_to_the_next(_):
    say(json.dumps({"id": own_number(), "is": 0.5}).encode() + b"\\n", b"\\n")
    time.sleep(1000)
def replies_ahead(_):
    say(b'{"id": null, "is": 0.5}\\n{"id": "1", "is": 1}\\n')
    time.sleep(1000)
def says_much(length): say(b'{"id": "%s", "is": [' % own_number().encode() + b"[]," * (length // 3) + b"0]}\\n")
def raises_much(length): raise ValueError("x" * length)
def says_no_number(_): return float("nan")
def says_a_long_number(_): say(b'{"id": "%s", "is": 1%s}\\n' % (own_number().encode(), b"0" * 400))
def says_no_object(_): say(b"[" * 9000 + b"\\n")
def leaves_shared_memory(_): return ctypes.CDLL(None).shmget(0, ctypes.c_size_t(1 << 20), 0o1600) >= 0
def leaves_semaphores(_): return ctypes.CDLL(None).semget(0, 1, 0o1600) >= 0
def leaves_a_queue(_): return ctypes.CDLL(None).msgget(0, 0o1600) >= 0
def leaves_a_posix_queue(_): return ctypes.CDLL(None).mq_open(b"/left", 0o102, 0o600, None) >= 0
def left(_): return sum(len(open("/proc/sysvipc/" + kind).readlines()) - 1 for kind in ("shm", "sem", "msg"))
"""
GETTERS = """
import os
def get_leads_out(env, config):
    os.symlink("/etc/passwd", os.path.join(env.cache_dir, "link"))
    open(os.path.join(env.cache_dir, "plain"), "w").write("plain")
    return os.path.join(env.cache_dir, config["name"])
def get_asks(env, config):
    return env.controller.get_file(config["path"]).decode() + env.controller.get_vm_desktop_path()
def get_nests(env, config):
    found = []
    for _ in range(config["deep"]): found = [found]
    return found
def get_is_long(env, config): return "x" * config["length"]
"""


def client_of(folder: Path) -> Evaluators:
    package = folder / "lib" / "desktop_env" / "evaluators"
    package.mkdir(parents=True)
    (package / "metrics.py").write_text(BAD)
    (package / "getters.py").write_text(GETTERS)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/lib exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return Evaluators(str(python))
