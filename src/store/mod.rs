//! Opens the object store behind a URL: local disk, `s3://`, `http(s)://`, and others by feature.
//!
//! Credentials never come from the pipeline file: the environment (`AWS_ACCESS_KEY_ID`, ...), a web identity or the
//! instance's role supply them, by the same rules as every tool built on `object_store`.
//!
//! # Why
//! A link may be slow without being broken: 10 GB take eleven hours at 2 Mbit/s. So no request has a limit on its whole
//! time. It fails if no byte moves for `idle_seconds` (`http.rs`), an interrupted download resumes where it stopped
//! (`resume.rs`), and a large object is uploaded in pieces, each of which can be sent again (`upload.rs`).

mod delete;
mod denied;
mod head;
mod http;
mod local;
mod location;
mod pieces;
mod resume;
mod upload;
mod whole_files;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector as _};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::{Position, Url};

use crate::engine::parse_bytes;
use crate::error::{Error, NAME_HELP, Problem, Result};
use crate::redact::redacted_location;
use crate::spec::Problems;
use delete::DeleteOne;
pub(crate) use denied::{is_absent, is_denied, is_temporary};
use head::WebConnector;
use http::IdleTimeoutConnector;
use local::LocalFiles;
use location::URL_HELP;
pub use location::{parse_url, secret_problem, shown};
use pieces::Pieces;
use resume::Resuming;

/// Settings of object stores; all of them may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSpec {
    /// Endpoint of an S3-compatible store; else `AWS_ENDPOINT_URL_S3`, else `AWS_ENDPOINT_URL`, else Amazon's own.
    pub endpoint: Option<String>,
    /// Region; else `AWS_REGION`, else us-east-1.
    pub region: Option<String>,
    /// How often a request that failed with a 5xx status or a broken connection is sent again.
    #[schemars(range(min = 0, max = 1000))]
    pub max_retries: u32,
    /// Seconds after which a request that keeps failing is given up.
    #[schemars(range(min = 1, max = 86_400))]
    pub retry_seconds: u64,
    /// Seconds after which an attempt to connect fails.
    #[schemars(range(min = 1, max = 86_400))]
    pub connect_seconds: u64,
    /// Seconds without a byte in either direction after which a request counts as failed. A request may take as long
    /// as it needs while bytes move.
    #[schemars(range(min = 1, max = 86_400))]
    pub idle_seconds: u64,
    /// Size of the pieces that larger objects are uploaded in, such as "8MiB"; stores take 5 MiB to 5 GiB. A piece that
    /// fails is sent again.
    pub piece_size: String,
    /// Number of simultaneous uploads, of pieces or of smaller objects. Fewer let each one end sooner on a slow link.
    #[schemars(range(min = 1, max = 1024))]
    pub pieces_in_flight: usize,
}

impl Default for StoreSpec {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            max_retries: 10,
            retry_seconds: 180,
            connect_seconds: 10,
            idle_seconds: 120,
            piece_size: "8MiB".to_owned(),
            pieces_in_flight: 4,
        }
    }
}

/// The environment variables that can set the endpoint of S3.
const ENDPOINT_VARIABLES: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// The sizes that stores accept for a piece of an upload, except for the last one.
const PIECE_BYTES: std::ops::RangeInclusive<usize> = 5 << 20..=5 << 30;

impl StoreSpec {
    /// Adds the spec's problems to `problems`.
    pub fn check(&self, location: &str, problems: &mut Problems) {
        if let Some(problem) = self.endpoint.as_deref().and_then(secret_problem) {
            problems.push(problem.at(format!("{location}: store.endpoint")));
        } else if self.endpoint.as_deref().is_some_and(|endpoint| !is_of_a_server(endpoint)) {
            // Do not show the endpoint: without a scheme, any part of it could be a password.
            problems.push(
                Problem::new("the endpoint is no URL of a server")
                    .at(format!("{location}: store.endpoint"))
                    .help("write http:// or https://, the host and its port, as in \"https://minio.example:9000\""),
            );
        }
        if !parse_bytes(&self.piece_size).is_some_and(|bytes| PIECE_BYTES.contains(&bytes)) {
            problems.push(
                Problem::new("not a size of pieces that stores take")
                    .at(format!("{location}: store.piece_size"))
                    .found(format!("`{}`", self.piece_size))
                    .help("write a number and a unit from 5MiB to 5GiB, such as \"8MiB\""),
            );
        }
    }

    fn retries(&self) -> RetryConfig {
        let limit = Duration::from_secs(self.retry_seconds);
        RetryConfig {
            max_retries: usize::try_from(self.max_retries).unwrap_or(usize::MAX),
            retry_timeout: limit,
            backoff: BackoffConfig {
                // A pause is drawn from the first one up to `base` times the one before. With the default of 2 the pauses
                // do not grow on average, and ten retries took 3 seconds; with 6 they take about a minute.
                base: 6.0,
                // The time is checked before a pause, not after it.
                max_backoff: Duration::from_secs(15).min(limit / 4),
                ..BackoffConfig::default()
            },
        }
    }

    fn client(&self, allow_http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_allow_http(allow_http)
            .with_connect_timeout(Duration::from_secs(self.connect_seconds))
    }

    fn connector(&self) -> IdleTimeoutConnector {
        let seconds = Duration::from_secs;
        IdleTimeoutConnector {
            connect: seconds(self.connect_seconds),
            idle: seconds(self.idle_seconds),
        }
    }
}

fn is_of_a_server(endpoint: &str) -> bool {
    let scheme = endpoint.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| scheme == "http" || scheme == "https")
}

/// A store and the place inside it that a URL names.
#[derive(Debug, Clone)]
pub struct StoreLocation {
    /// The URL, with local paths made absolute.
    pub url: Url,
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The path inside the store.
    pub path: Path,
    pieces: Pieces,
}

impl StoreLocation {
    /// Whether the store is a web server. Most of them cannot list files.
    #[must_use]
    pub fn is_web(&self) -> bool {
        matches!(self.url.scheme(), "http" | "https")
    }

    /// The store's own URL, without a path.
    #[must_use]
    pub fn root(&self) -> Url {
        let mut root = self.url.clone();
        root.set_path("/");
        root.set_query(None);
        root
    }

    /// The local folder or file, where the URL is on local disk.
    #[must_use]
    pub fn local(&self) -> Option<PathBuf> {
        (self.url.scheme() == "file").then(|| self.url.to_file_path().ok()).flatten()
    }
}

/// Opens the store behind `url`.
///
/// # Errors
/// When the scheme is unknown or its settings are wrong; nothing is sent yet.
pub fn open(url: &Url, spec: &StoreSpec) -> Result<StoreLocation> {
    if let Some(problem) = spec.endpoint.as_deref().and_then(secret_problem) {
        return Err(Error::spec_problems(vec![problem.at("store.endpoint")]));
    }
    for name in ENDPOINT_VARIABLES.into_iter().filter(|_| url.scheme().starts_with("s3")) {
        if let Some(problem) = std::env::var(name).ok().as_deref().and_then(secret_problem) {
            return Err(Error::spec_problems(vec![problem.at(name)]));
        }
    }
    if url.scheme().starts_with("s3") {
        check_s3(spec)?;
    }
    let unusable = |e: object_store::Error| {
        let help = match e {
            object_store::Error::InvalidPath { .. } => NAME_HELP,
            _ => not_built_in(url.scheme()).unwrap_or(URL_HELP),
        };
        Error::spec(format!("cannot open the store: {e}")).at(url.to_string()).help(help)
    };
    let (store, path) = if url.scheme() == "file" {
        let path = url.to_file_path().map_err(|()| {
            Error::spec("not a local path").found(format!("`{url}`")).help(URL_HELP)
        })?;
        let path = Path::from_absolute_path(path).map_err(|e| unusable(e.into()))?;
        (Arc::new(LocalFiles::default()) as Arc<dyn ObjectStore>, path)
    } else {
        let path = Path::from_url_path(url.path()).map_err(|e| unusable(e.into()))?;
        let bucket = url.host_str().unwrap_or_default();
        let (store, delete) = remote(url, spec).map_err(unusable)?;
        (Arc::new(Resuming::new(store, bucket, delete)) as _, path)
    };
    Ok(StoreLocation {
        url: url.clone(),
        store,
        path,
        pieces: Pieces::new(&spec.piece_size, spec.pieces_in_flight),
    })
}

/// The help for a store that this build does not have.
fn not_built_in(scheme: &str) -> Option<&'static str> {
    match scheme {
        "gs" if !cfg!(feature = "gcs") => Some(
            "this build has no Google Cloud Storage: build with `--features gcs`; or use s3:// with \
             AWS_ENDPOINT_URL=https://storage.googleapis.com and HMAC keys",
        ),
        "az" | "adl" | "azure" | "abfs" | "abfss" if !cfg!(feature = "azure") => {
            Some("this build has no Azure storage: build with `--features azure`")
        }
        _ => None,
    }
}

/// The store, and how it deletes one object, where it may not be able to delete many at once.
fn remote(
    url: &Url,
    spec: &StoreSpec,
) -> object_store::Result<(Arc<dyn ObjectStore>, Option<DeleteOne>)> {
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" | "s3a" => {
            let (store, client) = s3(url, spec)?;
            let store = Arc::new(store);
            let delete = DeleteOne::new(&store, client, spec.max_retries);
            return Ok((store, Some(delete)));
        }
        "http" | "https" => {
            let http = HttpBuilder::new().with_url(&url[..Position::BeforePath]);
            let options = spec.client(url.scheme() == "http");
            let http = http.with_client_options(options).with_retry(spec.retries());
            Arc::new(http.with_http_connector(WebConnector(spec.connector())).build()?)
        }
        #[cfg(feature = "gcs")]
        "gs" => {
            let gcs =
                object_store::gcp::GoogleCloudStorageBuilder::from_env().with_url(url.as_str());
            let gcs = gcs.with_client_options(spec.client(false)).with_retry(spec.retries());
            Arc::new(gcs.with_http_connector(spec.connector()).build()?)
        }
        #[cfg(feature = "azure")]
        "az" | "adl" | "azure" | "abfs" | "abfss" => {
            let azure =
                object_store::azure::MicrosoftAzureBuilder::from_env().with_url(url.as_str());
            let azure = azure.with_client_options(spec.client(false)).with_retry(spec.retries());
            Arc::new(azure.with_http_connector(spec.connector()).build()?)
        }
        // The error of `parse_url` names the schemes that exist, and those that were not built in.
        _ => Arc::from(object_store::parse_url(url)?.0),
    };
    Ok((store, None))
}

/// The settings of S3, from the spec before the environment.
fn s3_builder(spec: &StoreSpec) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env();
    // The newer variable is a setting of its own, which the builder prefers.
    let of_s3 = builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint);
    if let Some(endpoint) = spec.endpoint.clone().or(of_s3) {
        builder =
            builder.with_config(AmazonS3ConfigKey::S3Endpoint, &endpoint).with_endpoint(endpoint);
    }
    if let Some(region) = &spec.region {
        builder = builder.with_region(region);
    }
    builder
}

/// Checks settings that the client does not check: it would fail at the first request.
fn check_s3(spec: &StoreSpec) -> Result<()> {
    use AmazonS3ConfigKey::{AccessKeyId, Endpoint, Region, SecretAccessKey, SkipSignature, Token};
    let builder = s3_builder(spec);
    for (key, location) in [
        (AccessKeyId, "AWS_ACCESS_KEY_ID"),
        (SecretAccessKey, "AWS_SECRET_ACCESS_KEY"),
        (Token, "AWS_SESSION_TOKEN"),
        (Region, "store.region, or AWS_REGION"),
    ] {
        let value = builder.get_config_value(&key).unwrap_or_default();
        if value.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(Error::spec("a setting of the store holds what no header can")
                .at(location)
                .help(
                    "letters, digits and signs only: is there a space or a line break at its end?",
                ));
        }
    }
    let keys = [(AccessKeyId, "AWS_ACCESS_KEY_ID"), (SecretAccessKey, "AWS_SECRET_ACCESS_KEY")];
    let lacks = |(key, _): &&(AmazonS3ConfigKey, &str)| builder.get_config_value(key).is_none();
    let is_signed = builder.get_config_value(&SkipSignature).is_none_or(|skip| skip != "true");
    let lacking: Vec<&str> = keys.iter().filter(lacks).map(|(_, name)| *name).collect();
    if let ([missing], true) = (&lacking[..], is_signed) {
        return Err(Error::spec(format!("the credentials lack a half: {missing} is not set"))
            .found("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY were looked at; only one is set")
            .help(
                "set both (with a profile: eval \"$(aws configure export-credentials --format env)\"), or \
                 AWS_SKIP_SIGNATURE=true for a public bucket",
            ));
    }
    let Some(endpoint) = builder.get_config_value(&Endpoint) else { return Ok(()) };
    let is_web = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    if endpoint.trim() == endpoint && Url::parse(&endpoint).is_ok_and(|url| is_web(&url)) {
        return Ok(());
    }
    Err(Error::spec("not an endpoint")
        .at("store.endpoint, or AWS_ENDPOINT_URL")
        .found(format!("`{}`", redacted_location(&endpoint)))
        .help("write the server's URL, such as http://localhost:9000"))
}

/// The store, and a client with its options.
fn s3(url: &Url, spec: &StoreSpec) -> object_store::Result<(AmazonS3, HttpClient)> {
    // Read the endpoint from the builder, so that an http endpoint is allowed from the spec and from the environment.
    let builder = s3_builder(spec).with_url(url.as_str()).with_retry(spec.retries());
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
    let options = spec.client(endpoint.starts_with("http://"));
    let client = spec.connector().connect(&options)?;
    let store = builder.with_client_options(options).with_http_connector(spec.connector());
    Ok((store.build()?, client))
}

#[cfg(test)]
mod tests;
