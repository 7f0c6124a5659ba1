//! TLS of the commands: which controller they take for theirs. A token names the authority that has signed the controller's certificate;
//! without that name, a file does, or the machine.

use crate::client::address::ControllerStream;
use crate::node_protocol::{ALPN_HTTP, SERVER_NAME};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, Error, RootCertStore, StreamOwned};
use sha2::{Digest, Sha256};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which controller a command takes for its own.
#[derive(Clone, Debug)]
pub struct HttpsTrust {
    config: Arc<ClientConfig>,
    /// The name to be in the certificate; `None`: the host's of the address.
    name: Option<ServerName<'static>>,
}

impl HttpsTrust {
    /// A controller with a certificate that the authority with this hash has signed, at any address.
    ///
    /// # Errors
    /// The TLS library's.
    pub fn pinned(authority: &str) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = PinnedAuthority {
            sha256: authority.to_owned(),
            provider: provider.clone(),
        };
        let config = builder(provider)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self::of(config, Some(own_name())))
    }

    /// One with a certificate for its host's name, signed by one of these.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate.
    pub fn of_file(path: &Path) -> Result<Self, String> {
        let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
        let mut roots = RootCertStore::empty();
        for certificate in read {
            let certificate = certificate.map_err(|error| wrong(&error))?;
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
        match roots.is_empty() {
            true => Err(wrong(&"no certificate is in it")),
            false => Self::of_roots(roots),
        }
    }

    /// One with a certificate for its host's name, signed by an authority that this machine trusts.
    ///
    /// # Errors
    /// The machine trusts none.
    pub fn of_machine() -> Result<Self, String> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        match found.errors.first() {
            _ if !roots.is_empty() => Self::of_roots(roots),
            Some(error) => Err(format!("the certificates of this machine cannot be read: {error}")),
            None => Err(
                "this machine trusts no authority. Install its package ca-certificates, or name the site's file by ca_file".into(),
            ),
        }
    }

    /// For a connection that is made elsewhere.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    fn of_roots(roots: RootCertStore) -> Result<Self, String> {
        let config = builder(Arc::new(ring::default_provider()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self::of(config, None))
    }

    fn of(mut config: ClientConfig, name: Option<ServerName<'static>>) -> Self {
        config.alpn_protocols = vec![ALPN_HTTP.to_vec()];
        Self {
            config: Arc::new(config),
            name,
        }
    }

    /// The connection once both sides know each other.
    pub(super) fn handshake(&self, mut tcp: TcpStream, host: &str) -> io::Result<ControllerStream> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned())
                .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "it is no host's name"))?,
        };
        tcp.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        tcp.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let mut connection =
            ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp)?;
        }
        Ok(ControllerStream::Tls(Box::new(StreamOwned::new(
            connection, tcp,
        ))))
    }
}

/// Whether a handshake failed because another controller answered.
pub(super) fn is_distrust(error: &io::Error) -> bool {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        inner,
        Some(Error::InvalidCertificate(_) | Error::NoCertificatesPresented)
    )
}

fn builder(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())
}

fn own_name() -> ServerName<'static> {
    ServerName::try_from(SERVER_NAME).expect("a DNS name")
}

/// Trusts what one authority has signed, which is known by its hash and comes along in the chain.
#[derive(Debug)]
struct PinnedAuthority {
    sha256: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_pinned = |one: &&CertificateDer<'_>| {
            let hash = Sha256::digest(one);
            let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            text == self.sha256
        };
        let authority = chain.iter().find(is_pinned);
        let authority = authority.ok_or(CertificateError::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        // Nodes have certificates of the same authority: the name tells them from the controller.
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, chain, name, ocsp, now)
    }

    crate::tls13::tls13_signatures!();
}
