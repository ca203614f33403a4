"""Prompts of the models of make_model.py, and how far two answers to one may differ."""

import random

VOCABULARY = 2048
# bf16 rounds rows and queries: logprobs of one token differ by .02 in the mean, and seldom by more than this.
ROUNDING = 0.25


def text(seed, count):
    """Token ids; always the same for a seed."""
    chosen = random.Random(seed)
    return [chosen.randrange(2, VOCABULARY) for _ in range(count)]
