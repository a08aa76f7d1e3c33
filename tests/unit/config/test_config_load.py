"""Values come from file, environment and flags, and each knows from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebit.config import ServeConfig, load_config
from onebit.config.values import parse_bytes
from onebit.config.walk import leaf_of, leaves
from onebit.findings import Finding, UsageError


def load(
    tmp_path: Path,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
):
    path = None
    if text is not None:
        path = tmp_path / "serve.yaml"
        path.write_text(text)
    given = {
        leaf_of(name).keys: (leaf_of(name).flag, value) for name, value in (flags or {}).items()
    }
    return load_config(path, environ, given)


def refused(tmp_path: Path, *args: Any, **kwargs: Any) -> list[Finding]:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, *args, **kwargs)
    return list(caught.value.findings)


def test_defaults_alone() -> None:
    loaded = load_config()
    assert loaded.config == ServeConfig()
    assert loaded.sources == {}
    assert str(loaded.source("port")) == "default"
    assert loaded.config.host == "127.0.0.1"  # supervisors send no --host


def test_flags_over_environment_over_file(tmp_path: Path) -> None:
    text = "port: 1\nalias: file\nctx_size: 100\nengine: {queue: 3}\n"
    environ = {"ONEBIT_PORT": "2", "ONEBIT_ALIAS": "env", "ONEBIT_ENGINE__QUEUE": "4", "PATH": "x"}
    loaded = load(tmp_path, text, environ, {"port": "3"})
    config = loaded.config
    assert (config.port, config.alias, config.ctx_size, config.engine.queue) == (3, "env", 100, 4)
    file = tmp_path / "serve.yaml"
    assert str(loaded.source("port")) == "flag --port"
    assert str(loaded.source("alias")) == "env ONEBIT_ALIAS"
    assert str(loaded.source("ctx_size")) == f"{file}:3"
    assert str(loaded.source("engine.queue")) == "env ONEBIT_ENGINE__QUEUE"
    assert str(loaded.source("engine.deadline")) == "default"


def test_options_merge_key_by_key(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "npu:\n  options: {A: 1, B: x}\n",
        {"ONEBIT_NPU__OPTIONS__C": "env"},
        {"npu.options": {"B": "flag"}},
    )
    assert loaded.config.npu.options == {"A": "1", "B": "flag", "C": "env"}
    assert str(loaded.source("npu.options.A")) == f"{tmp_path}/serve.yaml:2"
    assert str(loaded.source("npu.options.C")) == "env ONEBIT_NPU__OPTIONS__C"
    assert str(loaded.source("npu.options.B")) == "flag --npu-opt"


def test_relative_paths_start_at_the_file_that_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    path = folder / "serve.yaml"
    path.write_text("model: ../m\nkernels: k\napi: {keys_file: /abs/keys}\n")
    config = load_config(path, {"ONEBIT_ROUTER__LAYA_MODEL": "here"}, {}).config
    assert config.model == folder / "../m"
    assert config.kernels == folder / "k"
    assert config.api.keys_file == Path("/abs/keys")
    assert config.router.laya_model == Path("here")


def test_home_directories_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert load(tmp_path, "model: ~/m\n").config.model == Path("/home/someone/m")
    assert load(tmp_path, None, {"ONEBIT_MODEL": "~/m"}).config.model == Path("/home/someone/m")


def test_lists_come_as_lists_or_with_commas(tmp_path: Path) -> None:
    config = load(tmp_path, "api: {cors_origins: [a, b]}\n", {"ONEBIT_API__KEYS": "k1, k2"}).config
    assert config.api.cors_origins == ("a", "b")
    assert [key.get_secret_value() for key in config.api.keys] == ["k1", "k2"]


@pytest.mark.parametrize(
    ("line", "name", "nearest"),
    [
        ("prot: 1", "prot", "port"),
        ("npu: {stream: 1}", "npu.stream", "npu.streams"),
        ("streams: 1", "streams", "npu.streams"),
        ("npu: {ctx_size: 1}", "npu.ctx_size", "ctx_size"),
        ("log_level: info", "log_level", "logging.level"),
        ("engine: {kv-memory: 1}", "engine.kv-memory", "engine.kv_memory"),
        ("modle: x", "modle", "model"),
    ],
)
def test_unknown_keys_name_the_nearest(tmp_path: Path, line: str, name: str, nearest: str) -> None:
    (finding,) = refused(tmp_path, f"alias: x\n{line}\n")
    assert finding.code == "config.unknown_key"
    assert finding.where.file == str(tmp_path / "serve.yaml")
    assert finding.where.line == 2
    assert finding.where.field == name
    assert f"`{nearest}`" in finding.mend


def test_a_key_like_nothing_points_to_the_schema(tmp_path: Path) -> None:
    (finding,) = refused(tmp_path, "zzzzqqqq: 1\n")
    assert "onebit schema serve-config" in finding.mend


def test_all_findings_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = "port: 70000\nthreads: many\nnpu:\n  streams: 9\n  gemm: moon\nengine: 3\n"
    findings = refused(tmp_path, text, {"ONEBIT_CTX_SIZE": "-1", "ONEBIT_PROT": "1"})
    places = {f.where.field: (f.where.line, f.where.column) for f in findings}
    assert places == {
        "port": (1, 1),
        "threads": (2, 1),
        "npu.streams": (4, 3),
        "npu.gemm": (5, 3),
        "engine": (6, 1),
        "ctx_size (env ONEBIT_CTX_SIZE)": (None, None),
        "ONEBIT_PROT": (None, None),
    }
    text = "\n".join(map(str, findings))
    assert "65535, got 70000" in text
    assert "'device' or 'host', got 'moon'" in text
    assert "did you mean ONEBIT_PORT?" in text


def test_ambient_variables_are_no_settings() -> None:
    environ = {"ONEBIT_NPU_KERNELS": "/k", "ONEBIT_CACHE_DIR": "/c", "ONEBIT_ISA": "avx2"}
    assert load_config(None, environ).sources == {}


def test_a_bad_key_is_never_echoed(tmp_path: Path) -> None:
    (finding,) = refused(tmp_path, "api:\n  keys: [secret-one, 12345]\n")
    assert "12345" not in str(finding)
    assert finding.where.line == 2
    assert "secret" not in repr(load(tmp_path, "api: {keys: [secret-one]}\n").config)


def test_exact_is_another_name_for_f32(tmp_path: Path) -> None:
    assert load(tmp_path, "numerics: exact\n").config.numerics == "f32"


@pytest.mark.parametrize(
    ("text", "value"),
    [("2GiB", 2 << 30), ("1.5 kB", 1500), ("7", 7), ("512MB", 512_000_000), ("3 b", 3)],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["2 parsecs", "GiB", "-1MB", "1e3", ""])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="number of bytes"):
        parse_bytes(text)


def test_every_setting_has_a_description_a_variable_and_a_flag() -> None:
    names = [leaf.name for leaf in leaves()]
    assert len({leaf.env for leaf in leaves()}) == len(names)
    assert len({leaf.flag for leaf in leaves()}) == len(names)
    for leaf in leaves():
        assert leaf.field.description, leaf.name


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*ServeConfig.model_fields, "streams", "x", "keys"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_yaml_is_a_config_or_findings(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    import yaml

    path = tmp_path_factory.mktemp("any") / "serve.yaml"
    path.write_text(yaml.safe_dump(value))
    try:
        loaded = load_config(path)
    except UsageError as problem:
        findings = problem.findings
    else:
        assert isinstance(loaded.config, ServeConfig)
        return
    assert all(finding.where.file or finding.where.field for finding in findings)
