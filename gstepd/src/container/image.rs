//! Images as the OCI image specification has them: index, manifest and configuration, read from a layout or from a registry's
//! answer. All of it is hostile until it is bounded.

use crate::container::ContainerError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};

/// As many as no builder makes: Docker's own limit is 127.
pub const MAX_LAYERS: usize = 512;
const MAX_TEXT_BYTES: u64 = 8 << 20;
const TAG: &str = "org.opencontainers.image.ref.name";

/// What a program in the image finds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(default)]
pub struct ImageConfig {
    #[serde(rename = "Env", deserialize_with = "or_default")]
    pub env: Vec<String>,
    #[serde(rename = "Entrypoint", deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    #[serde(rename = "WorkingDir", deserialize_with = "or_default")]
    pub work_dir: String,
}

/// Go writes an empty list as null.
fn or_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    size: u64,
    annotations: std::collections::BTreeMap<String, String>,
    platform: Platform,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Platform {
    architecture: String,
    os: String,
}

/// An index or a manifest: one has `manifests`, the other `layers`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    #[serde(deserialize_with = "or_default")]
    manifests: Vec<Descriptor>,
    config: Descriptor,
    #[serde(deserialize_with = "or_default")]
    layers: Vec<Descriptor>,
}

/// What a registry or a layout says of an image, before its layers are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// Of several architectures: the digest of this machine's.
    Index(String),
    Image {
        /// Digest of the configuration.
        config: String,
        layer_bytes: u64,
    },
}

impl Manifest {
    /// # Errors
    /// It is none, or has more layers than any builder makes.
    pub fn parse(text: &[u8]) -> Result<Self, ContainerError> {
        let document: Document = serde_json::from_slice(text).map_err(|e| {
            ContainerError::user(format_args!("the image's manifest cannot be read: {e}"))
        })?;
        if !document.manifests.is_empty() {
            let own = document.manifests.iter().find(|one| {
                one.platform.os == "linux" && one.platform.architecture == architecture()
            });
            let own = own.ok_or_else(|| {
                ContainerError::user(format_args!(
                    "the image is not made for linux/{}",
                    architecture()
                ))
            })?;
            return digest(&own.digest).map(|digest| Self::Index(digest.to_owned()));
        }
        match document.layers.len() {
            0 => Err(ContainerError::user("the image has no layers")),
            many if many > MAX_LAYERS => Err(ContainerError::user(format_args!(
                "the image has {many} layers, and {MAX_LAYERS} are the most"
            ))),
            _ => Ok(Self::Image {
                config: digest(&document.config.digest)?.to_owned(),
                layer_bytes: document
                    .layers
                    .iter()
                    .fold(0, |sum, layer| sum.saturating_add(layer.size)),
            }),
        }
    }
}

/// The word of the OCI for it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `sha256:` and 64 digits: it becomes part of paths.
pub fn digest(text: &str) -> Result<&str, ContainerError> {
    let is_good = text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64
            && hex
                .bytes()
                .all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
    });
    is_good
        .then_some(text)
        .ok_or_else(|| ContainerError::user(format_args!("{text:.80?} is no SHA-256 digest")))
}

/// An image in an OCI layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutImage {
    pub layout: PathBuf,
    pub tag: String,
    pub digest: String,
}

impl LayoutImage {
    /// The image of this tag; without a tag the only one.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn find(layout: &Path, tag: &str) -> Result<Self, ContainerError> {
        let index: Document = read(&layout.join("index.json"))?;
        let tags: Vec<(&str, &Descriptor)> = index
            .manifests
            .iter()
            .map(|one| (one.annotations.get(TAG).map_or("", String::as_str), one))
            .collect();
        let found: Vec<_> = tags
            .iter()
            .filter(|(known, _)| tag.is_empty() || *known == tag)
            .collect();
        let names = || {
            tags.iter()
                .map(|(tag, _)| *tag)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match found[..] {
            [(tag, one)] if !tag.is_empty() => Ok(Self {
                layout: layout.to_owned(),
                tag: (*tag).to_owned(),
                digest: digest(&one.digest)?.to_owned(),
            }),
            [] => Err(ContainerError::user(format_args!(
                "{} has no image {tag:?}; it has: {}",
                layout.display(),
                names()
            ))),
            _ => Err(ContainerError::user(format_args!(
                "{} has several images: {}. Name one behind a colon",
                layout.display(),
                names()
            ))),
        }
    }

    pub fn manifest(&self) -> Result<Manifest, ContainerError> {
        Manifest::parse(&read_bounded(&self.blob(&self.digest))?)
    }

    /// What its programs find, by the digest of the configuration.
    pub fn config(&self, config: &str) -> Result<ImageConfig, ContainerError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ConfigFile {
            #[serde(deserialize_with = "or_default")]
            config: ImageConfig,
        }
        read::<ConfigFile>(&self.blob(config)).map(|file| file.config)
    }

    fn blob(&self, digest: &str) -> PathBuf {
        self.layout.join("blobs").join(digest.replacen(':', "/", 1))
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ContainerError> {
    serde_json::from_slice(&read_bounded(path)?)
        .map_err(|e| ContainerError::user(format_args!("{} cannot be read: {e}", path.display())))
}

pub fn read_bounded(path: &Path) -> Result<Vec<u8>, ContainerError> {
    let told = |e: std::io::Error| ContainerError::user(format_args!("{}: {e}", path.display()));
    let meta = fs::metadata(path).map_err(told)?;
    if !meta.is_file() || meta.len() > MAX_TEXT_BYTES {
        return Err(ContainerError::user(format_args!(
            "{} is no file of at most {MAX_TEXT_BYTES} bytes",
            path.display()
        )));
    }
    fs::read(path).map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(layers: usize) -> String {
        let layer = format!(r#"{{"digest":"sha256:{}","size":10}}"#, "0".repeat(64));
        let list = vec![layer.clone(); layers].join(",");
        format!(r#"{{"config":{layer},"layers":[{list}]}}"#)
    }

    #[test]
    fn an_image_of_ten_thousand_layers_is_refused_and_one_of_a_hundred_is_not() {
        let refused = Manifest::parse(manifest(10_000).as_bytes()).unwrap_err();
        assert!(refused.text.contains("10000 layers"), "{refused}");
        let Ok(Manifest::Image { layer_bytes, .. }) = Manifest::parse(manifest(100).as_bytes())
        else {
            panic!("it is an image");
        };
        assert_eq!(layer_bytes, 1000);
    }

    #[test]
    fn a_digest_is_no_path() {
        for odd in [
            "",
            "sha256:",
            "sha256:../../etc/passwd",
            "md5:00",
            &format!("sha256:{}", "A".repeat(64)),
        ] {
            assert!(digest(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn nulls_of_go_are_empty() {
        let config: ImageConfig =
            serde_json::from_str(r#"{"Env":null,"Entrypoint":["/x"],"WorkingDir":null}"#).unwrap();
        assert_eq!(
            (
                config.env.len(),
                config.entrypoint.len(),
                config.work_dir.as_str()
            ),
            (0, 1, "")
        );
    }
}
