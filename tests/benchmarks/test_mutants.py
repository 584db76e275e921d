"""benchmarks/mutants.py finds its modules and tests: without one it would measure nothing."""

from __future__ import annotations

import mutants


def test_its_modules_and_tests_are_there() -> None:
    settings = mutants.Settings.load()
    beside = [test for tests in settings.modules.values() for test in tests]
    assert beside and settings.wider
    paths = [*settings.modules, *beside, *settings.wider]
    assert [path for path in paths if not (mutants.ROOT / path).is_file()] == []
