//! A connection of the S3 server that a fault can slow down, stall or break.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::s3_server::{Fault, ServerState};

/// A connection whose responses can be slowed down, stalled or cut.
pub struct Breakable {
    stream: TcpStream,
    fault: Arc<Mutex<Option<Fault>>>,
    state: Arc<ServerState>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Breakable {
    pub fn new(
        stream: TcpStream,
        fault: Arc<Mutex<Option<Fault>>>,
        state: Arc<ServerState>,
    ) -> Self {
        Self { stream, fault, state, pause: None }
    }

    /// How many bytes may move now: all that are wanted, or, for [`Fault::Slow`], a few and then a pause.
    fn poll_pace(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<usize> {
        let Some(Fault::Slow(bytes)) = *self.fault.lock().unwrap() else {
            return Poll::Ready(wanted);
        };
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
        }
        self.pause = Some(Box::pin(tokio::time::sleep(Duration::from_millis(10))));
        Poll::Ready(wanted.min(bytes))
    }

    /// How many bytes of a response may be sent now.
    fn allowed(&self, wanted: usize) -> usize {
        let mut fault = self.fault.lock().unwrap();
        match &mut *fault {
            None | Some(Fault::Slow(_)) => wanted,
            Some(Fault::Cut(left) | Fault::Stall(left)) if *left > 0 => {
                let allowed = wanted.min(*left);
                *left -= allowed;
                allowed
            }
            Some(Fault::Cut(_) | Fault::Reset | Fault::Stall(_)) => 0,
            Some(Fault::KillAfter) => {
                *fault = Some(Fault::Reset);
                self.state.kill();
                0
            }
            // The other faults end before their response is sent.
            Some(_) => wanted,
        }
    }
}

impl AsyncRead for Breakable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let bytes = std::task::ready!(self.poll_pace(cx, buf.remaining()));
        if bytes == buf.remaining() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let mut few = vec![0; bytes];
        let mut few = ReadBuf::new(&mut few);
        let done = Pin::new(&mut self.stream).poll_read(cx, &mut few);
        if done.is_pending() {
            self.pause = None;
        }
        buf.put_slice(few.filled());
        done
    }
}

impl AsyncWrite for Breakable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let paced = std::task::ready!(self.poll_pace(cx, buf.len()));
        match self.allowed(paced) {
            // Nothing wakes this task, so the connection stalls until the client gives up.
            0 if matches!(*self.fault.lock().unwrap(), Some(Fault::Stall(_))) => Poll::Pending,
            0 if !buf.is_empty() => {
                // With no time to linger, closing sends a reset.
                let _ = self.stream.set_zero_linger();
                Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()))
            }
            allowed => Pin::new(&mut self.stream).poll_write(cx, &buf[..allowed]),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
