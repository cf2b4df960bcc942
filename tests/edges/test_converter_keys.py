"""make_converter hands out rows of an equal DataFrame, and never those of another."""

from __future__ import annotations

import logging
import os
import random
import string
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as sf

from headrace.converter import Function, make_converter
from headrace.converter.api.make_converter import _type_bytes
from headrace.converter.keys import conversion_key
from headrace.converter.keys.encoding import Node, digest, tokens
from headrace.converter.keys.files import Files, settle
from headrace.converter.keys.settings import row_settings
from headrace.errors import BadArgumentError
from headrace.storage import open_dataset, open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAIRS = 10_000
REAL_PLANS = 20
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
TREES = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), parts, max_size=3)
        | st.builds(Node, st.text(max_size=3), st.lists(parts, max_size=4).map(tuple))
    ),
    max_leaves=12,
)


def _never(value: object) -> object:
    raise AssertionError(value)


def _encoded(value: object) -> bytes:
    return b"".join(tokens(value, _never))


def _decoded(text: bytes) -> object:
    value, rest = _first(text)
    assert not rest
    return value


def _first(text: bytes) -> tuple[object, bytes]:
    """Decode the first value of a canonical form, as no code of ours needs to."""
    letter, rest = text[:1], text[1:]
    if letter in b"ztf":
        return {b"z": None, b"t": True, b"f": False}[letter], rest
    if letter == b"d":
        return struct.unpack(">d", rest[:8])[0], rest[8:]
    (size,) = struct.unpack(">Q", rest[:8])
    rest = rest[8:]
    if letter in b"lm":
        parts, rest = _several(size * (2 if letter == b"m" else 1), rest)
        return (
            tuple(parts) if letter == b"l" else dict(zip(parts[::2], parts[1::2], strict=True))
        ), rest
    content, rest = rest[:size], rest[size:]
    if letter == b"n":
        (count,) = struct.unpack(">Q", rest[:8])
        parts, rest = _several(count, rest[8:])
        return Node(content.decode(), tuple(parts)), rest
    made = {b"i": int, b"s": lambda raw: raw.decode("utf-8", "surrogatepass"), b"b": bytes}
    return made[letter](content), rest  # type: ignore[operator]


def _several(count: int, text: bytes) -> tuple[list[Any], bytes]:
    parts = []
    for _ in range(count):
        part, text = _first(text)
        parts.append(part)
    return parts, text


@given(TREES)
def test_the_canonical_form_can_be_read_back(tree: object) -> None:
    """So no two trees share one; repr tells 1, 1.0 and True apart, and -0.0 and 0.0."""
    assert repr(_sorted(tree)) == repr(_sorted(_decoded(_encoded(tree))))


def _sorted(tree: Any) -> Any:
    match tree:
        case Node():
            return Node(tree.kind, tuple(_sorted(part) for part in tree.parts))
        case tuple():
            return tuple(_sorted(part) for part in tree)
        case dict():
            return {name: _sorted(tree[name]) for name in sorted(tree)}
    return tree


def test_a_tree_may_be_deeper_than_the_stack_of_python() -> None:
    """Ten thousand operators, one above the other."""
    deep: object = 1
    for _ in range(10_000):
        deep = Node("Project", (deep,))

    assert digest(deep, _never) != digest(Node("Project", (deep,)), _never)


NASTY = (
    "a",
    "b",
    "a,b",
    "a, b",
    "'",
    '"',
    "\\",
    "\n",
    "",
    "null",
    "NULL",
    "1",
    "1.0",
    "é",
    "(",
    ")",
)
VALUES: tuple[object, ...] = (*NASTY, 1, 1.0, True, None, b"a", b"1", 0, -0.0, 0.0, False)


def _plan(random_: random.Random, depth: int) -> object:
    """A tree such as plans have, of names and literals that are easily mistaken."""
    if depth == 0 or random_.random() < 0.3:
        return random_.choice(VALUES)
    parts = [_plan(random_, depth - 1) for _ in range(random_.randrange(4))]
    kind = random_.choice(("In", "Concat", "Project", "literal", ""))
    return random_.choice((tuple(parts), Node(kind, tuple(parts))))


def _changed(random_: random.Random, tree: Any) -> object:
    """The same tree with a part moved, split, joined, wrapped or taken for another type."""
    parts = list(tree.parts if isinstance(tree, Node) else tree) if _has_parts(tree) else []
    if not parts:
        return random_.choice([value for value in VALUES if repr(value) != repr(tree)])
    at = random_.randrange(len(parts))
    match random_.randrange(6):
        case 0:
            parts[at] = _changed(random_, parts[at])
        case 1:
            parts[at : at + 1] = [(parts[at],)]
        case 2:
            parts[at : at + 1] = []
        case 3:
            parts[at : at + 2] = [", ".join(str(part) for part in parts[at : at + 2])]
        case 4:
            parts.insert(at, parts[at])
        case _:
            random_.shuffle(parts)
    return Node(tree.kind, tuple(parts)) if isinstance(tree, Node) else tuple(parts)


def _has_parts(tree: object) -> bool:
    return isinstance(tree, (Node, tuple))


def test_of_10000_pairs_of_different_plans_none_shares_a_key() -> None:
    """Each plan against a near relative, and all 20,000 against one another."""
    random_ = random.Random(17)
    keys: dict[str, str] = {}
    pairs = 0
    while pairs < PAIRS:
        plan = _plan(random_, 4)
        other = _changed(random_, plan)
        pairs += repr(plan) != repr(other)
        for each in (plan, other):
            assert repr(each) == keys.setdefault(digest(each, _never), repr(each))


Maker = Callable[["SparkSession"], "DataFrame"]


def _sql(query: str) -> Maker:
    return lambda spark: spark.sql(query)


def _each(query: str, *parts: str) -> list[Maker]:
    return [_sql(query.format(part)) for part in parts]


def _isin(*values: str) -> Maker:
    return lambda spark: _labels(spark).where(sf.col("label").isin(*values))


def _labels(spark: SparkSession) -> DataFrame:
    return spark.sql("select * from values ('a'), ('b'), ('a,b') as t(label)")


IN_SHORT = 5  # the others take twice as long, and stand for what is rarer
LOOKALIKES: list[list[Maker]] = [
    [_isin("a,b"), _isin("a", "b"), _isin("a, b"), _isin("b", "a"), _isin("a")],
    _each("select concat({}) x", "'a', 'b, c'", "'a, b', 'c'"),
    _each("values {}", "('a,b', 'c')", "('a', 'b,c')", "('a,b','c'), ('','')", "('a,b, c')"),
    _each("values {}", r"('a\nb')", "('a'), ('b')", r"('a\n'), ('b')"),
    _each("select {} x", "'1'", "1", "1L", "1.0", "1.0d", "1Y", "true", "X'31'"),
    _each("select {} x", "null", "'null'", "cast(null as string)", "'NULL'", "''"),
    _each("select cast({} as int) x", "'1'", "'1.0'", "'one'"),
    _each("select {}('x' as int) x", "cast", "try_cast"),
    _each(
        "select {} x from values (1e16d, -1e16d, 1d) as t(a, b, c)",
        "(a + b) + c",
        "a + (b + c)",
        "(a + c) + b",
    ),
    _each("select named_struct('{}', 1) x", "a", "b", "a: int, b", "A"),
    _each("select {} x from range(5)", "sum(id)", "sum(distinct id)", "avg(id)"),
    _each(
        "select * from range(3) a {} join range(2) b on a.id = b.id",
        "",
        "left",
        "full",
        "left semi",
        "left anti",
    ),
    _each("select * from range(9) order by id {}", "", "desc", "limit 2"),
    _each("select id from range(9) where id in (select {})", "1", "2", "1 + 1"),
    _each(
        "select transform(array(1, 2), x -> transform(array(3), y -> {})) z",
        "x",
        "y",
        "x + y",
        "y + x",
    ),
    _each("select id from range(9) where rand({}) < 0.5", "1", "2"),
    _each("with c as (select {} id) select * from c a, c b", "1", "2"),
    _each(
        "select sum(id) over (order by id rows between {} and current row) from range(9)",
        "unbounded preceding",
        "1 preceding",
        "2 preceding",
    ),
]


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(frames, marks=[] if number < IN_SHORT else [pytest.mark.long])
        for number, frames in enumerate(LOOKALIKES)
    ],
)
def test_no_lookalikes_share_a_key(spark: SparkSession, frames: list[Maker]) -> None:
    """Plans that differ in a literal, a type, a border or an order; each built twice is one."""
    keys = [conversion_key(make(spark), {}) for make in frames]

    assert not [key.unknown for key in keys if key.unknown]
    assert len(frames) == len({key.text for key in keys})
    assert keys[0].text == conversion_key(frames[0](spark), {}).text


QUERIES = (
    "select * from values ({0}), ({1}) as t(x)",
    "select concat({2}) x, {4} y",
    "select id x from range({3}) where string(id) in ({2})",
    "select array({2}) x, {4} + {5} y",
    "select named_struct('a', {0}, 'b', {4}) x",
    "select count(*) x from range(9) group by id % {3}",
)
NUMBERS = ("1", "2", "1.0", "1L", "1.0d", "1Y", "2S", "0.1f", "1e1")


def _random_query(random_: random.Random) -> str:
    """Of literals that are easily mistaken; what it says is what tells it from others."""

    def text() -> str:
        chosen = "".join(random_.choices("ab, '\\\n()|\"", k=random_.randrange(1, 5)))
        return "'" + chosen.replace("\\", "\\\\").replace("'", "\\'") + "'"

    texts = ", ".join(text() for _ in range(random_.randrange(1, 4)))
    numbers = random_.choices(NUMBERS, k=2)
    return random_.choice(QUERIES).format(text(), text(), texts, random_.randrange(1, 99), *numbers)


def _check_random_frames(spark: SparkSession, count: int) -> None:
    random_ = random.Random(count)
    keys: dict[str, str] = {}
    queries: set[str] = set()
    while len(queries) < count:
        query = _random_query(random_)
        key = conversion_key(spark.sql(query), {})
        queries.add(query)

        assert () == key.unknown
        assert query == keys.setdefault(key.text, query)


def test_real_plans_of_nasty_literals_have_keys_of_their_own(spark: SparkSession) -> None:
    """Twenty through Spark, each against all others: 190 pairs."""
    _check_random_frames(spark, REAL_PLANS)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_million_pairs_of_real_plans_share_no_key(spark: SparkSession) -> None:
    """Fifteen hundred through Spark, each against all others."""
    _check_random_frames(spark, 1500)


def test_a_lookalike_gets_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    """`isin("a,b")` after `isin("a", "b")`, through the cache: other rows."""
    made = [
        make_converter(_isin(*values)(spark), cache_dir=str(tmp_path))
        for values in (("a", "b"), ("a,b",))
    ]

    assert [["a", "b"], ["a,b"]] == [_column(conversion.url, "label") for conversion in made]


def _column(url: str, name: str) -> list[Any]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [value for block in blocks for value in block.column(name).to_pylist()]


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Set a setting until the test ends."""
    names: list[str] = []

    def put(name: str, value: str) -> None:
        names.append(name)
        spark.conf.set(name, value)

    yield put
    for name in names:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.legacy.sizeOfNull", "false"),
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.a.setting.of.next.year", "1"),
        ("mapreduce.input.linerecordreader.line.maxlength", "7"),
    ],
)
def test_a_setting_that_can_change_rows_changes_the_key(
    spark: SparkSession, setting: Callable[[str, str], None], name: str, value: str
) -> None:
    """Also one that this version of headrace has never heard of, and one of Hadoop."""
    before = conversion_key(spark.range(3), {}).text
    setting(name, value)

    assert before != conversion_key(spark.range(3), {}).text


def test_settings_that_cannot_change_rows_are_left_out() -> None:
    """A short list; whatever is not on it counts."""
    given = {
        "spark.sql.ui.retainedExecutions": "3",
        "spark.sql.warehouse.dir": "/x",
        "spark.app.id": "local-1",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.uinknown": "1",
    }

    assert {"spark.sql.ansi.enabled": "true", "spark.sql.uinknown": "1"} == row_settings(given)


def test_a_setting_that_an_expression_has_kept_counts(
    spark: SparkSession, setting: Callable[[str, str], None]
) -> None:
    """Set while the DataFrame was made, and no longer when it is converted."""
    query = "select string(array(1, null)) x, from_json('q', 'a int, _odd string') y from range(1)"
    keys = []
    for value in ("false", "true"):
        setting("spark.sql.legacy.castComplexTypesToString.enabled", value)
        setting("spark.sql.columnNameOfCorruptRecord", f"_odd{value}")
        frame = spark.sql(query)
        setting("spark.sql.legacy.castComplexTypesToString.enabled", "false")
        setting("spark.sql.columnNameOfCorruptRecord", "_corrupt_record")
        keys.append(conversion_key(frame, {}))

    assert [(), ()] == [key.unknown for key in keys]
    assert 2 == len({key.text for key in keys})


def _shout(value: int) -> str:
    return f"{value}!"


def _shouted(name: str) -> Column:
    return sf.udf(_shout, "string", useArrow=False)(name)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


OPAQUE: dict[str, Maker] = {
    "PythonUDF": lambda spark: spark.range(3).select(_shouted("id").alias("x")),
    "MapInArrow": lambda spark: spark.range(3).mapInArrow(_rows, "id long"),
    "LogicalRDD": lambda spark: spark.sparkContext.parallelize([(1,)], 1).toDF("x int"),
    "CurrentDate": lambda spark: spark.range(3).where("current_date() > '2020-01-01'"),
    "today": _sql("select to_date('today') x"),
    "Uuid": lambda spark: spark.sql("select uuid() x"),
    "cached": lambda spark: spark.range(77).cache(),
    "CallMethodViaReflection": _sql("select reflect('java.lang.Math', 'random') x"),
    "InputFileName": _sql("select input_file_name() x"),
}


@pytest.mark.parametrize("what", OPAQUE)
def test_what_cannot_be_looked_into_is_not_found_again(spark: SparkSession, what: str) -> None:
    """Each call has a key of its own, unless the caller names it; the reason says what it is."""
    keys = [conversion_key(OPAQUE[what](spark), {}) for _ in range(2)]
    named = [conversion_key(OPAQUE[what](spark), {}, name=name) for name in ("a", "a", "b")]
    spark.catalog.clearCache()

    assert what in "".join(keys[0].unknown)
    assert 2 == len({key.text for key in keys})
    if what != "Uuid":  # of which Spark draws the seed when the DataFrame is made
        assert named[0].text == named[1].text
    assert named[0].text != named[2].text
    assert [(), (), ()] == [key.unknown for key in named]


def test_a_name_stands_for_the_unknown_part_alone(spark: SparkSession) -> None:
    """Under one name another condition, below the function or above it, is another conversion."""
    frames = [
        spark.range(3)
        .where(f"id > {below}")
        .select(_shouted("id").alias("x"))
        .where(f"x > '{above}'")
        for below, above in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    keys = [conversion_key(frame, {}, name="shout-v1").text for frame in frames]

    assert keys[0] == keys[1]
    assert 3 == len(set(keys))


def test_a_function_is_found_again_by_its_name_alone(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one each call converts, and a warning says why; with one the second call finds it."""
    function = Function(_rows, "id long")

    def convert(key: str | None) -> str:
        frame = spark.range(3)
        return make_converter(frame, key=key, cache_dir=str(tmp_path), function=function).key

    with caplog.at_level(logging.WARNING, logger="headrace.converter"):
        alone = {convert(None), convert(None)}
        named = {convert("rows-v1"), convert("rows-v1")}

    assert (2, 1) == (len(alone), len(named))
    assert 2 == sum("its function cannot be inspected" in text for text in caplog.messages)
    with pytest.raises(BadArgumentError, match="key is ''"):
        make_converter(spark.range(3), key="", cache_dir=str(tmp_path))


def test_a_cache_made_of_older_files_is_not_taken_for_the_newer(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark serves a cached table for a later DataFrame of its path, so that is found by nobody."""
    table = tmp_path / "t.txt"
    table.write_text("old\n")
    cached = spark.read.text(str(table)).cache()
    cached.count()
    table.write_text("newer\n")
    later = spark.read.text(str(table))
    key = conversion_key(later.where("value is not null"), {})
    rows = [row.value for row in later.collect()]
    spark.catalog.clearCache()

    assert ["old"] == rows
    assert "cached" in key.unknown[0]
    assert () == conversion_key(spark.read.text(str(table)), {}).unknown


def test_a_file_that_changes_while_it_is_converted_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nobody knows which of both was read; nothing of it stays, and the next call converts."""
    table = tmp_path / "t.txt"
    table.write_text("one\n")
    frame = spark.read.text(str(table))
    key = conversion_key(frame, {}).files
    table.write_text("three\n")

    with pytest.raises(BadArgumentError, match=r"t\.txt changed while it was converted"):
        make_converter(frame, cache_dir=str(tmp_path / "cache"))
    assert {(4,)} == {stamp[:1] for stamp in key[0].stamps.values()}
    left = [name for name in open_store(str(tmp_path / "cache")).list() if "json" in name]
    assert [] == left
    again = make_converter(spark.read.text(str(table)), cache_dir=str(tmp_path / "cache"))
    assert ["three"] == _column(again.url, "value")


def test_files_are_pinned_by_path_size_and_time(spark: SparkSession, tmp_path: Path) -> None:
    """A file of the same size at the same time under another name, or later, is another."""
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in texts:
        path.write_text(string.ascii_letters)
        os.utime(path, ns=(10**18, 10**18))

    def key(path: Path) -> str:
        return conversion_key(spark.read.text(str(path)), {}).text

    before = [key(path) for path in (*texts, texts[0])]
    os.utime(texts[0], ns=(10**18, 10**18 + 10**9))

    assert before[0] == before[2]
    assert 3 == len({*before, key(texts[0])})


@pytest.mark.parametrize(
    ("changed_ms", "now_ms", "expected_s"),
    [
        (5_000, 5_300, [1.7]),  # whole seconds: an object store's
        (5_123, 5_125, [0.038]),
        (5_000, 7_000, []),
        (9_000_000, 5_000, [2.0]),  # a clock that is ahead is not waited for
    ],
)
def test_a_key_waits_for_the_tick_of_the_last_change(
    changed_ms: int, now_ms: int, expected_s: list[float]
) -> None:
    """So that a change after it has another time, and no longer than two seconds."""
    waited: list[float] = []
    files = Files((), {"a": (1, 0), "b": (1, changed_ms)}, dict)
    settle([files], clock_s=lambda: now_ms / 1000, sleep=waited.append)

    assert expected_s == [pytest.approx(seconds) for seconds in waited]


def test_types_with_confusing_names_are_told_apart() -> None:
    """Two types whose texts are equal: a field's name may hold what looks like another field."""
    two = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    one = pa.struct([("a: int32, b", pa.int32())])

    assert str(one) == str(two)
    assert _type_bytes("x", one) != _type_bytes("x", two)
    assert _type_bytes("x", "int32") == _type_bytes("x", pa.int32())
