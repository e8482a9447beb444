//! Asks web servers for the size and the version of a file that do not answer HEAD: by GET.
//!
//! # Why
//! Some servers know no HEAD (405, 501), and links that are signed for GET alone refuse it (403). For `object_store` the
//! first is a missing file, and a job that may skip missing inputs would have nothing to do.

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, StatusCode};

use super::http::IdleTimeoutConnector;
use crate::error::{Error, NotImplementedAnswer, find_in_chain};

/// Makes clients of web servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct WebConnector(pub(super) IdleTimeoutConnector);

impl HttpConnector for WebConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(WebClient(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct WebClient(HttpClient);

#[async_trait::async_trait]
impl HttpService for WebClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let is_read = [Method::HEAD, Method::GET].contains(&parts.method);
        let again = (parts.method == Method::HEAD).then(|| parts.clone());
        let mut answer = self.0.execute(HttpRequest::from_parts(parts, body)).await;
        if let Some(mut parts) = again.filter(|_| is_refused(&answer)) {
            parts.method = Method::GET;
            parts.headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
            let get = HttpRequest::from_parts(parts, HttpRequestBody::empty());
            answer = without_body(self.0.execute(get).await?).await;
        }
        let mut answer = answer?;
        match answer.status() {
            StatusCode::GONE => *answer.status_mut() = StatusCode::NOT_FOUND,
            // `object_store` takes it for a missing file.
            StatusCode::METHOD_NOT_ALLOWED if is_read => {
                return Err(HttpError::new(HttpErrorKind::Unknown, refused()));
            }
            _ => {}
        }
        Ok(answer)
    }
}

/// Whether a server refuses HEAD: that tells nothing about the file.
fn is_refused(answer: &Result<HttpResponse, HttpError>) -> bool {
    use StatusCode as S;
    let others = [S::NOT_FOUND, S::GONE, S::REQUEST_TIMEOUT, S::TOO_MANY_REQUESTS];
    match answer {
        Ok(answer) => answer.status().is_client_error() && !others.contains(&answer.status()),
        Err(e) => find_in_chain::<NotImplementedAnswer>(e).is_some(),
    }
}

/// The answer to HEAD that this answer to GET of the first byte stands for.
async fn without_body(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = answer.into_parts();
    let size = match parts.status {
        StatusCode::PARTIAL_CONTENT => whole_size(&parts.headers),
        // No file has a first byte: it is empty.
        StatusCode::RANGE_NOT_SATISFIABLE => Some(0),
        StatusCode::OK if !parts.headers.contains_key(CONTENT_LENGTH) => {
            Some(body.bytes().await?.len() as u64)
        }
        _ => return Ok(HttpResponse::from_parts(parts, bytes::Bytes::new().into())),
    };
    parts.headers.remove(CONTENT_RANGE);
    parts.headers.remove(CONTENT_LENGTH);
    if let Some(size) = size {
        parts.status = StatusCode::OK;
        parts.headers.insert(CONTENT_LENGTH, size.into());
    }
    Ok(HttpResponse::from_parts(parts, bytes::Bytes::new().into()))
}

/// The size of a file in the header of a part, such as `bytes 0-0/1234`.
fn whole_size(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit_once('/')?.1.parse().ok()
}

fn refused() -> Error {
    Error::spec("the web server does not send this file")
        .found("405 Method Not Allowed, to GET")
        .help("check the URL; if it is right, download the file by other means and name that one")
}
