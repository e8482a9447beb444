//! Opens the object store behind a URL: local disk, `s3://`, `http(s)://`, and others by feature.
//!
//! Credentials never come from the pipeline file: the environment (`AWS_ACCESS_KEY_ID`, ...), a web identity or the
//! instance's role supply them, by the same rules as every tool built on `object_store`.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::{Error, Result};

/// How object stores are reached; everything here may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSpec {
    /// Endpoint of an S3-compatible store; else `AWS_ENDPOINT_URL`, else Amazon's own.
    pub endpoint: Option<String>,
    /// Region; else `AWS_REGION`, else us-east-1.
    pub region: Option<String>,
    /// How often a request that failed with a 5xx status or a broken connection is sent again.
    pub max_retries: u32,
    /// Seconds after which a request that keeps failing is given up.
    #[schemars(range(min = 1))]
    pub retry_seconds: u64,
}

impl Default for StoreSpec {
    fn default() -> Self {
        Self { endpoint: None, region: None, max_retries: 10, retry_seconds: 180 }
    }
}

/// A store and the place inside it that a URL names.
#[derive(Debug, Clone)]
pub struct Place {
    /// The URL, with local paths made absolute.
    pub url: Url,
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The path inside the store.
    pub path: Path,
}

impl Place {
    /// The local folder or file, where the URL is on local disk.
    #[must_use]
    pub fn local(&self) -> Option<PathBuf> {
        (self.url.scheme() == "file").then(|| self.url.to_file_path().ok()).flatten()
    }
}

/// Turns what a user wrote, a URL or a local path, into a URL; a local path is taken from the working folder.
///
/// # Errors
/// When it is neither.
pub fn parse_url(text: &str) -> Result<Url> {
    if text.contains("://") {
        return Url::parse(text).map_err(|e| {
            Error::spec(format!("not a URL: {e}")).found(format!("`{text}`")).help(URL_HELP)
        });
    }
    let absolute = std::path::absolute(FilePath::new(text)).map_err(|e| {
        Error::spec(format!("not a path: {e}")).found(format!("`{text}`")).help(URL_HELP)
    })?;
    let url = if text.ends_with('/') {
        Url::from_directory_path(&absolute)
    } else {
        Url::from_file_path(&absolute)
    };
    url.map_err(|()| Error::spec("not a path").found(format!("`{text}`")).help(URL_HELP))
}

const URL_HELP: &str = "write a local path, or a URL such as s3://bucket/folder/";

/// Opens the store behind `url`.
///
/// # Errors
/// When the scheme is unknown or its settings are wrong; nothing is sent yet.
pub fn open(url: &Url, spec: &StoreSpec) -> Result<Place> {
    let unusable = |e: object_store::Error| {
        Error::spec(format!("cannot open the store: {e}")).at(url.to_string()).help(URL_HELP)
    };
    let (store, path): (Arc<dyn ObjectStore>, Path) = match url.scheme() {
        "file" => {
            let path = url.to_file_path().map_err(|()| {
                Error::spec("not a local path").found(format!("`{url}`")).help(URL_HELP)
            })?;
            let path = Path::from_absolute_path(path).map_err(|e| unusable(e.into()))?;
            (Arc::new(LocalFileSystem::new()), path)
        }
        "s3" | "s3a" => (Arc::new(s3(url, spec).map_err(unusable)?), path_of(url)?),
        _ => {
            let options = std::env::vars().map(|(k, v)| (k.to_lowercase(), v));
            let (store, _) = object_store::parse_url_opts(url, options).map_err(unusable)?;
            (Arc::from(store), path_of(url)?)
        }
    };
    Ok(Place { url: url.clone(), store, path })
}

fn path_of(url: &Url) -> Result<Path> {
    Path::from_url_path(url.path())
        .map_err(|e| Error::spec(format!("not an object path: {e}")).at(url.to_string()))
}

fn s3(url: &Url, spec: &StoreSpec) -> object_store::Result<impl ObjectStore + use<>> {
    let retry = RetryConfig {
        max_retries: usize::try_from(spec.max_retries).unwrap_or(usize::MAX),
        retry_timeout: Duration::from_secs(spec.retry_seconds),
        backoff: BackoffConfig::default(),
    };
    // A configured builder is asked what it read, so that an http endpoint from either place is allowed.
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry);
    if let Some(endpoint) = &spec.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &spec.region {
        builder = builder.with_region(region);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
    let options = ClientOptions::new()
        .with_allow_http(endpoint.starts_with("http://"))
        .with_connect_timeout(Duration::from_secs(10));
    builder.with_client_options(options).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_becomes_an_absolute_file_url() {
        let url = parse_url("data/crowd.csv").unwrap();
        assert_eq!(url.scheme(), "file");
        assert!(url.path().ends_with("/data/crowd.csv"));
    }

    #[test]
    fn an_unknown_scheme_is_a_spec_error() {
        let url = parse_url("ftp://host/x").unwrap();
        assert_eq!(open(&url, &StoreSpec::default()).unwrap_err().exit_code(), 2);
    }
}
