"""The configuration: precedence, errors that name the key, secrets that never show."""

from pathlib import Path

import pytest

from bus.contract import BusError
from bus.options import Tls
from services.backends import kafka_of, open_bus_of
from services.config import Config, ConfigError, load
from services.renamed_keys import RENAMED_KEYS


def config(folder: Path, text: str, *flags: str) -> Config:
    file = folder / "tidegate.toml"
    file.write_text(text)
    return load(file, flags)


def test_a_policy_may_be_a_table_and_a_flag_may_change_one_of_its_options(tmp_path: Path) -> None:
    table = """
        [scheduler.policy]
        name = "tide"
        patience_s = 7200
        [scheduler.policy.loans]
        cool_down_s = 300
    """
    line = "tide:patience_s=7200:loans.cool_down_s=300"
    assert config(tmp_path, table).scheduler.policy == line
    flag = "scheduler.policy.loans.cool_down_s=30"
    assert config(tmp_path, table, flag).scheduler.policy == line.removesuffix("0")
    assert config(tmp_path, table, "scheduler.policy=fifo").scheduler.policy == "fifo"
    with pytest.raises(ConfigError, match=r"scheduler\.policy: name: is missing"):
        config(tmp_path, "", flag)


def test_a_whole_file(tmp_path: Path) -> None:
    text = """
        cell = "west"
        bus = "kafka:"
        [kafka]
        bootstrap = "k1:9092,k2:9092"
        namespace = "plant"
        cells = ["east", "west"]
        replication = 3
        ca_file = "ca.pem"
        [mqtt]
        url = "mqtts://bridge@broker/plant"
        window = 50
        [scheduler]
        policy = "fifo"
        [scheduler.settings]
        cycle_s = 30
        [bridge]
        rate_per_s = 10
        [agent]
        name = "edge-1"
        trusted_keys = { k1 = "AAAA" }
        [agent.schedule]
        telemetry_every_s = 5
        [agent.limits]
        lease_grace_s = 60
        [agent.spool]
        messages = 100
        [agent.simulated]
        demand_gpus = [[0, 1], [3600, 4]]
    """
    found = config(tmp_path, text)
    kafka, mqtt = found.kafka.options(), found.mqtt.options()
    assert kafka.bootstrap == "k1:9092,k2:9092"
    assert (kafka.cells, kafka.partition("west")) == (("east", "west"), 1)
    assert (kafka.replication, kafka.tls) == (3, Tls(ca_file="ca.pem"))
    assert (mqtt.host, mqtt.port, mqtt.namespace) == ("broker", 8883, "plant")
    assert (mqtt.username, mqtt.window) == ("bridge", 50)
    assert found.scheduler.settings.cycle_s == 30.0
    assert found.scheduler.settings.lease_s == 900.0, "the others keep their defaults"
    assert found.bridge.rate_per_s == 10.0
    assert found.agent.schedule.telemetry_every_s == 5.0
    assert found.agent.limits.lease_grace_s == 60.0
    assert found.agent.spool is not None
    assert found.agent.spool.messages == 100
    assert found.agent.simulated.demand_gpus == ((0.0, 1.0), (3600.0, 4.0))


def test_flags_before_environment_before_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[kafka]\nbootstrap = 'file:1'\nnamespace = 'file'\nreplication = 2\n"
    monkeypatch.setenv("TIDEGATE_KAFKA__NAMESPACE", "environment")
    monkeypatch.setenv("TIDEGATE_KAFKA__REPLICATION", "3")
    monkeypatch.setenv("TIDEGATE_KAFKA__CELLS", "a,b")
    monkeypatch.setenv("TIDEGATE_CELL", "a")
    found = config(tmp_path, text, "kafka.replication=4", "scheduler.settings.cycle_s=9")
    assert (found.kafka.bootstrap, found.kafka.namespace) == ("file:1", "environment")
    assert found.kafka.replication == 4
    assert (found.cell, found.kafka.cells) == ("a", ("a", "b"))
    assert found.scheduler.settings.cycle_s == 9.0


def test_the_brokers_addresses_have_variables_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA_BOOTSTRAP", "here:1")
    monkeypatch.setenv("TIDEGATE_MQTT_URL", "mqtt://here:2")
    monkeypatch.setenv("TIDEGATE_LOG", "run.db")  # what the operator's verbs read
    found = config(tmp_path, "[kafka]\nbootstrap = 'file:1'\n")
    assert (found.kafka.bootstrap, found.mqtt.options().port) == ("here:1", 2)
    monkeypatch.setenv("TIDEGATE_KAFKA__BOOTSTRAP", "there:1")
    assert config(tmp_path, "").kafka.bootstrap == "there:1"


@pytest.mark.parametrize(
    ("text", "flags", "sentence"),
    [
        ("[kafka]\nbootstrp = ''", (), "kafka.bootstrp: no such key; did you mean bootstrap?"),
        ("[kafak]", (), "kafak: no such key; did you mean kafka?"),
        (
            "[agent.schedule]\ntelemtry_every_s = 1",
            (),
            "agent.schedule.telemtry_every_s: no such key; did you mean telemetry_every_s?",
        ),
        ("[scheduler.settings]\nlease_s = 3", (), "lease_s must be above silence_s"),
        ("[scheduler.settings]\ncycle_s = 1e-300", (), "cycle_s must be at least 0.001"),
        ("x = " + "[" * 20_000, (), "nested too deeply"),
        ("[bridge]\nburst = 0", (), "bridge.burst: input should be greater than 0"),
        ("[scheduler]\ngather_s = 'soon'", (), "scheduler.gather_s: input should be a valid"),
        ("[agent]\nname = 'a b'", (), "agent.name: string should match"),
        ("[kafka]\npassword = 'x'\npassword_file = 'y'", (), "not both"),
        ("[agent.simulated]\ndemand_gpus = [[5, 1], [5, 2]]", (), "demand_gpus"),
        ("[agent.simulated]\ndemand_gpus = [[5, 1e7]]", (), "demand_gpus: 1e+07 GPUs are not from"),
        ("[agent.simulated]\ndemand_gpus = 1e7", (), "demand_gpus: input should be less than or"),
        ("[mqtt]\nsession_s = 9_999_999_999", (), "mqtt.session_s: input should be less than or"),
        ("[kafka]\nreplication = 40_000", (), "kafka.replication: input should be less than or"),
        ("[kafka", (), "is not TOML"),
        ("cell = " + "9" * 5000, (), "tidegate.toml: is not TOML: Exceeds the limit"),
        ("", ("kafka.replication=" + "9" * 5000,), "kafka.replication: "),
        ("[mqtt]\nkeepalive_s = true", (), "mqtt.keepalive_s: is true, which is none of its"),
        ("[scheduler.settings]\ncycle_s = true", (), "scheduler.settings: cycle_s: is true, which"),
        ("", ("scheduler.settings.edge_lease_s=false",), "edge_lease_s: is false, which is none"),
        ("[agent.schedule]\ndrain_s = true", (), "agent.schedule: drain_s: is true, which is none"),
        ("", ("agent.limits.resumes_max=true",), "agent.limits: resumes_max: is true, which is"),
        ("", ("kafka.replication=two",), "kafka.replication: input should be a valid integer"),
        ("", ("kafka",), "--set kafka: write it as section.key=value"),
        ("", ("kafka=1", "kafka.cells=a"), "--set kafka.cells: kafka was given a value before"),
        ("", ("scheduler.nmae=x",), "scheduler.nmae: no such key; did you mean name?"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_key(
    tmp_path: Path, text: str, flags: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        config(tmp_path, text, *flags)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_wrong_keys_are_named_a_line_for_each(tmp_path: Path) -> None:
    text = """
        [kafka]
        bootstrp = "k:1"
        replication = 0
        [http]
        port = "soon"
        [agent.schedule]
        telemtry_every_s = 1
    """
    with pytest.raises(ConfigError) as raised:
        config(tmp_path, text)
    said = str(raised.value).splitlines()
    assert [line.split(": ")[1] for line in said] == [
        "kafka.replication",
        "kafka.bootstrp",
        "http.port",
        "agent.schedule.telemtry_every_s",
    ]
    assert all(line.startswith(f"{tmp_path / 'tidegate.toml'}: ") for line in said)


def test_an_old_name_of_a_key_is_taken_and_told_of(tmp_path: Path) -> None:
    text = """
        [agent]
        runs = "processes"
        [agent.workers]
        folder = "/tmp/runs"
        checkpoints = "file:///tmp/store"
        keep = 5
    """
    found = config(tmp_path, text, "agent.slurm.pending_s=7")
    assert found.agent.workers is not None
    assert found.agent.workers.checkpoint_retention == 5
    assert found.agent.slurm.pending_timeout_s == 7.0
    assert found.deprecated == (
        "agent.workers.keep is now checkpoint_retention; the next release refuses the old name",
        "agent.slurm.pending_s is now pending_timeout_s; the next release refuses the old name",
    )
    assert config(tmp_path, "").deprecated == ()


def test_every_renamed_key_exists(tmp_path: Path) -> None:
    for section, names in RENAMED_KEYS.items():
        for old, new in names.items():
            for name in (old, new):
                with pytest.raises(ConfigError) as raised:
                    config(tmp_path, "", f"{section}.{name}=[]")
                wrong = [line for line in raised.value.lines if f"{section}.{new}: " in line]
                assert wrong, raised.value
                assert "no such key" not in wrong[0]


@pytest.mark.parametrize("flag", ["agent.slurm.pending_s=9", "agent.slurm.pending_timeout_s=9"])
def test_a_flag_goes_before_the_file_under_either_name(tmp_path: Path, flag: str) -> None:
    for name in ("pending_s", "pending_timeout_s"):
        found = config(tmp_path, f"[agent.slurm]\n{name} = 3\n", flag)
        assert found.agent.slurm.pending_timeout_s == 9.0


def test_both_names_in_one_source_are_refused(tmp_path: Path) -> None:
    text = "[agent.slurm]\npending_s = 3\npending_timeout_s = 3\n"
    said = "agent.slurm.pending_s is the old name of agent.slurm.pending_timeout_s: give one"
    with pytest.raises(ConfigError, match=said) as raised:
        config(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / 'tidegate.toml'}: ")


def test_who_leads_is_said_before_readers_take_a_log_for_old(tmp_path: Path) -> None:
    """They do after three minutes, whatever is configured."""
    assert config(tmp_path, "[scheduler]\nheartbeat_s = 60").scheduler.heartbeat_s == 60.0
    with pytest.raises(ConfigError, match=r"scheduler\.heartbeat_s: .*less than or equal to 60"):
        config(tmp_path, "[scheduler]\nheartbeat_s = 61")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[scheduler.pool]]\nname = 't'\nkind = 'edge'", "scheduler.pool.0.gpus_per_node: field"),
        (
            "[[scheduler.pool]]\nnmae = 't'",
            "scheduler.pool.0.nmae: no such key; did you mean name?",
        ),
        (
            "[scheduler.pool]\nname = 't'",
            "scheduler.pool: should be a list; write [[scheduler.pool]]",
        ),
        ("[scheduler.trusted_gateways.a]\nkey = 'x'", "scheduler.trusted_gateways.a.may: field"),
        ("[[gateway.auth.robots]]\nrole = 'boss'", "gateway.auth.robots.0.role: input should be"),
        ("[agent]\nnodes = 5", "agent.nodes: should be a list"),
        ("[agent]\ngpus_per_node = 65", "agent.gpus_per_node: input should be less than or equal"),
        ("[agent]\ngpus = 65", "agent.gpus: input should be less than or equal to 64"),
        ("scheduler = 5", "scheduler: should be a table, [scheduler]"),
        ("[kafka]\ncells = []", "kafka.cells: name one cell at least, and each once"),
        ("[kafka]\ncells = ['a', 'a']", "kafka.cells: name one cell at least, and each once"),
        ("[kafka]\nnamespace = 'a b'", "kafka.namespace: "),
        ("[mqtt]\nnamespace = 'a#'", "mqtt.namespace: "),
        ("[http]\nhost = ''", "http.host: "),
        (
            "[scheduler.settings]\ncycle_s = 1e9",
            "scheduler.settings: cycle_s must be above 0, b",
        ),
    ],
)
def test_what_is_wrong_is_said_of_its_own_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(tmp_path, text)
    assert f": {said}" in str(raised.value)


@pytest.mark.parametrize("section", ["kafka", "mqtt"])
def test_a_file_of_a_password_that_is_not_there_is_named_with_its_key(
    tmp_path: Path, section: str
) -> None:
    where = "bootstrap = 'h:1'" if section == "kafka" else "url = 'mqtt://h'"
    found = config(tmp_path, f"[{section}]\n{where}\npassword_file = '/nowhere/word'")
    with pytest.raises(BusError, match=f"{section}.password_file: /nowhere/word cannot be read"):
        getattr(found, section).options()


def test_sasl_needs_a_user_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[kafka]\nbootstrap = 'h:1'\nsasl = 'PLAIN'"  # for several roles
    with pytest.raises(BusError, match=r"^kafka\.sasl needs kafka\.username"):
        config(tmp_path, text).kafka.options()
    monkeypatch.setenv("TIDEGATE_KAFKA__USERNAME", "u")
    monkeypatch.setenv("TIDEGATE_KAFKA__PASSWORD", "pw")
    assert config(tmp_path, text).kafka.options().username == "u"


def test_a_variable_of_no_section_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFAK__CELLS", "a")
    with pytest.raises(ConfigError, match="did you mean kafka"):
        config(tmp_path, "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


def test_secrets_do_not_show(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("hush-file\n")
    text = f"""
        [kafka]
        bootstrap = "k:1"
        password = "hush-kafka"
        [mqtt]
        url = "mqtt://me:hush-url@broker"
        password_file = "{tmp_path / "word"}"
    """
    found = config(tmp_path, text)
    assert found.kafka.options().password == "hush-kafka"
    assert found.mqtt.options().password == "hush-file"
    shown = [repr(found), str(found.model_dump()), found.model_dump_json()]
    shown += [repr(found.kafka.options()), repr(found.mqtt.options())]
    assert not [text for text in shown if "hush" in text]
    with pytest.raises(ConfigError) as raised:
        config(tmp_path, "[kafka]\npassword = ['hush']")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("broker:1883", r"this is no MQTT address; write mqtt://HOST:PORT"),
        ("http://broker:80", r"http://broker is no MQTT address"),
        ("mqtt://broker:99999", r"mqtt://broker is not followed by a port from 1 to 65535"),
        ("mqtt://me:hush/hush@broker", r"mqtt://me is not followed by .* in mqtt\.password_file"),
    ],
)
def test_an_mqtt_address_that_is_none_names_its_key_and_no_password(
    tmp_path: Path, url: str, said: str
) -> None:
    found = config(tmp_path, f"[mqtt]\nurl = '{url}'")
    with pytest.raises(BusError, match=r"^mqtt\.url \(or TIDEGATE_MQTT_URL\): " + said) as raised:
        found.mqtt.options()
    assert "hush" not in str(raised.value)


def test_which_bus(tmp_path: Path) -> None:
    assert kafka_of(config(tmp_path, "bus = 'sqlite:x.db'")) is None
    with pytest.raises(BusError, match=r"kafka\.bootstrap is not set"):
        kafka_of(config(tmp_path, ""))
    with pytest.raises(BusError, match="is no bus of a service"):
        kafka_of(config(tmp_path, "bus = 'memory:'"))
    named = kafka_of(config(tmp_path, "bus = 'kafka://h:9/plant'\n[kafka]\nreplication = 3"))
    assert named is not None
    assert (named.bootstrap, named.namespace, named.replication) == ("h:9", "plant", 3)
    with pytest.raises(BusError, match="names no file"):
        open_bus_of(config(tmp_path, "bus = 'sqlite:'"), None, None, "default")  # type: ignore[arg-type]
