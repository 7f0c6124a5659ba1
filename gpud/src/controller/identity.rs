//! The identity of this machine in the cluster: its key, its certificate, and the authority it trusts.
//!
//! Name and role are the certificate's. The key is made here and never leaves; `join` sends a signing request with a
//! one-time token that pins the authority, `renew` asks for a fresh certificate with the one in force.

use crate::clock::wall_clock;
use crate::spool::file::private_dir;
use anyhow::{Context, Result, bail};
use gmodel::node::Role;
use gsys::durable_file::write_atomic;
use gwire::api::{JoinReply, JoinRequest};
use gwire::node_protocol::{ALPN_HTTP, ALPN_JOIN};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// DNS name in every controller's certificate, whatever address is dialled.
pub const CONTROLLER_NAME: &str = gwire::node_protocol::SERVER_NAME;
const CERT: &str = "node.crt";
const KEY: &str = "node.key";
const CA: &str = "ca.crt";
const RENEW_AGAIN_SECS: i64 = 300;
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// What is in the state directory, read and ready for TLS.
#[derive(Debug)]
pub struct Identity {
    pub name: String,
    pub role: Role,
    /// Seconds since the epoch.
    pub not_before: i64,
    pub not_after: i64,
    key_pem: String,
    cert: CertificateDer<'static>,
    ca: CertificateDer<'static>,
}

impl Identity {
    /// Reads the state directory.
    pub fn load(dir: &Path) -> Result<Self> {
        if !dir.join(CERT).exists() {
            bail!(
                "this machine has not joined a cluster: {} has no certificate. Run: gpud join --controller HOST:PORT --token TOKEN",
                dir.display()
            );
        }
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let cert =
            certificate(&read(CERT)?).with_context(|| format!("{}/{CERT}", dir.display()))?;
        let ca = certificate(&read(CA)?).with_context(|| format!("{}/{CA}", dir.display()))?;
        let facts = CertFacts::read(&cert)?;
        Ok(Self {
            name: facts.name,
            role: facts.role,
            not_before: facts.not_before,
            not_after: facts.not_after,
            key_pem: read(KEY)?,
            cert,
            ca,
        })
    }

    /// When two thirds of the certificate's life are over.
    pub fn renew_at_secs(&self) -> i64 {
        self.not_before + (self.not_after - self.not_before) / 3 * 2
    }

    /// TLS 1.3 with this machine's certificate, to the controller of this authority only.
    pub fn tls(&self, alpn: &[u8]) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots
            .add(self.ca.clone())
            .context("the stored authority is no authority")?;
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|e| anyhow::anyhow!("{KEY}: {e:?}"))?;
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![self.cert.clone()], key)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Arc::new(config))
    }
}

/// Connects and proves both sides to each other.
pub async fn dial(controller: &str, tls: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>> {
    let connect = async {
        let stream = TcpStream::connect(controller)
            .await
            .with_context(|| format!("connecting to {controller}"))?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(CONTROLLER_NAME)?;
        let wanted = tls.alpn_protocols.first().cloned();
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = stream.with_context(|| format!("TLS with the controller at {controller}"))?;
        if stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec) != wanted {
            bail!("{controller} does not speak this protocol: is it gpuctld's node port?");
        }
        Ok(stream)
    };
    match tokio::time::timeout(CONNECT_PATIENCE, connect).await {
        Ok(connected) => connected,
        Err(_) => bail!(
            "{controller} did not answer within {} s",
            CONNECT_PATIENCE.as_secs()
        ),
    }
}

/// What `gpud join` was told.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    pub controller: String,
    /// `SECRET.SHA256-OF-CA`.
    pub token: String,
    /// The host's name when the token carries none.
    pub name: String,
    pub state_dir: PathBuf,
}

/// Spends the token and stores what came for it. An earlier identity is replaced only when the new one is whole.
pub async fn join(options: &JoinOptions) -> Result<JoinReply> {
    let (secret, pin) = options
        .token
        .split_once('.')
        .context("a token is SECRET.SHA256-OF-CA, as gadm token node prints it")?;
    let pin = unhex(pin).context(
        "the token's second part is not the SHA-256 of an authority. Was it cut when copied?",
    )?;
    private_dir(&options.state_dir)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let request = JoinRequest {
        secret: secret.into(),
        name: options.name.clone(),
        csr_pem: signing_request(&key)?,
    };
    let stream = dial(&options.controller, pinned_tls(pin)?).await?;
    let reply = ask(stream, "/v1/join", &request).await?;
    let ca = certificate(&reply.ca_pem).context("the authority that came with the answer")?;
    if Sha256::digest(&ca)[..] != pin {
        bail!(
            "the controller answered with another authority than the token names; nothing was stored"
        );
    }
    let facts = CertFacts::read(&certificate(&reply.cert_pem)?)?;
    if facts.name != reply.name || facts.role != reply.role {
        bail!(
            "the certificate is for {} ({}), the answer says {} ({})",
            facts.name,
            facts.role,
            reply.name,
            reply.role
        );
    }
    let dir = &options.state_dir;
    // The certificate last: without it there is no identity.
    let _ = std::fs::remove_file(dir.join(CERT));
    write_atomic(&dir.join(KEY), key.serialize_pem().as_bytes())?;
    write_atomic(&dir.join(CA), reply.ca_pem.as_bytes())?;
    write_atomic(&dir.join(CERT), reply.cert_pem.as_bytes())?;
    Ok(reply)
}

/// Gets a new certificate for the same key.
pub async fn renew(controller: &str, state_dir: &Path) -> Result<Identity> {
    let identity = Identity::load(state_dir)?;
    let key = KeyPair::from_pem(&identity.key_pem).context("the stored key")?;
    let request = JoinRequest {
        name: identity.name.clone(),
        csr_pem: signing_request(&key)?,
        ..JoinRequest::default()
    };
    let stream = dial(controller, identity.tls(ALPN_HTTP)?).await?;
    let reply = ask(stream, "/v1/renew", &request).await?;
    let facts = CertFacts::read(&certificate(&reply.cert_pem)?)?;
    if (&facts.name, facts.role) != (&identity.name, identity.role) {
        bail!(
            "asked to renew {}, and got a certificate for {}",
            identity.name,
            facts.name
        );
    }
    write_atomic(&state_dir.join(CERT), reply.cert_pem.as_bytes())?;
    Identity::load(state_dir)
}

/// Renews the certificate in time, for ever. The clock is asked again and again, since it may be set.
pub async fn keep_fresh(controller: String, state_dir: PathBuf) {
    loop {
        let now = wall_clock().secs();
        let due = Identity::load(&state_dir).map(|identity| identity.renew_at_secs());
        let wait_secs = match due {
            Ok(at) if at > now => (at - now).min(3600),
            _ => match renew(&controller, &state_dir).await {
                Ok(identity) => {
                    tracing::info!(
                        "the certificate was renewed; it ends at {}",
                        gmodel::Timestamp::from_secs(identity.not_after)
                    );
                    1
                }
                Err(e) => {
                    tracing::warn!(
                        "the certificate was not renewed: {e:#}; again in {RENEW_AGAIN_SECS} s"
                    );
                    RENEW_AGAIN_SECS
                }
            },
        };
        tokio::time::sleep(Duration::from_secs(wait_secs.max(1) as u64)).await;
    }
}

async fn ask(stream: TlsStream<TcpStream>, path: &str, request: &JoinRequest) -> Result<JoinReply> {
    use http_body_util::{BodyExt, Full, Limited};
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let body = Full::new(hyper::body::Bytes::from(serde_json::to_vec(request)?));
    let request = hyper::Request::post(path)
        .header("host", CONTROLLER_NAME)
        .header("content-type", "application/json")
        .body(body)?;
    let answer = tokio::time::timeout(CONNECT_PATIENCE, sender.send_request(request)).await??;
    let status = answer.status();
    let bytes = Limited::new(answer.into_body(), 1 << 20)
        .collect()
        .await
        .map_err(|e| anyhow::anyhow!(e))?
        .to_bytes();
    driver.abort();
    if !status.is_success() {
        let error = serde_json::from_slice::<gwire::api::ErrorBody>(&bytes)
            .map_or_else(|_| status.to_string(), |body| body.error);
        bail!("the controller refused: {error}");
    }
    serde_json::from_slice(&bytes).context("the controller's answer is not what was expected")
}

/// Everything in it but the key is ignored by the controller.
fn signing_request(key: &KeyPair) -> Result<String> {
    Ok(CertificateParams::default().serialize_request(key)?.pem()?)
}

fn pinned_tls(pin: [u8; 32]) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedAuthority { pin, provider }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_JOIN.to_vec()];
    Ok(Arc::new(config))
}

/// Trusts the authority with this hash, which the controller sends along, and what it signed for the controller's name.
#[derive(Debug)]
struct PinnedAuthority {
    pin: [u8; 32],
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let refuse = |text: &str| rustls::Error::General(text.to_owned());
        let pinned = intermediates
            .iter()
            .find(|cert| Sha256::digest(cert)[..] == self.pin);
        let ca = pinned
            .ok_or_else(|| refuse("the controller is not of the cluster that the token names"))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|e| refuse(&e.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// What a node's certificate says.
struct CertFacts {
    name: String,
    role: Role,
    not_before: i64,
    not_after: i64,
}

impl CertFacts {
    fn read(cert: &CertificateDer<'_>) -> Result<Self> {
        use x509_parser::extensions::GeneralName;
        let (_, cert) =
            x509_parser::parse_x509_certificate(cert).context("the certificate cannot be read")?;
        let name = cert
            .subject()
            .iter_common_name()
            .next()
            .and_then(|cn| cn.as_str().ok());
        let names = cert.subject_alternative_name().ok().flatten();
        let role = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .find_map(|name| match name {
                GeneralName::URI("gpupool:role:compute") => Some(Role::Compute),
                GeneralName::URI("gpupool:role:login") => Some(Role::Login),
                _ => None,
            });
        Ok(Self {
            name: name.context("the certificate names no node")?.to_owned(),
            role: role.context("the certificate names no role that this release knows")?,
            not_before: cert.validity().not_before.timestamp(),
            not_after: cert.validity().not_after.timestamp(),
        })
    }
}

fn certificate(pem: &str) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|e| anyhow::anyhow!("no PEM certificate: {e:?}"))
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
