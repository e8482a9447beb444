//! The pieces in which a place's large objects are uploaded.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::engine::parse_bytes;

/// The most pieces that S3 accepts in one upload.
const MAX_PIECES: usize = 10_000;

/// The piece size of a place's uploads, and the permits of pieces in flight, which its clones share.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    bytes: usize,
    pub(super) permits: Arc<Semaphore>,
}

impl Pieces {
    /// Pieces of this size, such as "8MiB", of which so many are in flight.
    pub(super) fn new(size: &str, in_flight: usize) -> Self {
        let bytes = parse_bytes(size).unwrap_or(usize::MAX);
        let in_flight = in_flight.clamp(1, Semaphore::MAX_PERMITS);
        Self { bytes, permits: Arc::new(Semaphore::new(in_flight)) }
    }

    /// The piece size for an object: larger than configured if there would be more than [`MAX_PIECES`].
    pub(super) fn bytes_of(&self, object: usize) -> usize {
        self.bytes.max(object.div_ceil(MAX_PIECES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreSpec;

    #[test]
    fn no_object_has_more_pieces_than_a_store_takes() {
        let StoreSpec { piece_size, pieces_in_flight, .. } = StoreSpec::default();
        let pieces = Pieces::new(&piece_size, pieces_in_flight);
        assert_eq!(pieces.bytes_of(10 << 30), 8 << 20);
        assert!((200_usize << 30).div_ceil(pieces.bytes_of(200 << 30)) <= MAX_PIECES);
    }
}
