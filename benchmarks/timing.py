"""How everything here is timed: interleaved, best of several, in processes of their own."""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    "jax",
    "numpy",
    "particles",
    "cuthbert",
    "blackjax",
    "numba",
    "scipy",
    "scikit-learn",
    "bkmeans",
]


@dataclass(frozen=True)
class Sample:
    """Wall-clock and processor seconds of repeated calls."""

    wall: list[float]
    cpu: list[float]

    @property
    def best(self) -> float:
        return min(self.wall)

    @property
    def spread(self) -> float:
        """Median over best: far above 1 when something disturbed the measurement."""
        return statistics.median(self.wall) / self.best

    @property
    def cores(self) -> float:
        """Processor time over wall-clock time of the best call."""
        return self.cpu[self.wall.index(self.best)] / self.best


def interleaved(
    contestants: dict[str, Callable[[], Any]], *, rounds: int, least: int, seconds: float
) -> dict[str, Sample]:
    """Call the contestants in turn, so that a disturbance meets them all.

    One uncounted call each comes first and compiles. Then rounds follow until there are
    ``rounds`` of them, or until ``seconds`` have passed and there are at least ``least``.
    """
    for call in contestants.values():
        call()
    samples = {name: Sample([], []) for name in contestants}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= least and time.perf_counter() - start > seconds:
            break
        for name, call in contestants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            samples[name].cpu.append(time.process_time() - cpu)
            samples[name].wall.append(time.perf_counter() - wall)
    return samples


def fresh(task: str, *, double: bool = False, limit: float = 600, **arguments: Any) -> Any:
    """Call ``module:function`` in a new process; arguments and result travel as JSON.

    The process has double precision on or off from its start, compiles everything anew, and
    keeps JAX to the processor, where the peers are.
    """
    settings = {
        "JAX_ENABLE_X64": "1" if double else "0",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.timing", task, json.dumps(arguments)],
        cwd=ROOT,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        timeout=limit,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{task} ended with exit status {done.returncode}; see above")
    return json.loads(done.stdout.splitlines()[-1])


def progress(message: str) -> None:
    """Say on stderr what is being measured."""
    print(f"  {message}", file=sys.stderr, flush=True)


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes.

    Linux hands ``ru_maxrss`` down to a new program, so a child of a large process would seem
    large; ``VmHWM`` starts anew.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores usable": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version_of(name) for name in ["covey", *PACKAGES]},
    }


def version_of(package: str) -> str:
    """Version of a package, or that it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    description = Path("/proc/cpuinfo")
    if description.exists():
        for line in description.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _main(task: str, arguments: str) -> None:
    module, _, function = task.partition(":")
    result = getattr(import_module(module), function)(**json.loads(arguments))
    print(json.dumps(result, default=vars))


if __name__ == "__main__":
    _main(*sys.argv[1:])
