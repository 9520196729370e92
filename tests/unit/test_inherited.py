import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccltune.machine.inherited import parse_conf, read_inherited

OLD, NEW = (2, 29, 7), (2, 30, 0)


@pytest.fixture
def machine(tmp_path):
    """A root with ``/etc/nccl.conf`` and a home with ``.nccl.conf``; the environment that belongs to them."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_A=etc\nNCCL_B=etc\nNCCL_C=etc\nSECRET_TOKEN=etc\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.nccl.conf").write_text("NCCL_A=home\nNCCL_B=home\n")
    return tmp_path


def read(machine, environ=(), version=NEW, **more):
    given_home = {"HOME": str(machine / "home")}
    return read_inherited({**given_home, **dict(environ)}, nccl_version=version, root=machine, **more)


def test_environment_before_user_before_system(machine):
    told = read(machine, {"NCCL_A": "real", "OTHER": "x", "TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_LOGS": "x"})
    assert told.settings == {
        "NCCL_A": "real",
        "NCCL_B": "home",
        "NCCL_C": "etc",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
    }
    home = f"{machine}/home/.nccl.conf"
    assert told.sources == {
        "NCCL_A": "environment",
        "NCCL_B": home,
        "NCCL_C": "/etc/nccl.conf",
        "TORCH_NCCL_BLOCKING_WAIT": "environment",
    }
    assert told.files == (home, "/etc/nccl.conf")
    assert told.shadowed == (f"NCCL_A {home}", "NCCL_A /etc/nccl.conf", "NCCL_B /etc/nccl.conf")
    assert told.others == ("SECRET_TOKEN",)
    assert "etc'" not in str(told.others)


def test_an_empty_value_is_a_set_one(machine):
    assert read(machine, {"NCCL_A": ""}).settings["NCCL_A"] == ""


def test_a_named_file_stands_in_for_the_home_s(machine):
    named = machine / "named.conf"
    named.write_text("NCCL_A=named\n")
    environ = {"NCCL_CONF_FILE": str(named)}
    assert read(machine, environ).settings["NCCL_A"] == "named"
    assert read(machine, environ).settings["NCCL_B"] == "etc"
    old = read(machine, environ, (2, 22, 3), passwd_home=str(machine / "home"))
    assert old.settings["NCCL_A"] == "home", "the variable is not known before 2.23"
    assert read(machine, {"NCCL_CONF_FILE": ""}).settings["NCCL_A"] == "home"


def test_a_named_file_that_is_missing_hides_the_home_s(machine):
    told = read(machine, {"NCCL_CONF_FILE": "/nowhere/x.conf"})
    assert told.settings["NCCL_A"] == "etc"
    assert told.missing_file == "/nowhere/x.conf"
    masked = read(machine, {"NCCL_CONF_FILE": "/dev/null"})
    assert masked.settings["NCCL_A"] == "etc"
    assert masked.missing_file is None


def test_home_by_version(machine):
    other = machine / "other"
    other.mkdir()
    (other / ".nccl.conf").write_text("NCCL_A=passwd\n")
    assert read(machine, version=OLD, passwd_home=str(other)).settings["NCCL_A"] == "passwd"
    assert read(machine, version=NEW, passwd_home=str(other)).settings["NCCL_A"] == "home"
    assert read_inherited({}, nccl_version=NEW, root=machine).settings["NCCL_A"] == "etc"


def test_lines_as_nccl_reads_them():
    content = (
        b'# NCCL_COMMENT=1\n #NCCL_NO_COMMENT=1\nNCCL_A = 1 # kept\nNCCL_B="x"\nexport NCCL_C=1\nNCCL_D\n=1\n'
        b"NCCL_E=a=b\nNCCL_E=second\nNCCL_F=\nNCCL_G=1\r\nNCCL_H=last"
    )
    lines = [
        (" #NCCL_NO_COMMENT", "1"), ("NCCL_A ", " 1 # kept"), ("NCCL_B", '"x"'), ("export NCCL_C", "1"),
        ("NCCL_E", "a=b"), ("NCCL_E", "second"), ("NCCL_F", ""), ("NCCL_G", "1"), ("NCCL_H", "last"),
    ]  # fmt: skip
    assert parse_conf(content, NEW) == lines
    assert parse_conf(content, OLD) == [(name, "1\r" if name == "NCCL_G" else value) for name, value in lines]


def test_the_first_line_of_a_name_holds(machine):
    (machine / "home/.nccl.conf").write_text("NCCL_A=first\nNCCL_A=second\n")
    assert read(machine).settings["NCCL_A"] == "first"


def test_long_values_are_cut_as_nccl_cuts_them():
    assert parse_conf(b"N" * 2000 + b"=" + b"v" * 2000, NEW) == [("N" * 1023, "v" * 1023)]


@given(st.binary())
def test_no_content_raises(content):
    for name, _ in parse_conf(content, NEW):
        assert name


def put_library(folder, name):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    return str(folder / name)


def test_plugins_that_load_by_themselves(machine):
    tuner = put_library(machine / "lib", "libnccl-tuner.so")
    path = {"LD_LIBRARY_PATH": "/nowhere"}
    told = read(machine, path)
    assert [(plugin.kind, plugin.path, plugin.source) for plugin in told.plugins] == [("tuner", tuner, "system")]
    assert read(machine, {**path, "NCCL_TUNER_PLUGIN": "none"}).plugins == ()
    assert read(machine, path, names=["NCCL_NET_PLUGIN"]).plugins == (), "this library knows no tuner plugins"
    assert read(machine, path, names=["NCCL_TUNER_PLUGIN"]).plugins == told.plugins


def test_plugins_that_a_variable_names(machine):
    net = put_library(machine / "extra", "libnccl-net-fast.so")
    told = read(machine, {"LD_LIBRARY_PATH": str(machine / "extra"), "NCCL_NET_PLUGIN": "fast"})
    assert [(plugin.kind, plugin.path, plugin.source) for plugin in told.plugins] == [("net", net, "NCCL_NET_PLUGIN")]
    gone = read(machine, {"NCCL_NET_PLUGIN": "/nowhere/libx.so"})
    assert gone.plugins[0].path == "/nowhere/libx.so"
