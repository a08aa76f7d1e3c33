"""YAML with lines: values, places, and every way a file can be refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from onebit.config.yaml_lines import MAX_BYTES, read_yaml
from onebit.findings import UsageError


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_values_and_places(tmp_path: Path) -> None:
    path = write(
        tmp_path, "model: ./x\nnpu:\n  streams: 2\n  options: {A: b, C: d}\nlist:\n- 1\n- x\n"
    )
    document = read_yaml(path)
    assert document.values == {
        "model": "./x",
        "npu": {"streams": 2, "options": {"A": "b", "C": "d"}},
        "list": [1, "x"],
    }
    assert document.places[("model",)] == (1, 1)
    assert document.places[("npu", "streams")] == (3, 3)
    assert document.places[("npu", "options", "C")] == (4, 19)
    assert document.places[("list", 1)] == (7, 3)


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# only a comment\n")).values == {}


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, b"\xef\xbb\xbfport: 1\n")).values == {"port": 1}


def test_anchors_and_merges(tmp_path: Path) -> None:
    text = "a: &base {x: 1, y: 2}\nb:\n  <<: *base\n  y: 3\nc: *base\n"
    document = read_yaml(write(tmp_path, text))
    assert document.values == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}}
    assert document.places[("b", "y")] == (4, 3)
    assert document.places[("b", "x")] == (1, 11)


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        ("port: 1\nhost: a\nport: 2\n", "config.duplicate_key", 3, "line 1"),
        ("npu:\n  streams: 1\n  streams: 1\n", "config.duplicate_key", 3, "`streams`"),
        ("port: [1\n", "config.yaml", 2, "not YAML"),
        ("a: 1\n b: 2\n", "config.yaml", 2, "not YAML"),
        ("- 1\n- 2\n", "config.not_a_mapping", 1, "KEY: VALUE"),
        ("just words\n", "config.not_a_mapping", 1, "KEY: VALUE"),
        ("a: !!python/object:os.system x\n", "config.yaml", 1, "python/object"),
        ("? [1, 2]\n: 3\n", "config.bad_key", 1, "one word"),
        ("a: &a [*a]\n", "config.too_large", 1, "levels"),
        ("a: 1\n---\nb: 2\n", "config.yaml", 2, "not YAML"),
        ("a: \x01\n", "config.yaml", None, "not YAML"),
        ("a: 2001-99-99\n", "config.yaml", 1, "quotes"),
        ("<<: 3\n", "config.yaml", 1, "mappings"),
    ],
)
def test_refusals_name_file_and_line(
    tmp_path: Path, text: str, code: str, line: int | None, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_yaml(path)
    (finding,) = caught.value.findings
    assert finding.code == code
    assert finding.where.file == str(path)
    assert finding.where.line == line
    assert words in str(finding)


def test_a_file_that_multiplies_itself_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(UsageError, match="anchors followed"):
        read_yaml(write(tmp_path, "\n".join(lines)))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match=r"cannot be read: .*directory"):
        read_yaml(tmp_path)
    with pytest.raises(UsageError, match="not UTF-8"):
        read_yaml(write(tmp_path, b"a: \xff\n"))
    with pytest.raises(UsageError, match="larger than"):
        read_yaml(write(tmp_path, b"#" * (MAX_BYTES + 1)))
