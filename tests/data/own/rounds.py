"""A column of a user's own."""

import rooflab


@rooflab.column("FLOP per round", "flops / rounds", digits=3)
def flop_per_round(row):
    return row.flops / row.rounds
