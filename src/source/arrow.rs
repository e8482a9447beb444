//! Reads the schema of an Arrow IPC file; checks that the lengths in it stay within the file, and that its batches fit
//! into the session's memory.
//!
//! # Why
//! Arrow's reader allocates the length that a footer or a message states before it reads the bytes. Eight damaged or
//! malicious bytes could request more memory than there is, and a failed allocation ends the process. A batch is also
//! read whole, however large its writer made it.
//!
//! DataFusion's own inference of the schema tries a file that it cannot read as a file as a stream: it takes the first
//! letters of `ARROW1` for the length of a message, and writes zeros to 1.3 GB of memory.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::{Block, Schema as IpcSchema, root_as_footer, root_as_message};
use bytes::Bytes;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::header::refuse_doubles;
use crate::engine::{bytes_in_words, too_little_memory};
use crate::error::{DAMAGED_HELP, Error, Result};

const MAGIC: &[u8] = b"ARROW1";

/// The bytes that end a file: the footer's length, then the magic bytes.
const TRAILER: u64 = 10;

/// The most bytes of a buffer; a larger length is taken for damage.
const MAX_BYTES: i64 = 1 << 42;

/// Precedes a message since format 0.15; the message's length follows.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The schema of a file with a footer, or of a stream of messages, whose lengths are all checked; and whether it is a
/// stream.
///
/// # Errors
/// When there is no schema, a length reaches beyond the file, or a message needs more memory than the pool's limit.
pub(super) async fn checked_schema(
    store: &Arc<dyn ObjectStore>,
    object: &ObjectMeta,
    pool: &Arc<dyn MemoryPool>,
) -> Result<(Schema, bool)> {
    let messages = Messages { store, object, pool };
    let head = messages.bytes(0..object.size.min(8)).await?;
    if head.starts_with(MAGIC) {
        Ok((messages.schema_of_file().await?, false))
    } else {
        Ok((messages.schema_of_stream().await?, true))
    }
}

/// The messages of a file or a stream, each of which must fit into the pool.
struct Messages<'a> {
    store: &'a Arc<dyn ObjectStore>,
    object: &'a ObjectMeta,
    pool: &'a Arc<dyn MemoryPool>,
}

impl Messages<'_> {
    async fn bytes(&self, range: Range<u64>) -> Result<Bytes> {
        Ok(self.store.get_range(&self.object.location, range).await?)
    }

    async fn schema_of_file(&self) -> Result<Schema> {
        let size = self.object.size;
        let begin = size.checked_sub(TRAILER).ok_or_else(|| damaged("no footer"))?;
        let trailer = self.bytes(begin..size).await?;
        let length = trailer.first_chunk().map_or(-1, |bytes| i32::from_le_bytes(*bytes));
        let start = u64::try_from(length).ok().and_then(|length| begin.checked_sub(length));
        let start =
            start.filter(|_| trailer.ends_with(MAGIC)).ok_or_else(|| damaged("no footer"))?;
        let footer = self.bytes(start..begin).await?;
        let (schema, blocks): (_, Vec<Block>) = {
            let footer =
                root_as_footer(&footer).map_err(|_| damaged("a footer that cannot be parsed"))?;
            let schema = footer.schema().ok_or_else(|| damaged("a footer without a schema"))?;
            let (one, other) = (footer.dictionaries(), footer.recordBatches());
            let blocks = one.into_iter().flatten().chain(other.into_iter().flatten());
            (arrow_schema(schema)?, blocks.copied().collect())
        };
        for block in blocks {
            let beyond = || damaged("a block that reaches beyond the file");
            let part = |length: i64| u64::try_from(length).map_err(|_| beyond());
            let begin = part(block.offset())?;
            let body = begin.saturating_add(part(block.metaDataLength().into())?);
            let end = body.saturating_add(part(block.bodyLength())?);
            if block.metaDataLength() < 8 || end > size {
                return Err(beyond());
            }
            let message = self.bytes(begin..body).await?;
            let prefix = if message.starts_with(&CONTINUATION) { 8 } else { 4 };
            self.check_message(&message[prefix..], body..end).await?;
        }
        Ok(schema)
    }

    async fn schema_of_stream(&self) -> Result<Schema> {
        let mut schema = None;
        let size = self.object.size;
        let beyond = || damaged("a message that reaches beyond the file");
        let mut at = 0;
        while at + 4 <= size {
            let head = self.bytes(at..(at + 8).min(size)).await?;
            let prefix = if head.starts_with(&CONTINUATION) { 8 } else { 4 };
            let length = head.get(prefix - 4..).and_then(<[u8]>::first_chunk);
            let length = length.map_or(-1, |bytes| i32::from_le_bytes(*bytes));
            let begin = at + prefix as u64;
            if length == 0 {
                self.check_end(begin).await?;
                break;
            }
            let end = u64::try_from(length).ok().and_then(|length| begin.checked_add(length));
            let end = end.filter(|end| *end <= size).ok_or_else(beyond)?;
            let message = self.bytes(begin..end).await?;
            let body = {
                let message = root_as_message(&message)
                    .map_err(|_| damaged("a message that cannot be parsed"))?;
                match (message.header_as_schema(), &schema) {
                    (Some(found), None) => schema = Some(arrow_schema(found)?),
                    (None, Some(_)) => {}
                    (None, None) => {
                        return Err(damaged("a stream that does not begin with a schema"));
                    }
                    (Some(_), Some(_)) => return Err(two_streams()),
                }
                message.bodyLength()
            };
            let body = u64::try_from(body).ok().and_then(|body| end.checked_add(body));
            at = body.filter(|at| *at <= size).ok_or_else(beyond)?;
            self.check_message(&message, end..at).await?;
        }
        schema.ok_or_else(|| damaged("a stream without a schema"))
    }

    /// Checks that nothing follows the end of a stream: the reader would leave it out.
    async fn check_end(&self, end: u64) -> Result<()> {
        let size = self.object.size;
        let is_padding = |bytes: &Bytes| bytes.iter().all(|byte| *byte == 0);
        if end < size && !is_padding(&self.bytes(end..(end + 8).min(size)).await?) {
            return Err(two_streams());
        }
        Ok(())
    }

    /// Checks that a message of this many bytes fits into the pool.
    fn check_size(&self, bytes: u64) -> Result<()> {
        match self.pool.memory_limit() {
            MemoryLimit::Finite(limit) if bytes > limit as u64 => {
                let taken =
                    format!("the rows of one batch of the file take {}", bytes_in_words(bytes));
                Err(too_little_memory(self.pool.as_ref(), &taken, bytes, 0))
            }
            _ => Ok(()),
        }
    }

    /// Checks the buffers of a batch; a compressed buffer begins with its uncompressed length.
    async fn check_message(&self, message: &[u8], body: Range<u64>) -> Result<()> {
        let mut bytes = body.end - body.start;
        self.check_size(bytes)?;
        let buffers: Vec<Range<u64>> = {
            let message =
                root_as_message(message).map_err(|_| damaged("a message that cannot be parsed"))?;
            let dictionary = message.header_as_dictionary_batch().and_then(|d| d.data());
            let Some(batch) = message.header_as_record_batch().or(dictionary) else {
                return Ok(());
            };
            let ranges = batch.buffers().into_iter().flatten().map(|buffer| {
                let begin = u64::try_from(buffer.offset()).ok()?.checked_add(body.start)?;
                let end = u64::try_from(buffer.length()).ok()?.checked_add(begin)?;
                (end <= body.end).then_some(begin..end)
            });
            let ranges: Option<Vec<_>> = ranges.collect();
            let ranges = ranges.ok_or_else(|| damaged("a buffer that reaches beyond its batch"))?;
            if batch.compression().is_none() {
                return Ok(());
            }
            ranges
        };
        let lengths: Vec<Range<u64>> = buffers
            .into_iter()
            .filter(|buffer| buffer.end - buffer.start >= 8)
            .map(|buffer| buffer.start..buffer.start + 8)
            .collect();
        for length in self.store.get_ranges(&self.object.location, &lengths).await? {
            let length = length.first_chunk().map_or(-1, |bytes| i64::from_le_bytes(*bytes));
            // -1 marks a buffer that is stored uncompressed.
            if !(-1..=MAX_BYTES).contains(&length) {
                return Err(damaged("a compressed buffer with an impossible length"));
            }
            bytes = bytes.saturating_add(u64::try_from(length).unwrap_or_default());
        }
        self.check_size(bytes)
    }
}

/// The schema in Arrow's own types. Refuses duplicate column names: queries would find only one of the columns.
fn arrow_schema(schema: IpcSchema<'_>) -> Result<Schema> {
    let names = schema.fields().into_iter().flatten().map(|field| field.name());
    let names: Vec<String> = names.map(|name| name.unwrap_or_default().to_owned()).collect();
    refuse_doubles(&names)?;
    if !schema.endianness().equals_to_target_endianness() {
        return Err(Error::data(
            "the numbers of the Arrow file have another byte order than this machine",
        )
        .help("write it on a machine with the byte order of this one, or as Parquet"));
    }
    // Panics where a type or one of its parameters is unknown or absent.
    catch_unwind(AssertUnwindSafe(|| fb_to_schema(schema))).map_err(|panic| {
        let unread = Error::data("the schema of the Arrow file cannot be read").help(
            "it is damaged, or has a type that labelmill does not know: write it with other types",
        );
        Error::of_panic(&*panic, unread)
    })
}

fn two_streams() -> Error {
    Error::data("the Arrow file holds more than one stream")
        .help("write its batches as one stream, or each stream to a file of its own")
}

fn damaged(found: &str) -> Error {
    Error::data("not an Arrow IPC file").found(found).help(DAMAGED_HELP)
}
