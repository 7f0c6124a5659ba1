//! The client over TLS: which controller it takes for its own, and that it shows its token to that one only.

use super::*;
use crate::node_protocol::SERVER_NAME;
use gmodel::TokenId;
use gmodel::user_token::TokenText;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

/// An authority, and a certificate of it for one name.
struct Site {
    authority: CertifiedIssuer<'static, KeyPair>,
    config: Arc<ServerConfig>,
}

impl Site {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let cert = params.signed_by(&key, &authority).unwrap();
        let chain = vec![cert.der().clone(), authority.der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self {
            authority,
            config: Arc::new(config),
        }
    }

    fn pin(&self) -> String {
        let hash = Sha256::digest(self.authority.der());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Answers one request; its head, or why there was none.
    fn serve(&self) -> (u16, JoinHandle<io::Result<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = self.config.clone();
        let served = std::thread::spawn(move || {
            let (tcp, _) = listener.accept()?;
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            let mut stream = StreamOwned::new(connection, tcp);
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}")?;
            stream.conn.send_close_notify();
            stream.flush()?;
            Ok(String::from_utf8_lossy(&head).into_owned())
        });
        (port, served)
    }
}

fn client(host: &str, port: u16, trust: HttpsTrust) -> Client {
    let token = TokenText {
        id: TokenId(7),
        secret: "ab".repeat(32),
        authority: None,
    };
    let place = HttpsPlace {
        host: host.into(),
        port,
    };
    let address = HttpsAddress {
        place,
        token,
        trust,
    };
    Client::at(ControllerAddress::Https(address)).wait_for(Duration::ZERO)
}

#[test]
fn a_controller_of_the_tokens_authority_is_asked_with_the_token() {
    let site = Site::new(SERVER_NAME);
    let (port, served) = site.serve();
    let trust = HttpsTrust::pinned(&site.pin()).unwrap();
    let answer: serde_json::Value = client("127.0.0.1", port, trust).get("/v1/jobs").unwrap();
    assert_eq!(answer["a"], 1);
    let head = served.join().unwrap().unwrap();
    let bearer = format!(
        "Authorization: Bearer gptok_00000007_{}\r\n",
        "ab".repeat(32)
    );
    assert!(head.contains(&bearer), "{head}");
    assert!(
        head.contains(&format!("Host: 127.0.0.1:{port}\r\n")),
        "{head}"
    );
}

#[test]
fn nothing_is_sent_to_another_authoritys_controller_or_to_a_node_of_the_cluster() {
    let (site, other, node) = (
        Site::new(SERVER_NAME),
        Site::new(SERVER_NAME),
        Site::new("node1"),
    );
    let pins = [(&site, other.pin()), (&node, node.pin())];
    for (asked, pin) in pins {
        let (port, served) = asked.serve();
        let trust = HttpsTrust::pinned(&pin).unwrap();
        let error = client("127.0.0.1", port, trust)
            .get::<serde_json::Value>("/v1/jobs")
            .unwrap_err();
        assert!(matches!(error, ClientError::Untrusted { .. }), "{error}");
        assert!(!error.to_string().contains("abab"), "{error}");
        assert!(served.join().unwrap().is_err(), "a request came");
    }
}

#[test]
fn a_file_of_certificates_vouches_for_the_hosts_own_name_only() {
    let path = std::env::temp_dir().join(format!("gwire-ca-{}", std::process::id()));
    for (name, good) in [("localhost", true), ("gpu.example.org", false)] {
        let site = Site::new(name);
        std::fs::write(&path, site.authority.pem()).unwrap();
        let (port, served) = site.serve();
        let trust = HttpsTrust::of_file(&path).unwrap();
        let answer = client("localhost", port, trust).get::<serde_json::Value>("/v1/jobs");
        assert_eq!(answer.is_ok(), good, "{name}");
        assert_eq!(served.join().unwrap().is_ok(), good, "{name}");
    }
    std::fs::write(&path, "no certificate").unwrap();
    assert!(
        HttpsTrust::of_file(&path)
            .unwrap_err()
            .contains("no certificate is in it")
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_port_without_a_controller_is_unreachable_and_one_without_tls_is_said() {
    let site = Site::new(SERVER_NAME);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ask = || {
        let trust = HttpsTrust::pinned(&site.pin()).unwrap();
        client("127.0.0.1", port, trust)
            .get::<serde_json::Value>("/")
            .unwrap_err()
    };
    let plain = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
    });
    let error = ask();
    plain.join().unwrap();
    assert!(
        error
            .to_string()
            .contains("no controller answers at https://127.0.0.1:"),
        "{error}"
    );
    let gone = ask();
    assert!(gone.is_unreachable(), "{gone}");
    assert!(
        gone.to_string()
            .contains("Is `controller` in gpupool.toml right"),
        "{gone}"
    );
}
