"""Two minutes of bad luck (benchmarks/soak.py): no score is wrong, no episode is lost, nothing of ours is left over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "soak.py"

# Run as the root of a user namespace, so that anybody may mount. The shell is the stranger: it mounts and starts
# something outside, and takes down what it had mounted before, between the two times that the other counts.
STRANGER = """
mkdir -p theirs ours gone
mount -t tmpfs gone gone
coproc SOAK { "$0" -c "$1" "$2"; }
soak=$SOAK_PID
read line <&"${SOAK[0]}"
mount -t tmpfs theirs theirs
umount gone && rmdir gone
sleep 1000 & stranger=$!
echo go >&"${SOAK[1]}"
cat <&"${SOAK[0]}"
kill $stranger
wait $soak
"""
OURS = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
from soak import keep_apart, left_over, things
apart = keep_apart()
before = things(apart)
print("begun", flush=True)
sys.stdin.readline()
now = things(apart)
print(json.dumps([len(before["mounts"] - now["mounts"]), left_over(before, now)]), flush=True)
subprocess.run(["mount", "-t", "tmpfs", "ours", "ours"], check=True)
subprocess.run(["sh", "-c", "sleep 1000 & echo $! > pid"], check=True)  # its parent has ended
print(json.dumps(left_over(before, things(apart))), flush=True)
subprocess.run(["sh", "-c", "kill $(cat pid)"], check=True)
"""


@pytest.mark.desktop
def test_what_strangers_mount_and_start_is_not_counted_and_what_we_do_is(tmp_path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", STRANGER]
    ran = subprocess.run(
        [*command, sys.executable, OURS, SCRIPT.parent], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    (gone, after_theirs), after_ours = map(json.loads, ran.stdout.splitlines())
    assert gone == 1  # else this shows nothing of what vanishes
    assert after_theirs == {}
    assert {name: len(left) for name, left in after_ours.items()} == {"mounts": 1, "processes": 1}


@pytest.mark.heavy
@pytest.mark.desktop("mousepad", "galculator", "pcmanfm", "libreoffice", "chromium", "xterm")
def test_two_minutes_of_random_actions_and_kills() -> None:
    soak = subprocess.run([sys.executable, SCRIPT, "--minutes", "2"], capture_output=True, text=True)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    report = json.loads(soak.stdout)
    assert report["valid"] + report["given up"] == report["episodes"] > 16
    assert report["right"] == report["valid"] > report["solved"] > 0
    assert set(report["killed"]) == {"Xvfb", "application", "worker"}
    assert report["attempts"]["env_error"] > 0  # the kills were felt
