"""Addresses on command lines: where to listen, and where to send to."""

import ipaddress
from typing import Any

import click


class Address(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """An address and a port."""

    name = "address"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:  # noqa: ANN401
        """Return both; port 0 is any that is free."""
        host, _, port = str(value).rpartition(":")
        try:
            return str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))), _port(port)
        except ValueError:
            return self.fail(f"{value!r} is no address with a port: 127.0.0.1:9464, [::1]:9464", parameter, context)


class Url(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A URL of HTTP."""

    name = "URL"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:  # noqa: ANN401
        """Return the URL."""
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(str(value))
            if parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port):
                return str(value)
        except ValueError:  # a port that is none
            pass
        return self.fail(f"{value!r} is no URL of HTTP: http://localhost:4318/v1/metrics", parameter, context)


def _port(text: str) -> int:
    port = int(text)
    if port not in range(1 << 16):
        raise ValueError(text)
    return port
