"""Nasty files of CSV, TSV and JSON, and the lines at which they are refused."""

from __future__ import annotations

import bz2
import gzip
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One file: its name says the kind; ``lines`` are refused, ``whole`` says the file is."""

    id: str
    content: bytes
    name: str = "x.csv"
    lines: tuple[int, ...] = ()
    whole: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def _tsv(case_id: str, content: bytes, **rest: Any) -> Case:
    return Case(case_id, content, name="x.tsv", **rest)


def _json(case_id: str, content: bytes | str, **rest: Any) -> Case:
    body = content.encode() if isinstance(content, str) else content
    return Case(case_id, body, name="x.json", **rest)


LONG = b"x" * 300_000

CSV = [
    Case("plain", b"a,b\n1,2\n3,4\n"),
    Case("no last newline", b"a,b\n1,2\n3,4"),
    Case("crlf", b"a,b\r\n1,2\r\n3,4\r\n"),
    Case("cr alone", b"a,b\r1,2\r3,4\r"),
    Case("cr alone, no end", b"a,b\r1,2\r3,4"),
    Case("mixed line ends", b"a,b\n1,2\r\n3,4\r5,6\n"),
    Case("newline in quotes", b'a,b\n"x\ny",1\n"\n",2\n'),
    Case("crlf in quotes", b'a,b\r\n"x\r\ny",1\r\n'),
    Case("cr in quotes", b'a,b\n"x\ry",1\n'),
    Case("delimiter in quotes", b'a,b\n"x,y",","\n'),
    Case("doubled quotes", b'a,b\n"he said ""hi"", ok",1\n"""",""""""\n'),
    Case("backslash before a quote", b'a,b\n"C:\\","z"\n'),
    Case("quoted header", b'"a b","c,d"\n1,2\n'),
    Case("newline in the header", b'"a\nb",c\n1,2\n3\n', lines=(4,)),
    Case("all quoted", b'"a","b"\n"1","2"\n"",""\n'),
    Case("empty and null", b'a,b\n,""\n"",\n'),
    Case("bom", b"\xef\xbb\xbfa,b\n1,2\n"),
    Case("bom before a quote", b'\xef\xbb\xbf"a",b\n1,2\n'),
    Case("bom in the first value", b"a,b\n\xef\xbb\xbf,1\n\xef\xbb\xbfx,2\n"),
    Case("empty last lines", b"a,b\n1,2\n\n\n"),
    Case("empty lines between", b"a,b\n\n1,2\n\r\n\n3,4\n"),
    Case("empty lines of one column", b"a\n\n1\n\n"),
    Case("spaces stay", b"a,b\n 1 , x\n\t,  \n"),
    Case("space before a quote", b'a,b\n1, "x"\n2,y\n', lines=(2,)),
    Case("space after a quote", b'a,b\n"1" ,x\n2,y\n', lines=(2,)),
    Case("text after a quote", b'a,b\n"x"y,1\n2,3\n', lines=(2,)),
    Case("quote in a bare field", b'a,b\n5" pipe,1\n2,3\n', lines=(2,)),
    Case("quotes in two bare fields", b'a,b\n5" x 6",1\n2,3"\n4,5\n', lines=(2, 3)),
    Case("bare quote before quoted newline", b'a,b\n5",1\n"x\ny",3\n', lines=(2,)),
    Case("quote escaped by a backslash", b'a,b\n"x\\"y",1\n2,3\n', lines=(2,)),
    Case("quote never closed", b'a,b\n1,2\n3,"x\n4,5\n', lines=(3,)),
    Case("lone quote at the end", b'a\n1\n"', lines=(3,)),
    Case("too few fields", b"a,b,c\n1,2,3\n1,2\n4,5,6\n", lines=(3,)),
    Case("too many fields", b"a,b\n1,2\n1,2,3\n4,5\n", lines=(3,)),
    Case("one field too many, empty", b"a,b\n1,2,\n3,4\n", lines=(2,)),
    Case("spaces on a line", b"a,b\n  \n1,2\n", lines=(2,)),
    Case("ragged after quoted newlines", b'a,b\n"1\n2\n3",x\n4\n5,6\n', lines=(5,)),
    Case("several bad ones", b"a,b\n1\n2,3\n4\n5,6,7\n", lines=(2, 4, 5)),
    Case("nul", b"a,b\n1,x\0y\n2,z\n", lines=(2,)),
    Case("not utf-8", b"a,b\n1,caf\xe9\n2,z\n", lines=(2,)),
    Case("half a character at the end", b"a,b\n1,x\n2,\xe2\x82", lines=(3,)),
    Case("encoded surrogate", b"a,b\n1,\xed\xa0\x80\n2,z\n", lines=(2,)),
    Case("overlong", b"a,b\n1,\xc0\xaf\n2,z\n", lines=(2,)),
    Case("unicode line ends stay", "a,b\n1,x\u2028y\x85z\x0c\x0b\x1c\n".encode()),
    Case("emoji and combining", "a,b\n🏳️‍🌈,é\n".encode()),
    Case("long field", b"a,b\n" + LONG + b',"' + LONG + b'"\n1,2\n'),
    Case("many columns", b",".join(b"c%d" % at for at in range(999)) + b"\n" + b"," * 998 + b"\n"),
    Case("numbers as they are", b"a,b,c\n01234,1.50,+1\n1e5,-0,0x10\n1_000,1.,.5\n"),
    Case("words for nothing", b"a,b\nNA,null\nNaN,None\n-,\\N\n"),
    Case("latin-1", "a,b\ncafé,ÿ\n".encode("latin-1"), options={"encoding": "latin-1"}),
    Case("cp1252 holes", b"a,b\n1,\x80\n2,\x81\n3,x\n", lines=(3,), options={"encoding": "cp1252"}),
    Case("utf-16", "a,b\nä,😀\n".encode("utf-16"), options={"encoding": "utf-16"}),
    Case("utf-16 be", "a,b\nä,😀\n".encode("utf-16-be"), options={"encoding": "utf-16-be"}),
    Case("utf-16 lone surrogate", b"a\0,\0b\0\n\0001\0,\0\x00\xd8\n\0002\0,\0003\0\n\0",
         lines=(2,), options={"encoding": "utf-16-le"}),
    Case("shift-jis", "a,b\n表,ソ\n".encode("shift-jis"), options={"encoding": "shift-jis"}),
    Case("semicolons", b'a;b\n1,5;"x;y"\n', options={"delimiter": ";"}),
    Case("bars", b"a|b\n1|2\n", options={"delimiter": "|"}),
    Case("no header", b"1,2\n3,4\n", options={"header": False}),
    Case("gzip", gzip.compress(b"a,b\n1,2\n"), name="x.csv.gz"),
    Case("two gzips", gzip.compress(b"a,b\n1,") + gzip.compress(b"2\n"), name="x.csv.gz"),
    Case("bzip2", bz2.compress(b"a,b\n1,2\n"), name="x.csv.bz2"),
    Case("gzip cut off", gzip.compress(LONG)[:-9], name="x.csv.gz", whole="damaged as a gz"),
    Case("utf-16 unsaid", "a,b\n1,2\n".encode("utf-16"), whole="give --encoding utf-16"),
    Case("empty", b"", whole="is empty"),
    Case("name twice", b"a,a\n1,2\n", whole="'a' more than once"),
    Case("no name", b",a\n0,1\n", whole="column 1 of 2 has no name"),
    Case("empty first line", b"\na,b\n1,2\n", whole="column 1 of 1 has no name"),
    Case("bare quote in the header", b'a"x,b\n1,2\n', whole="not quoted"),
    Case("semicolons unsaid", b"a;b\n1;2\n", whole="give --delimiter ';'"),
    _tsv("tabs", b"a\tb\n1\t2,3\n"),
    _tsv("tabs in quotes", b'a\tb\n"x\ty"\t"z\n"\n'),
    _tsv("empty fields", b'a\tb\n\t""\n'),
    _tsv("bare quotes", b'a\tb\n1\tsay "hi"\n2\tx\n', lines=(2,)),
    _tsv("ragged", b"a\tb\n1\n2\t3\t4\n5\t6\n", lines=(2, 3)),
]  # fmt: skip

JSON = [
    _json("lines", '{"a": 1}\n{"a": 2}\n'),
    _json("crlf and empty lines", '{"a": 1}\r\n\r\n  \n{"a": 2}'),
    _json("several a line", '{"a": 1} {"a": 2}{"a": 3}\n{"a": 4}\n'),
    _json("array", '[{"a": 1}, {"a": 2}]'),
    _json("pretty array", json.dumps([{"a": {"b": [1, 2]}}, {"a": None}], indent=2)),
    _json("pretty objects", '{\n "a": 1\n}\n{\n "a": 2\n}\n'),
    _json("one object", '{\n "a": {"b": "c"}\n}'),
    _json("bom", b'\xef\xbb\xbf{"a": "x"}\n'),
    _json("bom before an array", b'\xef\xbb\xbf[{"a": "x"}]'),
    _json("escapes", r'{"a": "\u00e9\n\"\\\/\ud83d\ude00"}' + "\n"),
    _json("half a pair", '{"a": "x"}\n' + r'{"a": "\ud83d"}' + "\n", lines=(2,)),
    _json("half a pair in a name", '{"a": "x"}\n' + r'{"\udc00": "y"}' + "\n", lines=(2,)),
    _json("separators in strings", '{"a": "x\u2028\u2029\x85y"}\n'),
    _json("int64 ends", '{"a": -9223372036854775808}\n{"a": 9223372036854775807}\n'),
    _json("uint64", '{"a": 18446744073709551615}\n{"a": 0}\n'),
    _json("beyond uint64", '{"a": 1}\n{"a": 18446744073709551616}\n', lines=(2,)),
    _json("uint64 and negative", '{"a": -1}\n{"a": 9223372036854775808}\n', lines=(2,)),
    _json("digits without end", '{"a": 1}\n{"a": ' + "9" * 5000 + "}\n", lines=(2,)),
    _json("floats that are whole", '{"a": 1.0}\n{"a": -0.0}\n{"a": 1e3}\n'),
    _json("whole and fractions", '{"a": 1}\n{"a": 2.5}\n'),
    _json("too large for a fraction", '{"a": 0.5}\n{"a": 9007199254740993}\n', lines=(2,)),
    _json("nan and infinity", '{"a": NaN}\n{"a": Infinity}\n{"a": -Infinity}\n'),
    _json("beyond a float", '{"a": Infinity}\n{"a": 1e999}\n{"a": [-1e999]}\n', lines=(2, 3)),
    _json("deep", '{"a": "x"}\n{"b": ' + '{"a":' * 49 + "1" + "}" * 49 + "}\n"),
    _json("too deep for arrow", '{"a": "x"}\n{"a": ' + "[" * 90 + "]" * 90 + "}\n", lines=(2,)),
    _json("too deep objects", '{"a": "x"}\n' + '{"b":' * 300 + "1" + "}" * 300, lines=(2,)),
    _json("name twice by an escape", '{"a": 1}\n{"a": 1, "\\u0061": 2}\n', lines=(2,)),
    _json("name twice", '{"a": 1}\n{"a": 1, "a": 2}\n', lines=(2,)),
    _json("name twice inside", '[{"a": {"b": 1}},\n {"a": {"b": 1, "b": 1}}]', lines=(2,)),
    _json(
        "name twice long before the end",
        '[{"a": {"b": 1}},\n {"a": {"b": 1, "b": 1}, "c": "' + "x" * (5 << 20) + '"}]',
        lines=(2,),
    ),
    _json(
        "name twice and broken", '[{"a": {"b": 1}},\n {"a": {"b": 1, "b": 1}, c}]', whole="x.json:2"
    ),
    _json("missing and null", '{"a": 1, "b": null}\n{"b": "x"}\n'),
    _json("nested", '{"a": {"b": [{"c": 1}, {"d": "x"}]}}\n{"a": {"e": true}}\n'),
    _json("empty lists", '{"a": []}\n{"a": ["x"]}\n'),
    _json("number and string", '{"a": 1}\n{"a": "1"}\n', lines=(2,)),
    _json("number and bool", '{"a": 1.5}\n{"a": true}\n', lines=(2,)),
    _json("bool and number", '{"a": true}\n{"a": 1}\n', lines=(2,)),
    _json("object and string", '{"a": {"b": 1}}\n{"a": "b"}\n', lines=(2,)),
    _json("list and scalar", '{"a": [1]}\n{"a": 1}\n', lines=(2,)),
    _json("mixed inside a list", '{"a": [1]}\n{"a": [1, "x"]}\n', lines=(2,)),
    _json("null among numbers", '{"a": [1, 2]}\n{"a": [1, null]}\n', lines=(2,)),
    _json("mixed in an array", '[{"a": 1},\n{"a": "x"}]', lines=(2,)),
    _json("no object", '{"a": 1}\n[1]\n"x"\n', lines=(2, 3)),
    _json("broken line", '{"a": 1}\n{"a": \n{"a": 3}\n', lines=(2,)),
    _json("rest on a line", '{"a": 1}\n{"a": 2}}\n{"a": 3}\n', lines=(2,)),
    _json("single quotes", "{\"a\": 1}\n{'a': 2}\n", lines=(2,)),
    _json("trailing comma", '{"a": 1}\n{"a": 2,}\n', lines=(2,)),
    _json("control character", '{"a": "x"}\n{"a": "x\ty"}\n', lines=(2,)),
    _json("nul", b'{"a": "x"}\n{"a": "x\0y"}\n', lines=(2,)),
    _json("not utf-8", b'{"a": "x"}\n{"a": "\xff"}\n', lines=(2,)),
    _json("not utf-8 in an array", b'[{"a": "x"},\n{"a": "\xff"}]', lines=(2,)),
    _json("too deep", '{"a": "x"}\n{"a": ' + "[" * 100_000 + "\n", lines=(2,)),
    _json("leading zero", '{"a": 1}\n{"a": 01}\n', lines=(2,)),
    _json("latin-1", '{"a": "é"}\n'.encode("latin-1"), options={"encoding": "latin-1"}),
    _json("utf-16", '[{"a": "é"}]'.encode("utf-16"), options={"encoding": "utf-16"}),
    _json("array cut off", '[{"a": 1},\n {"a": 2', whole="x.json:2"),
    _json("array with a last comma", '[{"a": 1},\n]', whole="x.json:2"),
    _json("array without a comma", '[{"a": 1}\n{"a": 2}]', whole="x.json:2"),
    _json("rest after an array", '[{"a": 1}]\n{"a": 2}', whole="x.json:2"),
    _json("object cut off", '{\n"a": 1\n', whole="x.json:1"),
    _json("nothing", " \n", whole="no record"),
]
