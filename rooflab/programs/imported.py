"""The roofline of a program that another profiler recorded, here or elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rooflab.devices.cuda import ncu
from rooflab.devices.cuda.replay import TIME
from rooflab.devices.records import Recording, of_one_device
from rooflab.devices.registry import open_device, resolve
from rooflab.errors import RooflabError, UnavailableError, UsageError
from rooflab.measure.levels import roofs
from rooflab.model.roofline import Roofline
from rooflab.programs import imports
from rooflab.programs.groups import grouped
from rooflab.programs.labels import with_parts
from rooflab.programs.parts import part_of
from rooflab.programs.profile import Profile, Roofs, built
from rooflab.programs.session import Findings
from rooflab.runs.manifest import DeviceRecord
from rooflab.runs.store import RunData
from rooflab.version import __version__


def imported(path: Path, device: RunData | None = None, inside: str = "") -> Profile:
    """The run of what another profiler wrote to ``path``, or of what was ``inside`` of a range.

    ``device`` is a run of rooflab's whose roofs hold; without one those of this machine's GPU, if
    it has the name that the file says. Raises ``RunError`` if the file cannot be read, and
    ``UsageError`` for a run of another device.
    """
    recording = imports.load(path)
    if inside:
        recording = part_of(recording, inside)
    return of_recording(recording, path.name, device, [str(path)], here=False)


def binary(program: Sequence[str], device: RunData | None = None) -> tuple[Profile, int]:
    """Run a program that is not Python under Nsight Compute; its run, and its exit code.

    Raises ``UnavailableError`` without ncu, and ``UsageError`` if nothing was launched.
    """
    path = shutil.which(program[0]) or shutil.which(str(Path(program[0]).absolute()))
    if path is None:
        raise UsageError(f"{program[0][:200]} is not a program: make it executable (chmod +x)")
    found = ncu.find()
    if found is None:
        raise UnavailableError(
            "programs that are not Python are counted by Nsight Compute (ncu), which is not "
            "installed: https://developer.nvidia.com/nsight-compute"
        )
    with TemporaryDirectory() as folder:
        table = Path(folder) / "launches.csv"
        metrics = ",".join([*ncu.metrics(found), TIME])
        options = ["--csv", "--page", "raw", "--log-file", str(table), "--metrics", metrics]
        options += ["--target-processes", "all", "--clock-control", "none"]
        code = subprocess.run([found, *options, path, *program[1:]], check=False).returncode
        if not table.is_file():
            raise UsageError(f"ncu wrote nothing on {program[0][:200]}: did it start?")
        recording = imports.load(table)
    return of_recording(recording, Path(path).name, device, program), code


def of_recording(
    recording: Recording,
    name: str,
    device: RunData | None,
    command: Sequence[str],
    *,
    here: bool = True,
) -> Profile:
    """The run of a recording that another profiler made, ``here`` or elsewhere.

    Of a GPU elsewhere only what all of its name have in common is known.
    """
    notes = dict.fromkeys(recording.notes)
    known = _roofs(recording, device)
    roofs_of = device.path.name if device else "" if here else THIS_MACHINE
    if roofs_of:
        known = _of_model(known)
    if not known.roofline.ceilings:
        notes[
            f"The roofs of {recording.device_name or 'its GPU'} are not known here: give a run of "
            "that GPU (--roofs RUN)"
        ] = None
    recording = replace(recording, launches=with_parts(recording.launches))
    recording = of_one_device(recording, notes)
    groups = grouped(recording.launches, max(1, len(recording.steps)))
    found = Findings(recording, groups, notes=notes)
    return built(found, known, name, ("rooflab", "profile", *command), roofs_of)


THIS_MACHINE: Final = "this machine"

_OF_MODEL: Final = frozenset(
    {
        "name",
        "compute_capability",
        "sm_count",
        "cores",
        "memory_total",
        "memory_bus_width",
        "l2_cache",
        "shared_memory_per_block",
        "sm_clock_max",
        "memory_clock_max",
    }
)
"""Facts of all GPUs of a name; drivers, limits and temperatures are those of one."""


def _of_model(known: Roofs) -> Roofs:
    """Without what is only true of the GPU whose roofs they are, and of its host."""
    facts = {name: fact for name, fact in known.device.facts.items() if name in _OF_MODEL}
    device = known.device.model_copy(update={"facts": facts})
    return Roofs(device, known.roofline, {"rooflab": __version__}, {})


def _roofs(recording: Recording, device: RunData | None) -> Roofs:
    if device is not None:
        manifest = device.manifest
        name = manifest.device.name
        if manifest.device.kind != "cuda" or recording.device_name not in ("", name):
            other = recording.device_name or "a GPU"
            raise UsageError(
                f"{device.path} is of {name}, and the file of {other}: their roofs differ"
            )
        return Roofs(manifest.device, manifest.roofline, manifest.versions, manifest.host)
    try:
        here = open_device(resolve("auto")[0])
        if here.kind == "cuda" and recording.device_name in ("", here.name):
            return Roofs.of(here, roofs(here))
    except RooflabError:  # there is none
        pass
    name = recording.device_name or "a GPU"
    record = DeviceRecord(id="cuda:0", kind="cuda", name=name, facts={})
    return Roofs(record, Roofline(()), {}, {})
