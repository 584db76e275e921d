"""A flag of a user's own."""

import rooflab


@rooflab.flag("its result has no error at all")
def errorless(row):
    return row.rel_error == 0
