//! TLS between the nodes of a step and a grun inside the same job. Neither has a certificate of the cluster: grun makes one for the
//! step, and the step's orders tell the nodes its hash. A node proves itself inside the connection, by the secret of the same orders.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};
use sha2::{Digest, Sha256};

/// Of a certificate that a pin names, no name is checked.
const NAME: &str = "step.gpupool";

/// The certificate that grun makes for one step.
pub struct StepIdentity {
    config: Arc<ServerConfig>,
    /// SHA-256 of the certificate, 64 hexadecimal digits.
    pub pin: String,
}

impl StepIdentity {
    /// # Errors
    /// No random numbers.
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let cert = CertificateParams::new([NAME.to_owned()])?.self_signed(&key)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        // A node comes once. It would not read tickets, and to close with unread bytes drops those it sent.
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            pin: pin_of(cert.der()),
        })
    }

    /// # Errors
    /// No random numbers.
    pub fn connection(&self) -> Result<ServerConnection, Error> {
        let mut connection = ServerConnection::new(self.config.clone())?;
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}

/// A node's side: talks only to the grun with this pin.
///
/// # Errors
/// The pin is no hash.
pub fn client_config(pin: &str) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = PinnedStep {
        pin: pin.to_owned(),
        provider: provider.clone(),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// The connection of [`client_config`].
///
/// # Errors
/// No random numbers.
pub fn client_connection(pin: &str) -> Result<ClientConnection, Error> {
    ClientConnection::new(client_config(pin)?, server_name())
}

pub fn server_name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("a DNS name")
}

/// Is this a pin as [`StepIdentity`] makes it?
pub fn is_pin(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn pin_of(cert: &CertificateDer<'_>) -> String {
    let hash = Sha256::digest(cert);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Trusts one certificate, by its hash.
#[derive(Debug)]
struct PinnedStep {
    pin: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedStep {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match pin_of(end_entity) == self.pin {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General("this is not the grun of the step".into())),
        }
    }

    crate::tls13::tls13_signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Carries records to and fro until neither side has more to say.
    fn converse(node: &mut ClientConnection, grun: &mut ServerConnection) -> Result<(), Error> {
        while node.wants_write() || grun.wants_write() {
            let mut records = Vec::new();
            while node.wants_write() {
                node.write_tls(&mut records).expect("a vector takes all");
            }
            let mut rest = &records[..];
            while !rest.is_empty() {
                grun.read_tls(&mut rest).expect("a slice gives all");
                grun.process_new_packets()?;
            }
            let mut records = Vec::new();
            while grun.wants_write() {
                grun.write_tls(&mut records).expect("a vector takes all");
            }
            let mut rest = &records[..];
            while !rest.is_empty() {
                node.read_tls(&mut rest).expect("a slice gives all");
                node.process_new_packets()?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_node_talks_to_the_grun_of_its_step_and_to_no_other() {
        let own = StepIdentity::new().expect("an identity");
        let other = StepIdentity::new().expect("an identity");
        assert!(is_pin(&own.pin) && own.pin != other.pin);
        let mut node = client_connection(&own.pin).expect("a connection");
        let mut grun = own.connection().expect("a connection");
        converse(&mut node, &mut grun).expect("a handshake");
        assert!(!node.is_handshaking() && !grun.is_handshaking());
        node.writer().write_all(b"hello").expect("room");
        converse(&mut node, &mut grun).expect("records");
        let mut heard = [0; 5];
        grun.reader().read_exact(&mut heard).expect("five bytes");
        assert_eq!(&heard, b"hello");

        let mut node = client_connection(&own.pin).expect("a connection");
        let mut stranger = other.connection().expect("a connection");
        let error = converse(&mut node, &mut stranger).expect_err("another certificate");
        assert!(error.to_string().contains("not the grun"), "{error}");
    }
}
