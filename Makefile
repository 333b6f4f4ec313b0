# One target for each task; scripts/ does the work.
.DEFAULT_GOAL := help
.PHONY: help setup ui run test fuzz soak check bench bench-llama pictures mac-check arm-test metal-test sanitize app

# Models that bench measures; override as in: make bench TARGET=qwen.gguf DRAFT=small.gguf
TARGET ?= smollm2-135m-instruct-q4_1
DRAFT ?=

help: ## List these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

setup: ## Install what is missing on this machine, and the default model
	@scripts/setup run

ui: ## Build the user interface
	@scripts/setup check
	@scripts/build-ui

run: ## Set up, then open the window (without a display: answer in the terminal)
	@scripts/setup run
	@scripts/run

test: ## Set up, then run every test: Rust, TypeScript, browser, real window
	@scripts/setup test
	@scripts/test

fuzz: ## Fuzz the readers of untrusted input for longer than test does (ONLY=gguf, SECONDS=300)
	@scripts/setup check
	@scripts/fuzz long "$(ONLY)" "$(SECONDS)"

soak: ## Run 500 turns on the default model; compare memory and latency (TURNS=500)
	@scripts/setup run
	@scripts/soak $(TURNS)

check: ## Check format, lints, types, layers, prose, licences and advisories; warnings are errors
	@scripts/setup check
	@scripts/check

bench: ## Measure methods and passes (TARGET=..., DRAFT=..., LLAMA=1 for llama.cpp too)
	@scripts/setup run
	@scripts/bench "$(TARGET)" "$(DRAFT)" "$(LLAMA)"

bench-llama: ## Measure llama.cpp's speedups on the same prompts (TARGET=..., DRAFT=...)
	@scripts/bench-llama "$(TARGET)" "$(DRAFT)"

pictures: ## Take the README's pictures from the real window (TARGET=file.gguf DRAFT=file.gguf)
	@scripts/setup test
	@scripts/pictures "$(TARGET)" "$(DRAFT)"

mac-check: ## Type-check everything for Apple Silicon, also on Debian
	@scripts/mac-check

arm-test: ## Test the CPU kernels on ARM, under emulation on other machines
	@scripts/arm-test

metal-test: ## Test the Metal kernels on a simulated GPU, on any machine (ONLY=products)
	@scripts/setup metal-test
	@scripts/metal-test $(ONLY)

sanitize: ## Test the unsafe code under AddressSanitizer, ThreadSanitizer and Miri (ONLY=thread)
	@scripts/setup check
	@scripts/sanitize $(ONLY)

app: ## Build the bundle: .app and .dmg on a Mac, .deb on Debian
	@scripts/setup run
	@scripts/app
