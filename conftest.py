"""Run every Python block of the documentation as a test."""

from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

collect_ignore = ["docs/conf.py"]

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["*.md"],
).pytest()
