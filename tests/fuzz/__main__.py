"""`python -m fuzz`: see the package."""

import argparse
import json
import secrets
import sys

from fuzz import once, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--only", nargs="+", default=[], metavar="TARGET")
    parser.add_argument("--again", metavar="SEED", help="of a failure")
    wanted = parser.parse_args()
    if wanted.again:
        failures = once(wanted.again).failures
        print(failures[0]["reason"] if failures else "it ends as it should")
    else:
        said = report(wanted.seconds, wanted.seed, wanted.only)
        failures = said["failures"]
        print(json.dumps(said, indent=1))
    sys.exit(1 if failures else 0)


main()
