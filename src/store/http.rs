//! An HTTP client whose requests time out when no bytes move, and never because they take long.
//!
//! # Why
//! The clients of `object_store` end a request after 30 seconds, even while bytes move: at 2 Mbit/s four pieces of
//! 8 MiB would never arrive. The read timeout of `reqwest` also runs while a body is still being sent. So this client
//! watches both directions itself.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::denied::METADATA_HOST;
use crate::error::{Error, NotImplementedAnswer};

/// The size of the frames that are handed to the connection: it asks for the next one when it has sent these bytes.
const FRAME_BYTES: usize = 64 << 10;

/// Makes clients that limit the idle time and not the whole time of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTimeoutConnector {
    /// The longest time to open a connection.
    pub(super) connect: Duration,
    /// The longest time without a byte.
    pub(super) idle: Duration,
}

impl HttpConnector for IdleTimeoutConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let value = |key| options.get_config_value(&key).unwrap_or_default();
        // `object_store` sets a shorter timeout for the instance metadata service, which is either near or absent.
        let seconds = value(ClientConfigKey::ConnectTimeout);
        let seconds = seconds.strip_suffix('s').and_then(|text| text.parse().ok());
        let connect = seconds.map_or(self.connect, Duration::from_secs).min(self.connect);
        let client = reqwest::Client::builder()
            .user_agent(concat!("labelmill/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect)
            .https_only(value(ClientConfigKey::AllowHttp) != "true")
            .http1_only()
            // Do not decompress: an object's size is the number of bytes that are sent.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .build()
            .map_err(|e| object_store::Error::Generic { store: "HTTP", source: Box::new(e) })?;
        Ok(HttpClient::new(IdleTimeoutClient { client, idle: self.idle }))
    }
}

#[derive(Debug)]
struct IdleTimeoutClient {
    client: reqwest::Client,
    idle: Duration,
}

#[async_trait::async_trait]
impl HttpService for IdleTimeoutClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse::<url::Url>();
        let url = url.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
        let is_metadata = url.host_str() == Some(METADATA_HOST);
        let token = url.query_pairs().find(|(name, _)| name == "continuation-token");
        let token = token.map(|(_, token)| token.into_owned());
        let (moved, length) = (Arc::new(AtomicU64::new(0)), body.content_length() as u64);
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = Some(if body.content_length() == 0 {
            Bytes::new().into()
        } else {
            reqwest::Body::wrap(CountedBody::new(body, Arc::clone(&moved)))
        });
        let mut answer = std::pin::pin!(self.client.execute(request));
        let (began, mut limit) = (Instant::now(), self.idle);
        let answer = loop {
            let before = moved.load(Ordering::Relaxed);
            match timeout(limit, &mut answer).await {
                // The instance metadata service is either near or absent: a retry would only take time.
                Ok(Err(e)) if is_metadata => {
                    return Err(HttpError::new(HttpErrorKind::Unknown, e.without_url()));
                }
                Ok(answer) => break answer.map_err(http_error)?,
                Err(_) if moved.load(Ordering::Relaxed) == before => return Err(stalled(limit)),
                // The last bytes are still in the system's send buffer, and leave it no faster than the bytes before
                // them.
                Err(_) if moved.load(Ordering::Relaxed) == length => {
                    limit = self.idle + began.elapsed().min(self.idle * 3);
                }
                Err(_) => {}
            }
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut body = HttpResponseBody::new(TimedBody::new(answer.into(), self.idle));
        if status == reqwest::StatusCode::NOT_IMPLEMENTED {
            let bytes = body.bytes().await.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let text = text.lines().next().map_or(String::new(), |line| format!(": {line}"));
            return Err(HttpError::new(HttpErrorKind::Unknown, NotImplementedAnswer(text)));
        }
        if let Some(token) = token.filter(|_| status.is_success()) {
            let page = body.bytes().await?;
            if next_token(&String::from_utf8_lossy(&page)).is_some_and(|next| next == token) {
                return Err(HttpError::new(HttpErrorKind::Unknown, endless_listing()));
            }
            body = page.into();
        }
        let mut response = HttpResponse::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// The token of the next page in a page of a listing, as S3 writes it.
fn next_token(page: &str) -> Option<String> {
    let (_, rest) = page.split_once("<NextContinuationToken>")?;
    let (token, _) = rest.split_once("</NextContinuationToken>")?;
    let signs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Some(signs.iter().fold(token.to_owned(), |text, (name, sign)| text.replace(name, sign)))
}

fn endless_listing() -> Error {
    Error::spec("the store's listing never ends: a page names itself as the next one")
        .help("trying again does not help: report it to whoever runs the store, or use another one")
}

/// A request body in small frames. It counts the bytes that the connection takes.
struct CountedBody {
    body: HttpRequestBody,
    frame: Bytes,
    left: u64,
    moved: Arc<AtomicU64>,
}

impl CountedBody {
    fn new(body: HttpRequestBody, moved: Arc<AtomicU64>) -> Self {
        let left = body.content_length() as u64;
        Self { body, frame: Bytes::new(), left, moved }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.frame.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => self.frame = frame.into_data().unwrap_or_default(),
                Some(Err(e)) => return Poll::Ready(Some(Err(e))),
                None => return Poll::Ready(None),
            }
        }
        let length = self.frame.len().min(FRAME_BYTES);
        let frame = self.frame.split_to(length);
        self.left = self.left.saturating_sub(frame.len() as u64);
        self.moved.fetch_add(frame.len() as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A response body. Its reader may take as long as it likes, its sender may not.
struct TimedBody {
    body: reqwest::Body,
    idle: Duration,
    limit: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    fn new(body: reqwest::Body, idle: Duration) -> Self {
        Self { body, idle, limit: None }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.limit = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(http_error)));
        }
        let idle = self.idle;
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(idle)));
        ready!(limit.as_mut().poll(cx));
        Poll::Ready(Some(Err(stalled(idle))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no byte came or went for {0:?} (store.idle_seconds)")]
struct IdleTimeout(Duration);

fn stalled(idle: Duration) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, IdleTimeout(idle))
}

/// Chooses the kind of error: where the request may have been carried out, `object_store` repeats it only if it is
/// idempotent.
fn http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else if error.is_builder() || error.is_redirect() {
        HttpErrorKind::Unknown
    } else {
        HttpErrorKind::Interrupted
    };
    HttpError::new(kind, error.without_url())
}
