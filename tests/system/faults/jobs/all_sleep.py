"""Ranks that make steps and then all wait for nothing; the second attempt does not."""

import os
import time

import rankmend

is_first = os.environ["RANKMEND_ATTEMPT"] == "1"
for step in range(1, 11):
    time.sleep(0.01)
    rankmend.step(step)
if is_first:
    time.sleep(600)
