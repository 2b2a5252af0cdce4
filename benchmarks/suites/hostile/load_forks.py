"""Importing the suite forks, and both processes go on."""

import os

EXPECT = None

os.fork()
raise ValueError
