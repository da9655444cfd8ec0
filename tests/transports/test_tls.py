"""Contexts out of settings: what cannot be used is named with its key."""

from __future__ import annotations

import ssl

import pytest

from mcpmux.config import ClientTls, Secret, ServerTls
from mcpmux.errors import ConfigError
from mcpmux.transports.tls import client_context, server_context
from tests.transports.certificates import PASSPHRASE


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"certificate": "missing"}, "tls.certificate: {missing}: cannot read the file: no such file"),
        ({"certificate": "garbage"}, "tls.certificate: {garbage}: no certificate in PEM format"),
        ({"certificate": "server_key"}, "tls.certificate: {server_key}: no certificate in PEM format"),
        ({"certificate": "server"}, "tls.certificate: {server}: no private key in PEM format in it; give"),
        ({"certificate": "server", "key": "missing"}, "tls.key: {missing}: cannot read the file"),
        ({"certificate": "server", "key": "server"}, "tls.key: {server}: no private key in PEM format"),
        ({"certificate": "server", "key": "client_key"}, "tls.key: {client_key}: the private key is not"),
        ({"certificate": "damaged", "key": "server_key"}, "tls.key: {server_key}: certificate and key"),
        ({"certificate": "server", "key": "encrypted_key"}, "the private key is encrypted: give its"),
        (
            {"certificate": "server", "key": "encrypted_key", "password": "wrong"},
            "tls.key: {encrypted_key}: the passphrase in `tls.key_password` does not open",
        ),
        (
            {"certificate": "server", "key": "encrypted_key", "password": "x" * 2000},
            "tls.key: {encrypted_key}: the passphrase in `tls.key_password` does not open",
        ),
        ({"certificate": "server_with_key", "client_ca": "missing"}, "tls.client_ca: {missing}: cannot read"),
        ({"certificate": "server_with_key", "client_ca": "garbage"}, "tls.client_ca: {garbage}: no certific"),
        ({"certificate": "server_with_key", "client_ca": "damaged"}, "tls.client_ca: {damaged}: its certif"),
    ],
)
def test_listener_files_that_cannot_be_used_are_named(certificates, keys, problem):
    password = keys.pop("password", None)
    paths = {key: getattr(certificates, name) for key, name in keys.items()}
    with pytest.raises(ConfigError) as caught:
        server_context(ServerTls(**paths, key_password=password and Secret(password)))
    assert problem.format_map(vars(certificates)) in str(caught.value)
    assert password is None or password not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"ca": "missing"}, "tls.ca: {missing}: cannot read the file: no such file"),
        ({"ca": "garbage"}, "tls.ca: {garbage}: no certificate"),
        ({"certificate": "client", "key": "missing"}, "tls.key: {missing}: cannot read"),
        ({"certificate": "client", "key": "server_key"}, "tls.key: {server_key}: the private key is not"),
    ],
)
def test_upstream_files_that_cannot_be_used_are_named(certificates, keys, problem):
    with pytest.raises(ConfigError) as caught:
        client_context(ClientTls(**{key: getattr(certificates, name) for key, name in keys.items()}))
    assert problem.format_map(vars(certificates)) in str(caught.value)


def test_folder_in_place_of_a_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"tls\.ca: .*: cannot read the file: is a directory"):
        client_context(ClientTls(ca=str(tmp_path)))


@pytest.mark.parametrize("password", ["", PASSPHRASE])
def test_key_in_the_same_file_or_behind_its_passphrase_is_used(certificates, password):
    if password:
        tls = ServerTls(
            certificate=certificates.server, key=certificates.encrypted_key, key_password=Secret(password)
        )
    else:
        tls = ServerTls(certificate=certificates.server_with_key, key_password=Secret(""))
    assert server_context(tls).verify_mode is ssl.CERT_NONE


def test_client_certificates_are_required_with_an_authority_for_them(certificates):
    tls = ServerTls(certificate=certificates.server_with_key, client_ca=certificates.ca)
    assert server_context(tls).verify_mode is ssl.CERT_REQUIRED


def test_servers_are_verified_unless_that_is_turned_off(certificates):
    for tls in (ClientTls(), ClientTls(ca=certificates.ca)):
        context = client_context(tls)
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert client_context(ClientTls(verify=False)).verify_mode is ssl.CERT_NONE


def test_authority_of_the_settings_stands_in_place_of_those_of_the_system(certificates):
    assert len(client_context(ClientTls(ca=certificates.ca)).get_ca_certs()) == 1


def test_old_versions_of_tls_are_not_spoken(certificates):
    for context in (
        client_context(ClientTls()),
        server_context(ServerTls(certificate=certificates.server_with_key)),
    ):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
