# Two commands do all the set-up on a fresh machine: `make demo` and `make test`. Only python3 and make are assumed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test install lint constraints clean

help:
	@echo "make demo     train the small agent that comes with arpo on the embedded desktop: some 10 minutes; see demo/"
	@echo "make test     lint, types and all tests"
	@echo "make install  only the set-up: .venv with arpo in it"

demo: install
	rm -rf demo
	$(BIN)/arpo eval base --tasks demo --temperature 1.0 --run-dir demo/base --pictures demo
	@echo "Look at demo/success.gif and demo/failure.gif. Now it is trained on these tasks, in about 8 minutes."
	$(BIN)/arpo train pocket run_dir=demo/run

test: install lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto  # several processes with several threads each would fight for the cores

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: .venv/installed

# The stamp makes a second call free; a change of either file installs again.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "arpo needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up .venv: once, a minute or two"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Writes constraints.txt anew from what is installed now.
constraints:
	{ echo "# Exact versions for a repeatable install; re-made by \`make constraints\`."; \
	  $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.tmp && mv constraints.tmp constraints.txt

clean:
	rm -rf .venv demo build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
