"""Security settings: what is read, what is refused, and that no password is shown."""

import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.settings import PASSWORD_VARIABLE, kafka_settings
from tocsin.schemas.kafka.words import hush_kafka, sentence

PASSWORD = "never-to-be-seen"
SASL = 'security_protocol = "SASL_SSL"\nsasl_mechanism = "SCRAM-SHA-512"\nsasl_username = "tocsin"\n'
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="al" password="{PASSWORD}";'


def write(folder: Path, text: str, name: str = "kafka.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_without_a_file_there_is_no_security() -> None:
    settings = kafka_settings("a:9092, b:9093")

    assert settings.client_options() == {"bootstrap_servers": ["a:9092", "b:9093"], "security_protocol": "PLAINTEXT"}
    assert settings.java_properties() == {"bootstrap.servers": "a:9092,b:9093", "security.protocol": "PLAINTEXT"}


@pytest.mark.parametrize("servers", ["", "host", "host:", ":9092", "host:0", "host:99999", "http://host:9092", "a:1,b"])
def test_an_address_that_is_none_is_refused(servers: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        kafka_settings(servers)


def test_a_password_comes_from_its_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    settings = kafka_settings("h:1", write(tmp_path, f'{SASL}sasl_password_file = "{file}"'))

    assert settings.client_options()["sasl_plain_password"] == "first"
    file.write_text("second")
    assert settings.client_options()["sasl_plain_password"] == "second"
    assert settings.client_options()["sasl_mechanism"] == "SCRAM-SHA-512"


def test_a_password_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = kafka_settings("h:1", write(tmp_path, SASL))
    with pytest.raises(ConfigError, match=PASSWORD_VARIABLE):
        settings.client_options()
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)

    assert settings.client_options()["sasl_plain_password"] == PASSWORD


def test_java_s_names_mean_the_same(tmp_path: Path) -> None:
    text = f"""
# as another client has it
security.protocol=SASL_SSL
sasl.mechanism = PLAIN
sasl.jaas.config={JAAS}
ssl.truststore.type=PEM
ssl.truststore.location={tmp_path}/ca.pem
ssl.endpoint.identification.algorithm=
"""
    settings = kafka_settings("h:1", write(tmp_path, text, "client.properties"))

    assert (settings.protocol, settings.mechanism, settings.username) == ("SASL_SSL", "PLAIN", "al")
    assert settings.password.read("x") == PASSWORD
    assert (settings.ca_file, settings.is_hostname_checked) == (f"{tmp_path}/ca.pem", False)
    assert settings.java_properties()["sasl.jaas.config"] == f"org.apache.flink.kafka.shaded.{JAAS}"


def test_quotes_in_names_and_passwords_survive_java_s_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, 'a"b\\c;d=e')
    java = kafka_settings("h:1", write(tmp_path, SASL)).java_properties()
    again = kafka_settings(
        "h:1",
        write(tmp_path, "".join(f"{k}={v}\n" for k, v in java.items() if "." in k and k[:4] != "boot"), "c.properties"),
    )

    assert again.password.read("x") == 'a"b\\c;d=e'


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("k.toml", "security_protocol = ", "TOML"),
        ("k.toml", 'security_protocol = "TLS"', "security_protocol = 'TLS': must be one of PLAINTEXT"),
        ("k.toml", 'securityprotocol = "SSL"', "securityprotocol = '...': must be one of security_protocol"),
        ("k.toml", "sasl_username = 5", "a text in quotes"),
        ("k.toml", 'ssl_check_hostname = "no"', "true or false"),
        ("k.toml", f'sasl_password = "{PASSWORD}"', "in a file of its own"),
        ("k.toml", f'sasl_plain_password = "{PASSWORD}"', "sasl_plain_password = '...'"),
        ("k.toml", f'sasl_pass = "{PASSWORD}"', "sasl_pass = '...'"),
        ("k.toml", 'security_protocol = "SASL_SSL"', "sasl_mechanism"),
        ("k.toml", 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"', "sasl_username"),
        ("k.toml", 'sasl_mechanism = "PLAIN"', "security_protocol"),
        ("k.toml", 'ssl_ca_file = "x"', "SSL or SASL_SSL with ssl_ files"),
        ("k.properties", "security.protocol", "NAME=VALUE"),
        ("k.properties", f"ssl.key.password {PASSWORD}", "line = 'ssl.key.password ...': must be NAME=VALUE"),
        ("k.properties", "client.id=x", "one of security.protocol"),
        ("k.properties", "ssl.truststore.type=JKS", "PEM: key stores of Java cannot be read"),
        ("k.properties", f"ssl.truststore.password={PASSWORD}", "one of security.protocol"),
        ("k.properties", f"ssl.keystore.key=-----BEGIN {PASSWORD}", "ssl.keystore.key = '...'"),
        ("k.properties", "sasl.jaas.config=Module required;", "sasl.jaas.config"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, name: str, text: str, reported: str) -> None:
    path = write(tmp_path, text, name)
    with pytest.raises(ConfigError) as caught:
        kafka_settings("h:1", path)

    assert path in str(caught.value)
    assert reported in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml.*No such file"):
        kafka_settings("h:1", str(tmp_path / "nowhere.toml"))
    settings = kafka_settings("h:1", write(tmp_path, f'{SASL}sasl_password_file = "{tmp_path}/none"\n'))
    with pytest.raises(ConfigError, match=r"sasl_password_file.*No such file"):
        settings.client_options()
    settings = kafka_settings("h:1", write(tmp_path, f'security_protocol = "SSL"\nssl_ca_file = "{tmp_path}/none"\n'))
    with pytest.raises(ConfigError, match=r"ssl_ca_file.*No such file"):
        settings.client_options()


def test_a_key_with_a_password_that_nobody_gave_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -passout pass:x -keyout a.key -out a.pem -days 2 -subj /CN=a"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    text = f'security_protocol = "SSL"\nssl_certificate_file = "{tmp_path}/a.pem"\nssl_key_file = "{tmp_path}/a.key"\n'
    settings = kafka_settings("h:1", write(tmp_path, text))
    with pytest.raises(ConfigError, match="ssl_certificate_file"):
        settings.client_options()
    (tmp_path / "password").write_text("x")
    with_password = f'{text}ssl_key_password_file = "{tmp_path}/password"\n'

    assert kafka_settings("h:1", write(tmp_path, with_password)).client_options()["ssl_context"].check_hostname


def test_no_password_is_in_a_repr(tmp_path: Path) -> None:
    text = f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={JAAS}\nssl.key.password={PASSWORD}\n"
    settings = kafka_settings("h:1", write(tmp_path, text, "client.properties"))

    assert settings.password.read("x") == PASSWORD
    assert PASSWORD not in repr(settings)


WORDS: Mapping[str, Any] = {
    "Bootstrap connection failed: [Error 58] SaslAuthenticationFailedError: no (backoff 0.24 secs)": "the user or",
    "Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed": "certificate is not trusted",
    "Connection lost: KafkaConnectionError: 111 ECONNREFUSED": "no broker listens there",
    "socket disconnected": "the broker hangs up",
}


@pytest.mark.parametrize("words", WORDS)
def test_the_client_s_last_warning_says_what_its_timeout_means(words: str) -> None:
    last = hush_kafka()
    last.clear()
    logging.getLogger("kafka.net.manager").warning(words)
    logging.getLogger("kafka.net.manager").warning("Bootstrap bootstrap-0 not ready; waiting 0.3 secs")

    assert WORDS[words] in sentence(TimeoutError("Unable to bootstrap"), last.text)
    assert "backoff" not in last.text


def test_the_most_telling_warning_is_kept_until_it_is_cleared() -> None:
    last = hush_kafka()
    last.clear()
    client = logging.getLogger("kafka.net.manager")
    client.error("SaslAuthenticationFailedError: no")
    client.warning("socket disconnected")

    assert last.text.startswith("SaslAuthenticationFailedError")
    last.clear()
    client.warning("socket disconnected")
    assert last.text == "socket disconnected"


def test_the_client_s_requests_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    hush_kafka()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("kafka.net.connection").debug("SaslAuthenticateRequest(auth_bytes=%s)", PASSWORD)

    assert PASSWORD not in caplog.text
