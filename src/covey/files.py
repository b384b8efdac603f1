"""Tables of numbers from and to files: csv, tsv, parquet and NumPy's own."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from covey.figures import written_whole

READ = (".csv", ".tsv", ".parquet", ".npy", ".npz")
WRITTEN = (".csv", ".tsv", ".parquet", ".npy")

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none"})
ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Table:
    """Columns of numbers, none of them missing or infinite.

    Attributes
    ----------
    names : (d,)
    values : (n, d), float64, or float32 where the file has nothing else
    remarks : what a reader of the file should know, one sentence each
    """

    names: tuple[str, ...]
    values: np.ndarray
    remarks: tuple[str, ...] = ()

    def split(self, name: str) -> tuple[Table, np.ndarray]:
        """Take one column out: the others, and its values (n,)."""
        at = self.names.index(name)
        rest = [j for j in range(len(self.names)) if j != at]
        names = tuple(self.names[j] for j in rest)
        return replace(self, names=names, values=self.values[:, rest]), self.values[:, at]


@dataclass(frozen=True)
class _Raw:
    """Columns as they stand in a file: arrays of numbers (NaN: missing), or None where text is."""

    names: list[str]
    columns: list[np.ndarray | None]
    examples: dict[str, str]
    first_line: int | None = None
    remarks: tuple[str, ...] = ()
    index: str | None = None


def read_table(path: Path, columns: list[str] | None = None, header: bool | None = None) -> Table:
    """Read numbers from a csv, tsv, parquet, npy or npz file.

    A csv may be separated by commas, semicolons or tabs. Its first line holds names if all its
    cells are words, or if some column has a word there and a number below. Columns without names
    are called 1, 2 and so on.

    Parameters
    ----------
    columns : names of columns to read, in this order; None: all
    header : does the csv begin with names; None: find out

    Raises
    ------
    OSError, ValueError, ImportError
        With what is wrong, where, and what to do.
    """
    if path.is_dir():
        raise ValueError(f"expected a file, got the directory {path}")
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    kind = _kind(path, READ)
    if kind in (".csv", ".tsv"):
        raw = _read_text(path, header, "\t" if kind == ".tsv" else None)
    elif kind == ".parquet":
        raw = _read_parquet(path, columns)
    else:
        raw = _read_numpy(path)
    return _checked(raw, path, columns)


def read_weighted(
    path: Path, columns: str | None, weights: str | None, header: bool | None
) -> tuple[Table, np.ndarray | None]:
    """Read a table, and the weights of its rows (n,) from a column of their own.

    Parameters
    ----------
    columns : names with commas between, or None for all
    weights : the name of the column of weights, or None for none
    """
    wanted = None if columns is None else [name.strip() for name in columns.split(",")]
    if wanted is not None and weights is not None and weights not in wanted:
        wanted.append(weights)
    table = read_table(path, wanted, header)
    if weights is None:
        return table, None
    if weights not in table.names:
        raise ValueError(f"{path} has no column {weights}; it has {_listed(list(table.names))}")
    table, masses = table.split(weights)
    if not table.names:
        raise ValueError(f"{path} has no column beside {weights}, that of the weights")
    return table, masses


def _kind(path: Path, known: tuple[str, ...]) -> str:
    kind = path.suffix.lower()
    if kind not in known:
        got = kind or "no ending"
        raise ValueError(f"{path.name} must end in one of {', '.join(known)}, got {got}")
    return kind


# Text


def _read_text(path: Path, header: bool | None, separator: str | None) -> _Raw:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _parse(file, path, header, separator)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: save it as such") from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of text: {error}") from error


def _parse(file: Any, path: Path, header: bool | None, separator: str | None) -> _Raw:
    start = file.readline()
    if separator is None:
        # Counted outside of quotes, where a name may hold anything.
        bare = "".join(start.split('"')[::2])
        separator = max(",;\t", key=bare.count)
    reader = csv.reader(chain([start], file), delimiter=separator)
    rows = ((reader.line_num, row) for row in reader if len(row) > 1 or "".join(row).strip())
    top = list(islice(rows, 2))
    if not top:
        raise ValueError(f"{path} is empty: expected rows of numbers")
    line, first = top[0]
    second = top[1][1] if len(top) > 1 else []
    named = _is_header(first, second) if header is None else header
    if named and len(top) == 1:
        raise ValueError(f"{path} has names and no rows below: expected rows of numbers")
    names = [cell.strip() for cell in first] if named else _numbered(len(first))
    numbers: list[list[np.ndarray] | None] = [[] for _ in names]
    examples: dict[str, str] = {}
    for block in _blocks(chain(top[1:] if named else top, rows), len(names), path):
        for j, cells in enumerate(zip(*block, strict=True)):
            parts = numbers[j]
            if parts is None:
                continue
            try:
                parts.append(_numbers(cells))
            except ValueError:
                numbers[j], examples[str(j)] = None, _first_word(cells)
    columns = [None if parts is None else np.concatenate(parts) for parts in numbers]
    remarks = () if named else (f"{path.name} has no names of columns: they are called 1, 2, ...",)
    index = names[0] if named and _is_index(names, columns) else None
    return _Raw(names, columns, examples, line + named, remarks, index)


def _blocks(rows: Any, width: int, path: Path) -> Iterator[list[list[str]]]:
    rows = iter(rows)
    while block := list(islice(rows, ROWS_AT_ONCE)):
        for line, row in block:
            if len(row) != width:
                raise ValueError(
                    f"line {line} of {path} has {len(row)} cells, expected {width} as in the first"
                )
        yield [row for _, row in block]


def _numbers(cells: tuple[str, ...]) -> np.ndarray:
    try:
        return np.array(list(map(float, cells)))  # the fast way, if nothing is missing
    except ValueError:
        return np.array([_number(cell) for cell in cells])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        if cell.strip().lower() in MISSING:
            return math.nan
        raise


def _is_word(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return True
    return False


def _first_word(cells: tuple[str, ...]) -> str:
    return next(cell for cell in cells if _is_word(cell))


def _is_header(first: list[str], second: list[str]) -> bool:
    words = [_is_word(cell) for cell in first]
    if any(words) and all(
        word or not cell.strip() for word, cell in zip(words, first, strict=True)
    ):
        return True
    if any(
        word and not _is_word(below) for word, below in zip(words, second or first, strict=False)
    ):
        return True
    # pandas calls columns without names 0, 1, ...; a row of data that looks so has others like it.
    counted = first[1:] if first[0] == "" else first
    whole = all(cell.strip().lstrip("-").isdigit() for cell in second)
    return len(counted) > 1 and counted == [str(j) for j in range(len(counted))] and not whole


def _is_index(names: list[str], columns: list[np.ndarray | None]) -> bool:
    """Tell whether the first column has no name and counts the rows, as pandas writes it."""
    first = columns[0]
    if names[0] or len(names) == 1 or first is None:
        return False
    return np.array_equal(first, np.arange(len(first)))


def _numbered(count: int) -> list[str]:
    return [str(j + 1) for j in range(count)]


# Arrays


def _read_parquet(path: Path, wanted: list[str] | None) -> _Raw:
    pyarrow, parquet = _pyarrow()
    try:
        schema = parquet.read_schema(path)
        only = [name for name in wanted if name in schema.names] if wanted else None
        table = parquet.read_table(path, columns=only or None)
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"{path} is not a parquet file that can be read: {reason}") from error
    columns: list[np.ndarray | None] = []
    examples: dict[str, str] = {}
    for j, column in enumerate(table.columns):
        kind = column.type
        if pyarrow.types.is_boolean(kind) or pyarrow.types.is_decimal(kind):
            column = column.cast(pyarrow.float64())
        elif not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
            examples[str(j)] = str(column[0].as_py()) if len(column) else str(kind)
            columns.append(None)
            continue
        columns.append(_with_nan(column))
    return _Raw(list(table.column_names), columns, examples)


def _with_nan(column: Any) -> np.ndarray:
    return np.asarray(column.to_numpy())  # nulls become NaN


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("parquet files need PyArrow: pip install 'covey[parquet]'") from error
    return pyarrow, parquet


def _read_numpy(path: Path) -> _Raw:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            with found:
                if len(found.files) != 1:
                    held = ", ".join(found.files) or "none"
                    raise ValueError(f"expected one array, got {held}; save the one with the data")
                found = found[found.files[0]]
        _check_array(found)
    except EOFError as error:
        raise ValueError(f"{path} is empty: expected an array") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"{path}: {_first_line(error)}") from error
    columns: list[np.ndarray | None] = list(found.T)
    return _Raw(_numbered(found.shape[1]), columns, {})


def _check_array(found: np.ndarray) -> None:
    if found.dtype.kind not in "fiub":
        raise ValueError(f"expected an array of real numbers, got the type {found.dtype}")
    if found.ndim != 2:
        remedy = "; save x[:, None] for one column" if found.ndim == 1 else ""
        raise ValueError(f"expected an array (rows, columns), got the shape {found.shape}{remedy}")
    if found.shape[1] == 0:
        raise ValueError(f"expected columns of numbers, got the shape {found.shape}")


def _first_line(error: Exception) -> str:
    text = str(error)
    if any(word in text for word in ("allow_pickle", "pickled", "Python objects")):
        return "expected an array of numbers, got Python objects or no array at all"
    return text.splitlines()[0] if text else type(error).__name__


# Checks


def _checked(raw: _Raw, path: Path, wanted: list[str] | None) -> Table:
    repeated = sorted({name for name in raw.names if raw.names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path} has more than one column called {_listed(repeated)}: give them other names"
        )
    remarks = raw.remarks
    if wanted is None:
        wanted = [name for name in raw.names if name != raw.index]
        if raw.index is not None:
            remarks += (f"{path.name}: the first column has no name and counts rows; left out",)
    unknown = [name for name in wanted if name not in raw.names]
    if unknown:
        there = _listed(raw.names)
        raise ValueError(f"{path} has no column {_listed(unknown)}; it has {there}")
    if not wanted:
        raise ValueError(f"{path} has no columns: expected rows of numbers")
    columns = _numeric(raw, path, wanted)
    if not len(columns[0]):
        raise ValueError(f"{path} has no rows: expected rows of numbers")
    single = all(column.dtype in (np.float16, np.float32) for column in columns)
    # Row after row in memory, as clustering goes through them.
    values = np.empty((len(columns[0]), len(columns)), np.float32 if single else np.float64)
    for j, column in enumerate(columns):
        values[:, j] = column
    _check_finite(values, raw, path, wanted)
    return Table(tuple(wanted), values, remarks)


def _numeric(raw: _Raw, path: Path, wanted: list[str]) -> list[np.ndarray]:
    columns = {name: raw.columns[raw.names.index(name)] for name in wanted}
    words = [name for name, column in columns.items() if column is None]
    if words:
        example = raw.examples[str(raw.names.index(words[0]))]
        numbers = [name for name, column in columns.items() if column is not None]
        remedy = (
            f"choose among the others with --columns {_listed(numbers, ',', 8)}"
            if numbers
            else "no other column holds numbers"
        )
        raise ValueError(
            f"{path} has text in {_columns(words)} ({_shortened(example)!r}, for example); {remedy}"
        )
    return [column for column in columns.values() if column is not None]


def _check_finite(values: np.ndarray, raw: _Raw, path: Path, names: list[str]) -> None:
    for what, bad in (("missing", np.isnan), ("infinite", np.isinf)):
        held = [name for j, name in enumerate(names) if bad(values[:, j]).any()]
        if not held:
            continue
        count = sum(int(bad(values[:, j]).sum()) for j in range(len(names)))
        first = min(int(bad(values[:, names.index(name)]).argmax()) for name in held)
        where = next(name for name in held if bad(values[first, names.index(name)]))
        raise ValueError(
            f"{path} has {count} {what} value{'s' * (count > 1)} in {_columns(held)}, the first in "
            f"row {first + 1}, column {where}; drop these rows, fill them or leave columns out "
            "with --columns"
        )


def _columns(names: list[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {_listed(names)}"


def _listed(names: list[str], comma: str = ", ", most: int = 12) -> str:
    shown = comma.join(_shortened(name) or "''" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


# Writing


def check_writable(path: Path) -> None:
    """Refuse a table that :func:`write_table` could not write, before anything is computed."""
    if _kind(path, WRITTEN) == ".parquet":
        _pyarrow()
    check_place(path)


def check_place(path: Path) -> None:
    """Refuse a path where no file can be made."""
    import tempfile

    if path.is_dir():
        raise ValueError(f"expected a file to write, got the directory {path}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no directory {path.parent}; make it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose another place") from error


def write_table(path: Path, names: list[str], values: np.ndarray) -> None:
    """Write columns (n, d), whole or not at all, in the format that the ending says."""
    kind = _kind(path, WRITTEN)
    with written_whole(path) as part:
        if kind == ".npy":
            with part.open("wb") as file:
                np.save(file, values[:, 0] if values.shape[1] == 1 else values)
        elif kind == ".parquet":
            pyarrow, parquet = _pyarrow()
            parquet.write_table(pyarrow.table(list(values.T), names=names), part)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(
                    file, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\n"
                )
                writer.writerow(names)
                writer.writerows(values.tolist())
