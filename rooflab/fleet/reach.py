"""How hosts are reached, from a user's words."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rooflab.devices.open import ALL
from rooflab.errors import UsageError
from rooflab.fleet.launch import UNNAMED, Local, Prefix
from rooflab.fleet.phases import TOGETHER
from rooflab.fleet.session import Setup


@contextmanager
def reach(
    launch: str | None,
    on: str | None,
    python: str,
    devices: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    phases: Sequence[str] = (TOGETHER,),
    repeats: int | None = None,
    mixed: bool = False,
) -> Iterator[Setup]:
    """The fleet, as long as its hosts are reached.

    ``launch`` is a command such as ``ssh {host}``, ``on`` the address of a Ray cluster, ``python``
    the one on the hosts. Without ``launch`` and ``on`` this machine is the only host. Without
    ``hosts`` those of a cluster are all that have ``devices``, and a command without a host's name
    is started once. Raises ``UsageError`` if the words do not fit each other.
    """
    if launch is not None and on is not None:
        raise UsageError("--launch and --on are two ways to reach hosts: give one")
    fleet = partial(
        Setup,
        devices=tuple(devices),
        phases=tuple(phases),
        repeats=repeats,
        mixed=mixed,
    )
    if on is not None:
        from rooflab.fleet.ray import Ray

        with Ray(on) as ray:
            found = tuple(hosts) or ray.hosts(devices or (ALL,))
            yield fleet(launcher=ray, hosts=found, listed=not hosts)
    elif launch:
        yield fleet(launcher=Prefix(launch, python), hosts=tuple(hosts) or UNNAMED)
    elif hosts:
        raise UsageError("--hosts needs --launch, such as: --launch 'ssh {host}', or --on")
    else:
        yield fleet(launcher=Local(), hosts=(platform.node(),))
