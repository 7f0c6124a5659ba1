# gpupool. `make test` and `make demo` do all set-up themselves and say what they install, and how long they take.

CARGO ?= cargo
PROFILE ?= debug

.PHONY: help setup build test demo clients bench packages packages-test images soak test-gpu lint deny man-check ptx-check clean

help:
	@echo 'make test        everything that is checked: builds, then all tests      (~19 min on 2 cores, first time)'
	@echo 'make demo        a whole cluster on this machine, with real jobs; root   (~5 min on 2 cores, first time)'
	@echo 'make clients     heavy programs of others (MPI, PyTorch, notebooks, workflows) against a pool; root. Installs and removes them (PARTY=NAME for one)'
	@echo 'make bench       the promises measured, each beside its floors and beside Slurm  (~15 min on 2 cores, first time); root'
	@echo 'make packages    deb and rpm into target/packages                        (~10 min on 2 cores, first time)'
	@echo 'make packages-test  these packages installed, upgraded under a job and removed in fresh Debian roots; root  (~5 min more)'
	@echo 'make images      OCI images of the controller and of a whole pool to try, by podman, from these packages'
	@echo 'make build       all programs into target/debug                          (~5 min on 2 cores, first time)'
	@echo 'make soak        a hostile user (root) and a lying node, then property tests with new seeds (until one fails, or SOAK_SECS=600)'
	@echo 'make test-gpu    the GPUs of this machine through a pool of it; root. Touches no MIG, clocks or resets (docs/gpu-runs.md)'
	@echo 'make lint        clippy over everything'
	@echo 'make deny        known faults in libraries, from rustsec.org; needs cargo-deny (cargo install --locked cargo-deny) and github.com'
	@echo 'make man-check   the hand-written man pages through mandoc or groff'
	@echo 'make ptx-check   the kernels of the GPU checks through NVIDIA'"'"'s assembler, where there is one (PTXAS=PATH)'
	@echo 'make setup       only look for, and install, what the others need'

setup:
	@tests/setup.sh build test demo

# All but the experiments of gsim-lab, which are built by `cargo build -p gsim-lab`.
build:
	@tests/setup.sh build
	$(CARGO) build

test:
	@tests/setup.sh build test
	@CARGO='$(CARGO)' tests/run.sh

demo:
	@tests/setup.sh build demo
	@echo 'demo: building all programs (5 min on 2 cores the first time, seconds later)'
	$(CARGO) build
	@tests/demo.sh target/debug

# PARTY names one of tests/clients/*.sh.
clients:
	@tests/setup.sh build
	$(CARGO) build
	@tests/clients.sh target/debug $(PARTY)

# SCENARIO names what is to be measured alone; benches/README.md lists them.
bench:
	@tests/setup.sh build
	@echo 'bench: building with optimisation (8 min on 2 cores the first time), then 5 min of measuring'
	$(CARGO) build --release
	target/release/gpupool-bench $(SCENARIO)

packages:
	@tests/setup.sh build packages
	@echo 'packages: building with optimisation (8 min on 2 cores the first time), then 2 min of packing'
	$(CARGO) build --release --locked
	@CARGO='$(CARGO)' packaging/build.sh target/release

packages-test: packages
	@tests/setup.sh packages-test
	@CARGO='$(CARGO)' tests/packages.sh target/release

images: packages
	@tests/setup.sh images
	@packaging/images.sh

soak:
	@tests/setup.sh build
	@CARGO='$(CARGO)' tests/soak.sh

test-gpu:
	@tests/setup.sh build
	@echo 'test-gpu: building with optimisation (8 min on 2 cores the first time)'
	$(CARGO) build --release
	@target/release/gpupool-test-gpu

lint:
	@tests/setup.sh build
	$(CARGO) clippy --workspace --all-targets

deny:
	$(CARGO) deny check advisories sources

man-check:
	@tests/man-check.sh

ptx-check:
	@tests/ptx-check.sh

clean:
	$(CARGO) clean
