"""The gateway's certificate: refused with a reason, and renewed without a restart."""

import shutil
import ssl
import subprocess

import pytest

from forebay.app.certificates import Certificate
from forebay.app.config import load
from forebay.domain.errors import BadInput
from forebay.spec.types import Tls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here to make a certificate")


def make(folder, name):
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", *curve.split(), "-subj", f"/CN={name}", *files], check=True, capture_output=True)
    return Tls(str(folder / "cert.pem"), str(folder / "key.pem"))


def shown(context):
    """The name a client sees."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    server = context.wrap_bio(theirs, ours, server_side=True)
    client = client_context.wrap_bio(ours, theirs)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    der = client.getpeercert(binary_form=True)
    return [name for name in (b"before", b"after") if name in der]


def test_a_renewed_certificate_is_shown_to_those_who_come_later(tmp_path):
    certificate = Certificate(make(tmp_path, "before"))
    assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert shown(certificate.context) == [b"before"]
    assert certificate.refresh() == ""
    make(tmp_path, "after")
    assert "read again" in certificate.refresh()
    assert shown(certificate.context) == [b"after"]


def test_a_certificate_written_halfway_leaves_the_one_before(tmp_path):
    certificate = Certificate(make(tmp_path, "before"))
    (tmp_path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    assert "kept" in certificate.refresh()
    (tmp_path / "key.pem").unlink()
    assert "kept" in certificate.refresh()
    assert shown(certificate.context) == [b"before"]


def test_what_can_not_be_used_is_said(tmp_path):
    files = make(tmp_path, "before")
    other = tmp_path / "other"
    other.mkdir()
    make(other, "other")
    for wrong, word in (
        (Tls("nowhere", files.key), "gateway.tls.cert"),
        (Tls(files.cert, "nowhere"), "gateway.tls.key"),
        (Tls(files.cert, str(other / "key.pem")), "belongs"),
        (Tls(files.cert, str(other / "key.pem")), "the key is not the certificate's"),
        (Tls(files.key, files.key), "gateway.tls.cert: .* that holds none"),
        (Tls(files.cert, files.cert), "gateway.tls.key: .* that holds none"),
    ):
        with pytest.raises(BadInput, match=word):
            Certificate(wrong)


def test_paths_are_relative_to_the_configuration(tmp_path):
    (tmp_path / "forebay.yaml").write_text("pools: {a: {attach: ['http://a:1']}}\ngateway: {tls: {cert: tls/c.pem, key: /k.pem}}\n")
    assert load(tmp_path / "forebay.yaml").tls == Tls(str(tmp_path / "tls/c.pem"), "/k.pem")
