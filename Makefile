# `make train` and `make test` do everything on a machine with Python 3.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
# One more than cores: many tests wait for processes and for time.
WORKERS ?= 3

.PHONY: train test lint format messages docs soak browser demo bench test-versions
.DELETE_ON_ERROR:

train: $(READY)
	$(RUN) tools/train.py configs/quickstart/digit-scenes_fcn_fp16.py \
		--work-dir work_dirs/quickstart

# Every skip has its reason in the summary. Tests of the report page need
# `make browser` first.
test: $(READY)
	$(RUN) -m pytest -n $(WORKERS) --dist worksteal

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m codespell_lib

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# New texts of the code into the translations, unused ones out of them.
messages: $(READY)
	$(RUN) -m tests.messages.update_po

# HTML of both languages, below docs/_build; a warning is an error.
docs: $(READY)
	for lang in en zh_cn; do $(RUN) -m sphinx -W --keep-going -q \
		docs/$$lang docs/_build/$$lang || exit 1; done

soak: $(READY)
	$(RUN) -m pytest -m soak

# Chromium, for the tests of the report; as root it is installed for all.
browser: $(READY)
	requirements/browser.sh $(VENV)

# Downloads several torches into .venvs; takes hours and 20 gigabytes.
test-versions:
	$(PYTHON) tests/versions/run_matrix.py --workers $(WORKERS)

# Planted faults, with stock mmengine and with mmstable; under 5 minutes.
demo: $(READY)
	$(RUN) benchmarks/demo.py

# All benchmarks in one table; QUICK=1 for a short run, and
# PEERS=PYTHON of benchmarks/make_peers_venv.sh to compare with more trainers.
bench: $(READY)
	$(RUN) benchmarks/bench.py $(if $(QUICK),--quick) \
		$(if $(PEERS),--peers $(PEERS))

$(READY): setup.py $(wildcard requirements/*.sh) $(wildcard requirements/*.txt)
	requirements/install.sh $(PYTHON) $(VENV)
	@touch $@
