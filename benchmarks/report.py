"""Tables of figures, and the targets beside them."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.timing import Sample

NOISY = 1.25
"""A median this many times the best says that the measurement was disturbed."""


@dataclass(frozen=True)
class Target:
    """A promise and what was measured; ``measured`` is None where a peer is missing."""

    promise: str
    measured: float | None
    bound: float
    at_least: bool = False
    unit: str = ""

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def margin(self) -> float:
        """By which fraction of the bound it is met, or missed if negative."""
        assert self.measured is not None
        gain = self.measured / self.bound - 1
        return gain if self.at_least else -gain

    def line(self) -> str:
        relation = "at least" if self.at_least else "at most"
        asked = f"{self.promise}: {relation} {self.bound:g}{self.unit}"
        if self.measured is None:
            return f"not measured  {asked}"
        verdict = "met   " if self.met else "MISSED"
        got = f"{verdict}  {asked}, got {self.measured:.3g}{self.unit}"
        if not self.bound:
            return got  # there are no parts of nothing
        by = f"{self.margin:.0%} to spare" if self.met else f"by {-self.margin:.0%}"
        return f"{got} ({by})"


@dataclass(frozen=True)
class Table:
    """Rows under a heading; notes say how to read them."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        cells = [self.header, *self.rows]
        widths = [max(len(row[j]) for row in cells) for j in range(len(self.header))]

        def line(row: list[str]) -> str:
            first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            return "  ".join([first.strip().ljust(widths[0]), *rest]).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join(
            [self.title, *self.notes, "", line(self.header), rule, *map(line, self.rows)]
        )


@dataclass(frozen=True)
class Report:
    """What one benchmark found."""

    tables: list[Table]
    targets: list[Target]
    values: Any

    def text(self) -> str:
        parts = [table.text() for table in self.tables]
        if self.targets:
            parts.append("\n".join(target.line() for target in self.targets))
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        targets = [vars(target) | {"met": target.met} for target in self.targets]
        return {"targets": targets, "values": self.values}


def samples(measured: dict[str, Any]) -> dict[int, dict[str, Sample]]:
    """Samples by number of particles and contestant, as they come out of a process."""
    return {
        int(n): {name: Sample(**sample) for name, sample in row.items()}
        for n, row in measured.items()
    }


def ratio(row: dict[str, Sample], slow: str, fast: str) -> float | None:
    """How many times longer ``slow`` takes, or None where either was not measured."""
    if slow not in row or fast not in row:
        return None
    return row[slow].best / row[fast].best


def by_size(
    title: str,
    measured: dict[int, dict[str, Sample]],
    names: list[str],
    *,
    unit: float,
    against: dict[str, str],
    notes: list[str],
) -> Table:
    """One row a contestant, one column a size: time per ``unit`` particles, ratio and spread.

    Parameters
    ----------
    unit : steps of one call; times are shown in nanoseconds per particle and step.
    against : for each contestant, whom its ratio refers to.
    """
    rows = []
    for name in names:
        if not any(name in row for row in measured.values()):
            rows.append([name, *("not installed" for _ in measured), ""])
            continue
        cells = [_cell(row, name, against.get(name), n * unit) for n, row in measured.items()]
        used = [row[name].cores for row in measured.values() if name in row]
        rows.append([name, *cells, f"{max(used):.1f}"])
    header = ["ns per particle-step", *(f"N = {n:.0e}".replace("e+0", "e") for n in measured)]
    return Table(title, [*header, "cores"], rows, notes)


def _cell(row: dict[str, Sample], name: str, against: str | None, work: float) -> str:
    if name not in row:
        return "-"
    sample = row[name]
    noise = f"~{sample.spread:.2f}" + ("!" if sample.spread > NOISY else " ")
    times = ratio(row, name, against) if against else None
    compared = f"x{times:.2f}" if times else ""
    return f"{sample.best / work * 1e9:.1f} {compared:>7} {noise}"


HOW_TO_READ = [
    "Best of several interleaved calls; x: times the reference; ~: median over best, ! if noisy;",
    "cores: processor time over wall-clock time. Compilation is excluded.",
]
