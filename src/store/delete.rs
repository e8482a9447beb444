//! Deletes the objects of an S3 store one by one, where the store does not know the request that deletes many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{Error as StoreError, ObjectStore, Result};
use reqwest::{Method, StatusCode};

use crate::error::{has_status, is_not_implemented};

/// The most objects of one request, by the definition of S3.
const OBJECTS_AT_ONCE: usize = 1_000;

/// How many single requests are sent at once.
const REQUESTS_AT_ONCE: usize = 8;

/// How long the signature of a request holds.
const SIGNED_FOR: Duration = Duration::from_mins(5);

/// The longest pause before a request is sent again.
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// Deletes single objects by requests that the store has signed: `object_store` itself always sends the request for
/// many.
#[derive(Debug, Clone)]
pub(super) struct DeleteOne {
    signer: Arc<AmazonS3>,
    client: HttpClient,
    max_retries: u32,
    /// Whether the store has refused the request for many.
    is_needed: Arc<AtomicBool>,
}

impl DeleteOne {
    pub(super) fn new(signer: &Arc<AmazonS3>, client: HttpClient, max_retries: u32) -> Self {
        let is_needed = Arc::default();
        Self { signer: Arc::clone(signer), client, max_retries, is_needed }
    }

    /// Deletes by requests for many objects, until the store refuses one, and then one by one.
    pub(super) fn stream(
        self,
        store: Arc<dyn ObjectStore>,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let chunks = locations.try_chunks(OBJECTS_AT_ONCE).map_err(|e| e.1);
        let deleted = chunks.and_then(move |chunk| {
            let (this, store) = (self.clone(), Arc::clone(&store));
            async move { Ok(stream::iter(this.chunk(store.as_ref(), chunk).await)) }
        });
        deleted.try_flatten().boxed()
    }

    async fn chunk(&self, store: &dyn ObjectStore, paths: Vec<Path>) -> Vec<Result<Path>> {
        if !self.is_needed.load(Ordering::Relaxed) {
            let many = stream::iter(paths.clone().into_iter().map(Ok)).boxed();
            let deleted: Vec<_> = store.delete_stream(many).collect().await;
            let is_refused =
                |e: &StoreError| is_not_implemented(e) || has_status(e, &["400", "411"]);
            if !deleted.iter().filter_map(|deleted| deleted.as_ref().err()).any(is_refused) {
                return deleted;
            }
            tracing::info!("the store does not delete many objects at once: one by one");
            self.is_needed.store(true, Ordering::Relaxed);
        }
        stream::iter(paths).map(|path| self.one(path)).buffered(REQUESTS_AT_ONCE).collect().await
    }

    async fn one(&self, path: Path) -> Result<Path> {
        let mut tries = 0;
        loop {
            let url = self.signer.signed_url(Method::DELETE, &path, SIGNED_FOR).await?;
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = Method::DELETE;
            *request.uri_mut() = url.as_str().parse().map_err(|e| failed(Box::new(e)))?;
            let status = match self.client.execute(request).await {
                Ok(answer) => answer.status(),
                Err(_) if tries < self.max_retries => StatusCode::SERVICE_UNAVAILABLE,
                Err(e) => return Err(failed(Box::new(e))),
            };
            if status.is_success() || status == StatusCode::NOT_FOUND {
                return Ok(path);
            }
            if !status.is_server_error() || tries >= self.max_retries {
                let text = format!("cannot delete {path}: status code: {status}");
                return Err(match status {
                    StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                        StoreError::PermissionDenied { path: path.to_string(), source: text.into() }
                    }
                    _ => failed(text.into()),
                });
            }
            tokio::time::sleep(Duration::from_millis(100 << tries.min(10)).min(MAX_PAUSE)).await;
            tries += 1;
        }
    }
}

fn failed(source: Box<dyn std::error::Error + Send + Sync>) -> StoreError {
    StoreError::Generic { store: "S3", source }
}
