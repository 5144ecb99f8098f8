"""Connection settings of a Kafka cluster, for Python's client and for Java's.

The file of ``--kafka-config`` is TOML with our names, or a ``.properties`` file with Java's::

    security_protocol = "SASL_SSL"  # security.protocol
    sasl_mechanism = "SCRAM-SHA-512"  # sasl.mechanism
    sasl_username = "tocsin"  # in sasl.jaas.config
    sasl_password_file = "/run/secrets/kafka-password"
    ssl_ca_file = "/etc/tocsin/ca.pem"  # ssl.truststore.location, type PEM
    ssl_certificate_file = "/etc/tocsin/agent.pem"
    ssl_key_file = "/etc/tocsin/agent.key"
    ssl_key_password_file = "/run/secrets/key-password"
    ssl_check_hostname = true  # ssl.endpoint.identification.algorithm

Passwords are read when a connection is made, so that a changed one is used. They appear in no ``repr``, no
error and no log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.schemas.errors import ConfigError

if TYPE_CHECKING:
    import ssl

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD_VARIABLE: Final = "TOCSIN_KAFKA_PASSWORD"  # noqa: S105  # a name, not a password
KEY_PASSWORD_VARIABLE: Final = "TOCSIN_KAFKA_KEY_PASSWORD"  # noqa: S105  # a name, not a password
_JAVA_NAMES: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "ssl.truststore.location": "ssl_ca_file",
    "ssl.keystore.location": "ssl_certificate_file",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}
_JAVA_FIXED: Final = {"ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}
_JAAS_VALUE: Final = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_PROPERTY: Final = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
_MAX_FILE_BYTES: Final = 1 << 20
_FLINK_CLIENT: Final = "org.apache.flink.kafka.shaded.org.apache.kafka"
"""Package of the Kafka client inside flink-sql-connector-kafka; with the unshaded name it reports "No LoginModule
found"."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or the place that holds it; the text is not shown in ``repr``.

    Attributes:
        file: file whose text, without its last line break, is the password; "" for none.
        variable: environment variable with the password, used without a file.
        text: the password itself, where a Java properties file holds it.
    """

    file: str = ""
    variable: str = ""
    text: str = field(default="", repr=False)

    def read(self, setting: str) -> str:
        """Return the password, "" if there is none.

        Args:
            setting: name of the setting, for the error.

        Raises:
            ConfigError: the file cannot be read or is empty.
        """
        if self.text:
            return self.text
        if not self.file:
            return os.environ.get(self.variable, "")
        try:
            text = Path(self.file).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(setting, self.file, f"a file that can be read ({_why(error)})") from error
        if not text:
            raise ConfigError(setting, self.file, "a file with a password in it (it is empty)")
        return text


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Addresses and credentials of a Kafka cluster.

    Attributes:
        servers: ``HOST:PORT`` of the brokers to connect to first.
        protocol: one of ``PROTOCOLS``.
        mechanism: one of ``MECHANISMS``, "" for no SASL.
        username: SASL user.
        password: SASL password.
        ca_file: PEM file of the authorities whose brokers are trusted, "" for the system's.
        certificate_file: PEM file of our own certificate, "" for none.
        key_file: PEM file of its key, "" if in the certificate's file.
        key_password: password of the key.
        is_hostname_checked: whether the broker's certificate must name its host.
    """

    servers: tuple[str, ...]
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: Secret = field(default_factory=lambda: Secret(variable=PASSWORD_VARIABLE))
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: Secret = field(default_factory=lambda: Secret(variable=KEY_PASSWORD_VARIABLE))
    is_hostname_checked: bool = True

    def client_options(self) -> dict[str, Any]:
        """Return the keyword arguments for kafka-python's clients; password and certificate files are read now.

        Raises:
            ConfigError: a file cannot be read or has invalid content.
        """
        options: dict[str, Any] = {"bootstrap_servers": list(self.servers), "security_protocol": self.protocol}
        if self.mechanism:
            options["sasl_mechanism"] = self.mechanism
            options["sasl_plain_username"] = self.username
            options["sasl_plain_password"] = self._sasl_password()
        if self.protocol.endswith("SSL"):
            options["ssl_context"] = self._ssl_context()
        return options

    def java_properties(self) -> dict[str, str]:
        """Return the settings as properties of the Java client in Flink's connector, with PEM files as key stores.

        The login module has the renamed package of that jar, so other Java clients cannot use these properties.

        Raises:
            ConfigError: a password file cannot be read, or our key is not in the certificate's file, where Java looks
                for it.
        """
        values = {"bootstrap.servers": ",".join(self.servers), "security.protocol": self.protocol}
        if self.mechanism:
            login = "plain.PlainLoginModule" if self.mechanism == "PLAIN" else "scram.ScramLoginModule"
            user, password = (_quoted(text) for text in (self.username, self._sasl_password()))
            module = f"{_FLINK_CLIENT}.common.security.{login}"
            values["sasl.mechanism"] = self.mechanism
            values["sasl.jaas.config"] = f"{module} required username={user} password={password};"
        if self.protocol.endswith("SSL"):
            values |= self._java_ssl()
        return values

    def _java_ssl(self) -> dict[str, str]:
        """Return the TLS part of the Java properties."""
        values = {} if self.is_hostname_checked else {"ssl.endpoint.identification.algorithm": ""}
        if self.ca_file:
            values |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca_file}
        if self.certificate_file:
            if self.key_file:
                must = "left out for Java: put the key (PKCS #8) into ssl_certificate_file, before the certificate"
                raise ConfigError("ssl_key_file", self.key_file, must)
            values |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate_file}
            if password := self.key_password.read("ssl_key_password_file"):
                values["ssl.key.password"] = password
        return values

    def _sasl_password(self) -> str:
        """Return the SASL password; raise ``ConfigError`` without one."""
        password = self.password.read("sasl_password_file")
        if not password:
            must = f"a file with the password, or {PASSWORD_VARIABLE} set in the environment"
            raise ConfigError("sasl_password_file", self.password.file, must)
        return password

    def _ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context with authorities and our certificate loaded."""
        import ssl  # an agent without TLS does without its memory

        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            must = f"a PEM file with the certificates of trusted authorities ({_why(error)})"
            raise ConfigError("ssl_ca_file", self.ca_file, must) from error
        context.check_hostname = self.is_hostname_checked
        if self.certificate_file:
            # always a text: without one OpenSSL asks at the terminal
            password = self.key_password.read("ssl_key_password_file")
            try:
                context.load_cert_chain(self.certificate_file, self.key_file or None, lambda: password)
            except (OSError, ssl.SSLError) as error:
                must = f"a PEM file, with its key there or in ssl_key_file ({_why(error)})"
                raise ConfigError("ssl_certificate_file", self.certificate_file, must) from error
        return context


def kafka_settings(servers: str, config_file: str = "") -> KafkaSettings:
    """Return checked settings from a list of servers and an optional file.

    Args:
        servers: ``HOST:PORT[,HOST:PORT ...]``.
        config_file: the file described above; "": no TLS and no login.

    Raises:
        ConfigError: a setting is wrong; the error names it (and the file) and what it must be.
    """
    settings = KafkaSettings(_servers(servers))
    if not config_file:
        return settings
    import tomllib

    text = _read(config_file)
    try:
        values = _properties(text) if config_file.endswith(".properties") else tomllib.loads(text)
        return _checked(replace(settings, **_fields(values)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("kafka-config", config_file, f"TOML, or a .properties file ({error})") from error
    except ConfigError as error:
        raise ConfigError(f"{config_file}: {error.setting}", error.value, error.must) from error


def _servers(text: str) -> tuple[str, ...]:
    """Return the addresses of a list separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in found or ("",):
        host, _, port = part.rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
        if not host or not is_port or "/" in host:
            raise ConfigError("kafka", text, "HOST:PORT, or several separated by commas")
    return found


def _read(path: str) -> str:
    """Return the text of a settings file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError("kafka-config", path, f"a file of at most {_MAX_FILE_BYTES} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("kafka-config", path, f"a text file that can be read ({_why(error)})") from error


_TEXTS: Final = {
    "security_protocol": "protocol",
    "sasl_mechanism": "mechanism",
    "sasl_username": "username",
    "ssl_ca_file": "ca_file",
    "ssl_certificate_file": "certificate_file",
    "ssl_key_file": "key_file",
}
_SECRETS: Final = {
    "sasl_password_file": ("password", PASSWORD_VARIABLE),
    "ssl_key_password_file": ("key_password", KEY_PASSWORD_VARIABLE),
}


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings by their names in the TOML file to fields of ``KafkaSettings``.

    Raises:
        ConfigError: a name is unknown or a value has the wrong type.
    """
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name in {"sasl_password", "ssl_key_password"}:
            raise ConfigError(name, "...", f"in a file of its own, named by {name}_file, or in the environment")
        if isinstance(value, Secret):
            fields[name] = value
        elif name == "ssl_check_hostname":
            if not isinstance(value, bool):
                raise ConfigError(name, value, "true or false")
            fields["is_hostname_checked"] = value
        elif name not in _TEXTS and name not in _SECRETS:
            # Who misspells a password's name wrote a password: no value of a name that we do not know is shown.
            raise ConfigError(name, "...", f"one of {' '.join([*_TEXTS, *_SECRETS, 'ssl_check_hostname'])}")
        elif not isinstance(value, str):
            raise ConfigError(name, value, "a text in quotes")
        elif name in _SECRETS:
            field_name, variable = _SECRETS[name]
            fields[field_name] = Secret(value, variable)
        else:
            fields[_TEXTS[name]] = value
    return fields


def _checked(settings: KafkaSettings) -> KafkaSettings:
    """Return the settings if protocol, mechanism and files fit together; raise ``ConfigError`` otherwise."""
    if settings.protocol not in PROTOCOLS:
        raise ConfigError("security_protocol", settings.protocol, f"one of {' '.join(PROTOCOLS)}")
    has_sasl = settings.protocol.startswith("SASL")
    if has_sasl and settings.mechanism not in MECHANISMS:
        raise ConfigError("sasl_mechanism", settings.mechanism, f"one of {' '.join(MECHANISMS)}")
    if has_sasl and not settings.username:
        raise ConfigError("sasl_username", settings.username, "the user's name")
    if not has_sasl and settings.mechanism:
        raise ConfigError("security_protocol", settings.protocol, "SASL_SSL (or SASL_PLAINTEXT) with a sasl_mechanism")
    if not settings.protocol.endswith("SSL") and (settings.ca_file or settings.certificate_file):
        raise ConfigError("security_protocol", settings.protocol, "SSL or SASL_SSL with ssl_ files")
    return settings


def _properties(text: str) -> dict[str, Any]:
    """Convert the text of a Java properties file to settings by their TOML names.

    Raises:
        ConfigError: a name or value is not supported. It is not ignored, because it would seem to have an effect.
    """
    values: dict[str, Any] = {}
    for line in re.sub(r"\\\r?\n\s*", "", text).splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        found = _PROPERTY.fullmatch(stripped)
        if found is None:
            raise ConfigError("line", re.split(r"[\s=:]", stripped)[0] + " ...", "NAME=VALUE")
        name, value = found.groups()
        if name == "sasl.jaas.config":
            values |= _jaas(value)
        elif name == "ssl.key.password":
            values["key_password"] = Secret(text=value)
        elif name in _JAVA_FIXED:
            if value != _JAVA_FIXED[name]:
                raise ConfigError(name, value, f"{_JAVA_FIXED[name]}: key stores of Java cannot be read here")
        elif name == "ssl.endpoint.identification.algorithm":
            values["ssl_check_hostname"] = bool(value)
        elif name in _JAVA_NAMES:
            values[_JAVA_NAMES[name]] = value
        else:
            known = [*_JAVA_NAMES, *_JAVA_FIXED, "sasl.jaas.config", "ssl.key.password"]
            raise ConfigError(name, "...", f"one of {' '.join(known)}")
    return values


def _jaas(text: str) -> dict[str, Any]:
    """Return user name and password of a ``sasl.jaas.config`` value."""
    found = {
        name: re.sub(r"\\(.)", r"\1", quoted) if quoted else plain for name, quoted, plain in _JAAS_VALUE.findall(text)
    }
    if not found.get("username") or not found.get("password"):
        raise ConfigError("sasl.jaas.config", "...", 'LoginModule required username="NAME" password="TEXT";')
    return {"sasl_username": found["username"], "password": Secret(text=found["password"])}


def _quoted(text: str) -> str:
    """Return text in double quotes, escaped for a JAAS value."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _why(error: Exception) -> str:
    """Return the short text of an error."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
