"""Functions that make nets: found and hashed without being run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.catalogue import AnyNet, OwnNet, find_file, own_net
from paperbench.errors import PaperbenchError
from paperbench.typed import from_json, to_json


def net_of(root: Path, text: bytes, function: str = "nets.py:net") -> AnyNet:
    (root / "nets.py").write_bytes(text)
    return own_net(function, {}, 10, 32, root)


def test_file_is_hashed_without_running_it_and_whatever_its_line_ends(tmp_path: Path) -> None:
    text = b"raise SystemExit\ndef net(num_classes): ...\n"
    assert net_of(tmp_path, text) == net_of(tmp_path, text.replace(b"\n", b"\r\n"))
    assert net_of(tmp_path, text) != net_of(tmp_path, text + b"#")


def test_module_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    for name in ("__init__", "nets"):
        (package / f"{name}.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)  # which is not on the path
    assert find_file("some_package.nets:net", Path()) == package / "nets.py"


def test_function_of_a_record_is_not_run_unless_a_table_names_it(tmp_path: Path) -> None:
    known = net_of(tmp_path, b"def net(num_classes): ...")
    assert known.is_at_hand
    for other in (OwnNet("subprocess:run", "0" * 64, {}, 10, 32), OwnNet("nets.py:net", "1" * 64, {}, 10, 32)):
        assert not other.is_at_hand
        with pytest.raises(PaperbenchError, match="--tables"):
            _ = other.file


def test_argument_that_is_none_makes_another_net(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text("def net(num_classes, norm='bn'): ...")
    one, other = (own_net("nets.py:net", arguments, 10, 32, tmp_path) for arguments in ({}, {"norm": None}))
    assert one.canonical() != other.canonical()
    assert from_json(OwnNet, to_json(other)) == other == OwnNet(**other.canonical())


@given(st.one_of(st.text(), st.from_regex(r"[\w./]{0,9}(\.py)?:\w{0,9}", fullmatch=True)))
def test_what_names_no_function_is_an_error_of_one_line(name: str) -> None:
    with pytest.raises(PaperbenchError) as caught:
        find_file(name, Path("/nowhere"))
    assert "\n" not in str(caught.value).strip()
