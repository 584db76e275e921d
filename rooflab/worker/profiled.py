"""Counters by Nsight Compute, which must start the process that it counts.

``count`` starts ``ncu``; ``ncu`` starts this module as a program, which launches the kernel.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rooflab.devices.base import Counters
from rooflab.devices.cuda import ncu
from rooflab.devices.cuda.counters import interpret
from rooflab.errors import KernelError
from rooflab.files import package_root
from rooflab.worker.messages import Count, Job

_START: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from rooflab.worker.profiled import launch; launch(sys.argv[2])"
)


def count(program: str, job: Job, request: Count) -> Counters:
    """Counters of one launch by ``program``, which is ncu.

    Raises ``UnavailableError`` if it counts nothing, ``KernelError`` if the kernel fails.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "request"
        file.write_bytes(pickle.dumps((job, request)))
        command = [sys.executable, "-P", "-c", _START, str(package_root()), str(file)]
        values = ncu.count(program, command, cold=job.config.cache == "cold")
        counted = file.with_name("launches")
        if not counted.exists():
            raise KernelError(f"{request.kernel} failed under ncu, and was not counted")
        return interpret(values, int(counted.read_text()))


def launch(path: str) -> None:
    """Launch the kernel of the request in ``path`` between profiler start and stop."""
    from rooflab.measure.counting import launches
    from rooflab.worker.server import find_kernel, open_job
    from rooflab.workloads import rebuild

    file = Path(path)
    job, request = pickle.loads(file.read_bytes())
    os.environ.update(job.environment)
    device, registry, _ = open_job(job)
    kernel = find_kernel(registry, device.kind, request.problem.workload, request.kernel)
    problem = rebuild(request.problem)
    ready = launches(device, problem, kernel, request.variant, job.config)
    profiler = device.arrays.cuda.profiler
    profiler.start()
    for one in ready:
        one()
    device.synchronize()
    profiler.stop()
    file.with_name("launches").write_text(str(len(ready)))
