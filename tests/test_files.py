"""Tables come back as they were written, and what is wrong in a file is said with its place."""

import numpy as np
import pytest

from covey.files import READ, WRITTEN, check_writable, read_table, write_table

X = np.array([[1.5, -2.0], [3.25, 4e160], [0.1, 0.2]])


def text(path, content: str, **options):
    path.write_text(content, encoding=options.pop("encoding", "utf-8"), newline="")
    return read_table(path, **options)


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_is_written_is_read(tmp_path, kind):
    path = tmp_path / f"a{kind}"
    write_table(path, ["height", "width"], X)
    table = read_table(path)
    np.testing.assert_array_equal(table.values, X)
    assert table.values.dtype == np.float64
    assert table.names == (("1", "2") if kind == ".npy" else ("height", "width"))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", [".npy", ".npz", ".parquet"])
def test_single_precision_stays(tmp_path, kind):
    path = tmp_path / f"a{kind}"
    single = np.arange(6, dtype=np.float32).reshape(3, 2)
    if kind == ".npz":
        np.savez(path, single)
    else:
        write_table(path, ["a", "b"], single)
    table = read_table(path)
    assert table.values.dtype == np.float32
    np.testing.assert_array_equal(table.values, single)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, bool, ">f8"])
def test_arrays_of_other_numbers_are_read(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array([[1, 0], [0, 1]]).astype(dtype))
    np.testing.assert_array_equal(read_table(tmp_path / "a.npy").values, np.eye(2))


# Text


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a,b\n1,2\n3,4\n", ("a", "b")),
        ("1,2\n3,4\n", ("1", "2")),
        ("a,7\n1,2\n3,4\n", ("a", "7")),
        ("0,1\n1.5,2\n3,4\n", ("0", "1")),
        ("0,1\n1,2\n3,4\n", ("1", "2")),
        (",0,1\n0,1.5,2\n1,3,4\n", ("0", "1")),
        (",a,b\n0,1,2\n1,3,4\n", ("a", "b")),
        ('"a;b";c\n1;2\n3;4\n', ("a;b", "c")),
        ("Na\tK\n1\t2\n3\t4\n", ("Na", "K")),
        ("\ufeffa,b\r\n1,2\r\n\r\n3,4", ("a", "b")),
        (" a , b \n 1 , 2\n3,4\n", ("a", "b")),
        ("v\n1\n2\n", ("v",)),
    ],
    ids=repr,
)
def test_names_are_found(tmp_path, content, names):
    assert text(tmp_path / "a.csv", content).names == names


def test_names_can_be_said_to_be_there_or_not(tmp_path):
    assert text(tmp_path / "a.csv", "1,2\n3,4\n", header=True).names == ("1", "2")
    assert len(text(tmp_path / "a.csv", "0,1\n.5,4\n").values) == 1
    assert len(text(tmp_path / "a.csv", "0,1\n.5,4\n", header=False).values) == 2


def test_made_up_names_and_left_out_columns_are_remarked(tmp_path):
    assert "called 1, 2" in text(tmp_path / "a.csv", "1,2\n3,4\n").remarks[0]
    assert "left out" in text(tmp_path / "a.csv", ",a\n0,5\n1,6\n").remarks[0]
    assert not text(tmp_path / "a.csv", "a,b\n1,2\n").remarks


def test_columns_come_in_the_order_asked_for(tmp_path):
    table = text(tmp_path / "a.csv", "a,name,b\n1,x,2\n3,y,4\n", columns=["b", "a"])
    assert table.names == ("b", "a")
    assert table.values.tolist() == [[2, 1], [4, 3]]
    rest, values = table.split("b")
    assert (rest.names, rest.values.tolist(), values.tolist()) == (("a",), [[1], [3]], [2, 4])


def test_long_tables_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("covey.files.ROWS_AT_ONCE", 7)
    x = np.random.default_rng(0).normal(size=(50, 3))
    write_table(tmp_path / "a.tsv", list("abc"), x)
    np.testing.assert_array_equal(read_table(tmp_path / "a.tsv").values, x)


# What is wrong


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: expected rows of numbers"),
        ("\n \n", "is empty"),
        ("a,b\n", "has names and no rows below"),
        ("a,b\nx,1\ny,2\n", r"text in column a \('x', for example\); .* --columns b$"),
        ("a,b\nx,y\n", r"text in columns a, b .* no other column holds numbers"),
        (
            "a,b\n1,2\n,3\n4,NA\n",
            "2 missing values in columns a, b, the first in row 2, column a",
        ),
        ("a,b\n1,2\n3,nan\n", "1 missing value in column b, the first in row 2, column b"),
        ("a,b\n1,2\ninf,3\n", "1 infinite value in column a"),
        ("a,b\n1,2\n3,4,5\n", "line 3 of .* has 3 cells, expected 2"),
        ("a,a\n1,2\n", "more than one column called a: give them other names"),
    ],
    ids=repr,
)
def test_a_wrong_text_says_where(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        text(tmp_path / "a.csv", content)


def test_text_far_down_is_found(tmp_path):
    rows = "\n".join("1,2" for _ in range(30_000))
    with pytest.raises(ValueError, match=r"text in column b \('oops'"):
        text(tmp_path / "a.csv", f"a,b\n{rows}\n1,oops\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.csv", "no such file"),
        ("a.xlsx", r"must end in one of \.csv, .*, got \.xlsx"),
        ("plain", "got no ending"),
        ("folder.csv", "expected a file, got the directory"),
        ("latin.csv", "not text in UTF-8"),
        ("one.npy", r"got the shape \(3,\); save x\[:, None\]"),
        ("cube.npy", r"got the shape \(1, 2, 3\)"),
        ("objects.npy", "got Python objects"),
        ("complex.npy", "got the type complex128"),
        ("words.npy", "got the type <U"),
        ("narrow.npy", r"expected columns of numbers, got the shape \(3, 0\)"),
        ("rowless.npy", "has no rows"),
        ("empty.npy", "is empty"),
        ("random.npy", "expected an array of numbers"),
        ("two.npz", "expected one array, got a, b"),
        ("random.parquet", "not a parquet file that can be read"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, name, message):
    np.save(tmp_path / "one.npy", np.ones(3))
    np.save(tmp_path / "cube.npy", np.ones((1, 2, 3)))
    np.save(tmp_path / "objects.npy", np.array([[None]], object), allow_pickle=True)
    np.save(tmp_path / "complex.npy", np.ones((2, 2), complex))
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    np.save(tmp_path / "narrow.npy", np.ones((3, 0)))
    np.save(tmp_path / "rowless.npy", np.ones((0, 3)))
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "latin.csv").write_bytes("h\xf6he\n1\n".encode("latin-1"))
    for random in ("a.xlsx", "plain", "random.npy", "random.parquet"):
        (tmp_path / random).write_bytes(b"not a table at all")
    (tmp_path / "empty.npy").touch()
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name)


def test_a_wrong_parquet_says_where(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    columns = {"name": ["x", "y"], "a": [1, None], "b": [True, False], "c": [[1], [2]]}
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(ValueError, match=r"text in columns name, c \('x'.* --columns a,b$"):
        read_table(path)
    with pytest.raises(ValueError, match="1 missing value in column a, the first in row 2"):
        read_table(path, ["a", "b"])
    assert read_table(path, ["b"]).values.tolist() == [[1], [0]]
    with pytest.raises(ValueError, match="has no column q; it has name, a, b, c"):
        read_table(path, ["q"])


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").touch()
    for attempt in (read_table, check_writable):
        with pytest.raises(ImportError, match=r"pip install 'covey\[parquet\]'"):
            attempt(tmp_path / "a.parquet")


def test_places_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for path, message in {
        tmp_path / "a.xls": "must end in one of",
        tmp_path / "folder.csv": "got the directory",
        tmp_path / "no" / "a.csv": "there is no directory",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_writable(path)
    check_writable(tmp_path / "a.csv")
    assert [found.name for found in tmp_path.iterdir()] == ["folder.csv"]


def test_a_table_that_cannot_be_written_leaves_the_older_one(tmp_path):
    path = tmp_path / "a.npy"
    write_table(path, ["a"], np.ones((2, 1)))
    before = path.read_bytes()
    with pytest.raises(IndexError):
        write_table(path, ["a"], np.ones(2))
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["a.npy"]


def test_every_format_is_documented():
    from pathlib import Path

    page = (Path(__file__).parents[1] / "docs" / "clustering.md").read_text()
    assert all(kind[1:] in page for kind in READ)
