"""Walls of a sandbox that bubblewrap does not make: a filter of system calls, mounts, namespaces, privileges.

It runs inside (see inside.py), with the standard library. Every function says by OSError that the kernel lacks what it
needs.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

MOST_FILES, MOST_TERMINALS = 512, 64  # that one program may have open; of the sandbox
MOST_ENTRIES = {"/home/user": 50_000, "/tmp": 50_000, "/dev/shm": 5_000, "/run": 5_000}  # files and folders
LIBC = ctypes.CDLL(None, use_errno=True)
NO_SUID, NO_DEVICES, NO_PROGRAMS, READ_ONLY, REMOUNT, BIND, RECURSIVE = 2, 4, 8, 1, 32, 4096, 16384  # of mount
NEW_USER, NEW_PROCESSES = 0x10000000, 0x20000000  # of unshare
NEW_ANY = 0x7E020080  # every kind of namespace: user, process, network, mount, ipc, name, control group, time
OTHERS_CHILD = 0x8000  # of clone: the child is its parent's parent's, whom it sends a signal of its choice at its end
SET_DUMPABLE, KEEP_PRIVILEGES, SET_SECCOMP, DROP_BOUND, SET_NO_NEW_PRIVILEGES = 4, 8, 22, 24, 38  # of prctl
PRIVILEGES = struct.pack("II", 0x20080522, 0)  # those of this process, as capget and capset want it said
GET_SECCOMP = 21  # of prctl, too
FILTER = 2  # a kind of seccomp

# The filter. What is named here no application that was traced needs (docs/sandbox.md). Numbers: x86-64, 64-bit ARM.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
REFUSED = {
    # what desktops and the host would share: keys, a table of asynchronous requests, queues of events
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_setup": (206, 0), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    # large or young parts of the kernel
    "bpf": (321, 280), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "memfd_secret": (447, 447),
    # into other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # queues of messages, which are nobody's memory
    "mq_open": (240, 180),
    # the kernel sends any signal later: SIGCONT wakes who was stopped for a check (starter.py finds that out, too)
    "timer_create": (222, 107),
    # mounts and namespaces; files by their numbers
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # the machine's own
    "acct": (163, 89), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "settimeofday": (164, 170), "reboot": (169, 142), "syslog": (103, 116), "swapon": (167, 224), "swapoff": (168, 225),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "sethostname": (170, 161), "setdomainname": (171, 162), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "vhangup": (153, 58), "lookup_dcookie": (212, 18),
    # old ones of one machine
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None), "ustat": (136, None),
    "sysfs": (139, None), "vserver": (236, None),
}  # fmt: skip
NEWEST = 450  # calls that are younger are not there: programs know other ways
SOCKET, CLONE, CLONE3, UNSHARE, LIMIT, IOCTL = (41, 198), (56, 220), (435, 435), (272, 97), (302, 261), (16, 29)
SIGNALS = {  # to a process, by its number
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
}  # fmt: skip
FILES, CLOSE_RANGE = (72, 25), (436, 436)  # fcntl, and what closes many files
SET_SIGNAL = 10  # a command of it: which signal comes when there is something to read
SET_OWNER = (8, SET_SIGNAL, 15)  # and who gets it
SET_OWNER_TOO = (0x8901, 0x8902)  # requests that do the same
FAMILIES = (1, 2, 10, 16)  # of sockets: local, both internets, and how a program hears of its interfaces
TERMINAL_INPUT = (0x5412, 0x541C)  # requests that type into a terminal for its user

LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06  # of the filter's machine
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
Line = tuple[int, int, int, int]  # what to do; how many lines to skip where it holds and where not; a number
NUMBER, MACHINE, FIRST, SECOND = 0, 4, 16, 24  # where the call and its first arguments lie; the lower halves


def filter_program(second: bool = False) -> bytes:
    """The filter as the kernel takes it. OSError where the kernel has none, or this processor is not known.

    `second`: for gVisor's kernel, which does not keep signals from the first process of a namespace.
    """
    if platform.machine() not in MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is written for {platform.machine()}")
    _call("prctl", GET_SECCOMP, 0, 0, 0, 0)  # a kernel without filters says so here
    which, audited = MACHINES[platform.machine()]
    requests, commands = (*TERMINAL_INPUT, *(SET_OWNER_TOO if second else ())), SET_OWNER if second else (SET_SIGNAL,)
    checks = [
        _Check(SOCKET[which], FIRST, [(EQUAL, family) for family in FAMILIES], errno.EAFNOSUPPORT),
        _Check(LIMIT[which], FIRST, [(EQUAL, 0)], errno.EPERM),  # its own limits, and nobody else's
        _Check(CLONE[which], FIRST, [(ANY_BIT, NEW_ANY | (OTHERS_CHILD if second else 0))], errno.EPERM, refused=True),
        _Check(UNSHARE[which], FIRST, [(ANY_BIT, NEW_ANY)], errno.EPERM, refused=True),
        _Check(FILES[which], SECOND, [(EQUAL, one) for one in commands], errno.EPERM, refused=True),
        _Check(IOCTL[which], SECOND, [(EQUAL, request) for request in requests], errno.EPERM, refused=True),
    ]
    if second:
        checks += [_Check(one[which], FIRST, [(EQUAL, 1)], errno.EPERM, refused=True) for one in SIGNALS.values()]
    refused = {number: errno.EPERM for numbers in REFUSED.values() if (number := numbers[which]) is not None}
    refused[CLONE3[which]] = errno.ENOSYS  # its flags cannot be seen; the library then asks by clone
    if second:  # its own cannot close "all above", which GLib takes for a failure of each program that it starts
        refused[CLOSE_RANGE[which]] = errno.ENOSYS
    code: list[Line] = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, audited), _refuse(errno.ENOSYS), (LOAD, 0, 0, NUMBER)]
    code += [(ABOVE, 0, 1, NEWEST), _refuse(errno.ENOSYS)]
    for number, error in sorted(refused.items()):
        code += [(EQUAL, 0, 1, number), _refuse(error)]
    for check in checks:
        code += check.code()
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in code)


def _refuse(error: int) -> Line:
    return RETURN, 0, 0, REFUSE | error


class _Check:
    """Of one call: allowed only where one of the tests of an argument holds; or `refused` where one does."""

    def __init__(
        self, number: int, argument: int, tests: list[tuple[int, int]], error: int, refused: bool = False
    ) -> None:
        self.number, self.argument, self.tests = number, argument, tests
        ends = _refuse(error), (RETURN, 0, 0, ALLOW)
        self.otherwise, self.on_match = ends[::-1] if refused else ends

    def code(self) -> list[Line]:
        left = len(self.tests)
        body: list[Line] = [(LOAD, 0, 0, self.argument)]
        body += [(kind, left - i, 0, value) for i, (kind, value) in enumerate(self.tests)]
        body += [self.otherwise, self.on_match]
        return [(EQUAL, 0, len(body), self.number), *body]


def filter_calls(program: bytes) -> None:
    """For this process and all that it starts, for ever."""
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    _call("prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", SET_SECCOMP, FILTER, header, 0, 0)


def hide(really: bool = True) -> None:
    """Others of this user cannot look into this process."""
    _call("prctl", SET_DUMPABLE, int(not really), 0, 0, 0)


def change_user(user: int) -> None:
    """From root to another, who has the same privileges, for as long as it runs no program."""
    _call("prctl", KEEP_PRIVILEGES, 1, 0, 0, 0)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kept = ctypes.create_string_buffer(24)  # effective, permitted, inheritable: lower halves, then upper ones
    _call("capget", PRIVILEGES, kept)
    _, lower, _, _, upper, _ = struct.unpack("6I", kept)
    _call("capset", PRIVILEGES, struct.pack("6I", lower, lower, 0, upper, upper, 0))


def drop_privileges() -> None:
    """None is left, and none comes back by running a program."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _call("prctl", DROP_BOUND, capability, 0, 0, 0)
    _call("capset", PRIVILEGES, bytes(24))
    _call("prctl", SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def unshare(kinds: int) -> None:
    _call("unshare", kinds)


def mount(kind: str, place: str, flags: int = 0, data: str = "") -> None:
    _call("mount", kind.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())


def remount(place: str, data: str, flags: int = NO_SUID | NO_DEVICES) -> None:
    _call("mount", None, place.encode(), None, ctypes.c_ulong(REMOUNT | flags), data.encode())


def read_only(place: str, source: str | None = None, flags: int = NO_SUID | NO_DEVICES) -> None:
    """A place that shows itself, or another, and cannot be written."""
    _call("mount", (source or place).encode(), place.encode(), None, ctypes.c_ulong(BIND), None)
    _call("mount", None, place.encode(), None, ctypes.c_ulong(REMOUNT | BIND | READ_ONLY | flags), None)


def mask(places: Iterable[str], nothing: str) -> None:
    """Show an empty file or folder in the place of each that is there. `nothing`: an empty folder."""
    for place in places:
        if os.path.exists(place):
            read_only(place, nothing if os.path.isdir(place) else "/dev/null", flags=NO_SUID)


def become(user: int, proc: int) -> None:
    """User and group of this number, in a new user namespace. `proc`: an open /proc that can be written."""
    mine, group = os.geteuid(), os.getegid()
    unshare(NEW_USER)
    hide(False)  # else gVisor takes what /proc has of it for root's
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {mine} 1"), ("gid_map", f"{user} {group} 1")):
        try:
            fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        except FileNotFoundError:  # gVisor has no `setgroups`
            continue
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def set_kernel(name: str, value: str, proc: int) -> None:
    """A setting of this namespace's."""
    fd = os.open(f"sys/{name}", os.O_WRONLY, dir_fd=proc)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _call(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
