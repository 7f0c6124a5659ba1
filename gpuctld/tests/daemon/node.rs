//! A node as the controller sees one: joins with a token, speaks the protocol, and only says that it runs jobs.

use crate::controller::{Controller, PATIENCE, Site};
use gmodel::node::{GpuInfo, Inventory};
use gmodel::run::{RunPhase, RunReport};
use gmodel::{NodeLife, RunId};
use gwire::frame::{self, FrameReader};
use gwire::node_protocol::{
    ALPN_HTTP, ALPN_JOIN, ALPN_NODE, Hello, PROTOCOL, ToController, ToNode,
};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What a machine has after it joined.
pub struct Machine {
    port: u16,
    ca: CertificateDer<'static>,
    /// Certificate and key, DER.
    pub identity: Option<(CertificateDer<'static>, Vec<u8>)>,
    pub name: String,
}

/// A connection in the node protocol.
pub struct Link {
    pub frames: FrameReader<ReadHalf<TlsStream<TcpStream>>>,
    pub sink: WriteHalf<TlsStream<TcpStream>>,
}

impl Machine {
    /// A machine that trusts the cluster and has no certificate.
    pub fn stranger(site: &Site) -> Self {
        let pem = std::fs::read(site.dir.path().join("state/pki/ca.pem")).unwrap();
        let ca = CertificateDer::from_pem_slice(&pem).unwrap();
        Self {
            port: site.port,
            ca,
            identity: None,
            name: String::new(),
        }
    }

    /// Joins with a token for this role; the token carries the name.
    pub async fn join(site: &Site, controller: &Controller, role: &str, name: &str) -> Self {
        let token = controller
            .client()
            .post("/v1/tokens", &json!({"role": role, "name": name}));
        let token = token["token"].as_str().unwrap().to_owned();
        let mut machine = Self::stranger(site);
        let (status, reply) = machine
            .spend(&token, "name-in-the-request", "name-in-the-csr")
            .await;
        assert_eq!(status, 200, "{reply}");
        machine.take(&reply);
        assert_eq!(
            (machine.name.as_str(), reply["role"].as_str().unwrap()),
            (name, role)
        );
        machine
    }

    /// Status and answer of a join; the key is remembered for `take`.
    pub async fn spend(&mut self, token: &str, name: &str, common_name: &str) -> (u16, Value) {
        let (secret, _) = token.split_once('.').unwrap();
        let body = json!({"secret": secret, "name": name, "csr_pem": self.request(common_name)});
        self.http(ALPN_JOIN, "POST", "/v1/join", "", &body)
            .await
            .unwrap()
    }

    pub fn request(&mut self, common_name: &str) -> String {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        self.identity = Some((CertificateDer::from(Vec::new()), key.serialize_der()));
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    pub fn take(&mut self, reply: &Value) {
        let pem = reply["cert_pem"].as_str().unwrap();
        let (cert, _) = self.identity.as_mut().unwrap();
        *cert = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        self.name = reply["name"].as_str().unwrap().into();
    }

    /// A TLS connection; the certificate goes along when there is one.
    pub async fn dial(&self, alpn: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.clone()).unwrap();
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_root_certificates(roots);
        let mut config = match self.identity.as_ref().filter(|(cert, _)| !cert.is_empty()) {
            Some((cert, key)) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.clone()));
                builder
                    .with_client_auth_cert(vec![cert.clone()], key)
                    .unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("gpuctld.gpupool.internal").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    /// One request on a connection of its own. `forwarded` is the header's value, none when empty.
    pub async fn http(
        &self,
        alpn: &[u8],
        method: &str,
        path: &str,
        forwarded: &str,
        body: &Value,
    ) -> std::io::Result<(u16, Value)> {
        let mut stream = self.dial(alpn).await?;
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let header = if forwarded.is_empty() {
            String::new()
        } else {
            format!("x-gpupool-peer: {forwarded}\r\n")
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let (status, body) = crate::controller::read_answer(&mut answer.as_slice())?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// As a user of this machine, through its daemon.
    pub async fn as_user(
        &self,
        forwarded: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> (u16, Value) {
        self.http(ALPN_HTTP, method, path, forwarded, body)
            .await
            .unwrap()
    }

    pub async fn link(&self) -> Link {
        let (source, sink) = tokio::io::split(self.dial(ALPN_NODE).await.unwrap());
        Link {
            frames: FrameReader::new(source),
            sink,
        }
    }

    /// Connects and says hello; the first orders have been read.
    pub async fn connect(&self, boot: &str, runs: Vec<RunReport>) -> (Link, ToNode) {
        let mut link = self.link().await;
        link.say(&hello(boot, runs)).await;
        let welcome = link.hear().await;
        assert!(matches!(welcome, ToNode::Welcome { .. }), "{welcome:?}");
        let orders = link.hear().await;
        (link, orders)
    }
}

impl Link {
    pub async fn say(&mut self, frame: &ToController) {
        frame::write(&mut self.sink, frame).await.unwrap();
    }

    /// The next frame that is no ping.
    pub async fn hear(&mut self) -> ToNode {
        self.try_hear()
            .await
            .expect("the controller closed the connection")
    }

    /// None when the controller closed the connection.
    pub async fn try_hear(&mut self) -> Option<ToNode> {
        loop {
            let frame = tokio::time::timeout(PATIENCE, self.frames.next())
                .await
                .expect("the controller is silent");
            match frame {
                Ok(Some(ToNode::Ping)) => {}
                Ok(frame) => return frame,
                Err(_) => return None,
            }
        }
    }

    pub async fn report(&mut self, run: RunId, phase: RunPhase) {
        self.say(&ToController::Runs {
            runs: vec![RunReport::new(run, phase)],
        })
        .await;
    }
}

pub fn hello(boot: &str, runs: Vec<RunReport>) -> ToController {
    let gpu = |index: u32| GpuInfo {
        uuid: format!("GPU-{index}"),
        gpu_type: "h100".into(),
        index,
        memory_mib: 81_920,
        ..GpuInfo::default()
    };
    let inventory = Inventory {
        cpus: 16,
        mem_bytes: 64 << 30,
        gpus: (0..4).map(gpu).collect(),
        isolation: "fence".into(),
        ..Inventory::default()
    };
    ToController::Hello(Hello {
        protocol: PROTOCOL,
        release: "test".into(),
        life: NodeLife {
            boot: boot.into(),
            spool: "spool".into(),
        },
        inventory,
        runs,
        ..Hello::default()
    })
}
