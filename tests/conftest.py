"""Strict JAX for every test: 8 CPU devices, no silent rank promotion, warnings are errors (pyproject)."""

import atexit
import os
import shutil
import signal
import tempfile

# A shell that starts this in the background has interrupts ignored, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# Compiling is most of what the tests do: machine code that is not optimised halves it. The programs are the same.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

# Many tests, and the processes they start, compile the same programs: one store for this run of the suite alone.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _store = tempfile.mkdtemp(prefix="jaxdp-tests-")
    atexit.register(shutil.rmtree, _store, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _store
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    # Who reads an entry while another process writes it compiles it instead, and JAX warns of that (pyproject too).
    os.environ["PYTHONWARNINGS"] = "ignore:Error reading persistent compilation cache entry"
