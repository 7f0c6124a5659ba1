//! A registry of images on 127.0.0.1 that serves one OCI layout by the distribution API, as slowly as it is told to, or misbehaves.

use crate::pool::Pool;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What it does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryMood {
    /// Serves so many KiB a second of each blob.
    Serves(u64),
    /// Takes the request and says nothing.
    Hangs,
    /// 401 to all, whatever the credentials.
    Refuses,
    /// 503 to all.
    IsDown,
}

/// Ends with the test.
pub struct TestRegistry {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    layout: PathBuf,
    mood: Mutex<RegistryMood>,
    blobs_sent: AtomicU32,
    is_over: AtomicBool,
}

impl TestRegistry {
    pub fn of(layout: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            layout: layout.to_owned(),
            mood: Mutex::new(RegistryMood::Serves(1 << 20)),
            blobs_sent: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::spawn(move || drop(shared.serve(client)));
            }
        });
        Self { address, shared }
    }

    pub fn is(&self, mood: RegistryMood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    /// Layers and configurations that were sent whole.
    pub fn blobs_sent(&self) -> u32 {
        self.shared.blobs_sent.load(Ordering::Relaxed)
    }

    /// The image's name here.
    pub fn image(&self) -> String {
        format!("docker://{}/team/image:base", self.address)
    }

    /// A home directory that says that this registry speaks HTTP.
    pub fn home(&self, pool: &Pool) -> PathBuf {
        let home = pool.work.join("home");
        let place = home.join(".config/containers");
        fs::create_dir_all(&place).unwrap();
        let address = self.address;
        let text = format!("[[registry]]\nlocation = \"{address}\"\ninsecure = true\n");
        fs::write(place.join("registries.conf"), text).unwrap();
        home
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Requests of one connection, one after the other.
    fn serve(&self, client: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(client.try_clone()?);
        // skopeo asks for TLS first.
        if lines.fill_buf()?.first() == Some(&0x16) {
            return Ok(());
        }
        loop {
            let mut request = String::new();
            if lines.read_line(&mut request)? == 0 {
                return Ok(());
            }
            let mut header = String::from(".");
            while !header.trim().is_empty() {
                header.clear();
                lines.read_line(&mut header)?;
            }
            let mut words = request.split(' ');
            let (verb, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            self.answer(verb == "HEAD", path, &client)?;
        }
    }

    fn answer(&self, is_head: bool, path: &str, client: &TcpStream) -> std::io::Result<()> {
        let mood = *self.mood.lock().unwrap();
        match mood {
            RegistryMood::Hangs => {
                while !self.is_over.load(Ordering::Relaxed)
                    && *self.mood.lock().unwrap() == RegistryMood::Hangs
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(std::io::ErrorKind::TimedOut.into())
            }
            RegistryMood::Refuses => status(client, "401 Unauthorized", "UNAUTHORIZED"),
            RegistryMood::IsDown => status(client, "503 Service Unavailable", "UNAVAILABLE"),
            RegistryMood::Serves(_) if path == "/v2/" => status(client, "200 OK", "NONE"),
            RegistryMood::Serves(kib) => match self.find(path) {
                None => status(client, "404 Not Found", "MANIFEST_UNKNOWN"),
                Some((kind, digest)) => {
                    let body = fs::read(self.layout.join("blobs").join(digest.replace(':', "/")))?;
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nDocker-Content-Digest: {digest}\r\n\r\n"
                    );
                    (&*client).write_all(head.as_bytes())?;
                    if !is_head {
                        self.send(client, &body, kib)?;
                        let is_blob = path.contains("/blobs/");
                        self.blobs_sent
                            .fetch_add(u32::from(is_blob), Ordering::Relaxed);
                    }
                    Ok(())
                }
            },
        }
    }

    fn send(&self, mut client: &TcpStream, body: &[u8], kib: u64) -> std::io::Result<()> {
        let part = usize::try_from((kib << 10) / 20).unwrap().max(1);
        for (number, part) in body.chunks(part).enumerate() {
            if number > 0 {
                std::thread::sleep(Duration::from_millis(50));
            }
            client.write_all(part)?;
        }
        Ok(())
    }

    /// Type and digest of what a path names.
    fn find(&self, path: &str) -> Option<(&'static str, String)> {
        let name = path.rsplit('/').next()?;
        let manifest = "application/vnd.oci.image.manifest.v1+json";
        match name.starts_with("sha256:") {
            true if path.contains("/blobs/") => Some(("application/octet-stream", name.to_owned())),
            true => Some((manifest, name.to_owned())),
            false => {
                let index = fs::read(self.layout.join("index.json")).ok()?;
                let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
                let list = index["manifests"].as_array()?;
                let tag = "org.opencontainers.image.ref.name";
                let one = list.iter().find(|one| one["annotations"][tag] == name)?;
                Some((manifest, one["digest"].as_str()?.to_owned()))
            }
        }
    }
}

fn status(mut client: &TcpStream, status: &str, code: &str) -> std::io::Result<()> {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"as the test wants it"}}]}}"#);
    let length = body.len();
    let asks = match status.starts_with("401") {
        true => "WWW-Authenticate: Basic realm=\"test\"\r\n",
        false => "",
    };
    let text = format!(
        "HTTP/1.1 {status}\r\n{asks}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    client.write_all(text.as_bytes())
}
