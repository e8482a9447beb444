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
use arrow::ipc::{
    Block, MessageHeader, MetadataVersion, Schema as IpcSchema, root_as_footer, root_as_message,
};
use bytes::Bytes;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::header::refuse_doubles;
use crate::engine::{bytes_in_words, too_little_memory};
use crate::error::{DAMAGED_HELP, Error, Result};

const MAGIC: &[u8] = b"ARROW1";

/// The bytes that end a file: the footer's length, then the magic bytes.
const TRAILER: u64 = 10;

/// The most bytes that a byte of a compressed buffer can become: the smallest block of zstd, four bytes, holds 128 KB.
const MAX_RATIO: u64 = 1 << 15;

/// Buffers begin at multiples of so many bytes.
const ALIGNMENT: u64 = 8;

/// The kinds of messages in a stream.
const IN_STREAM: [MessageHeader; 3] =
    [MessageHeader::Schema, MessageHeader::DictionaryBatch, MessageHeader::RecordBatch];

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
    } else if let Some(error) = of_another_format(&head) {
        Err(error)
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
        let (schema, version, blocks): (_, _, Vec<(Block, MessageHeader)>) = {
            let footer =
                root_as_footer(&footer).map_err(|_| damaged("a footer that cannot be parsed"))?;
            let schema = footer.schema().ok_or_else(|| damaged("a footer without a schema"))?;
            let (one, other) = (footer.dictionaries(), footer.recordBatches());
            let one = one.into_iter().flatten().map(|b| (*b, MessageHeader::DictionaryBatch));
            let other = other.into_iter().flatten().map(|b| (*b, MessageHeader::RecordBatch));
            (arrow_schema(schema)?, footer.version(), one.chain(other).collect())
        };
        for (block, kind) in blocks {
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
            self.check_message(&message[prefix..], body..end, &[kind], Some(version)).await?;
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
            self.check_message(&message, end..at, &IN_STREAM, None).await?;
        }
        if at < size && at + 4 > size {
            return Err(beyond());
        }
        schema.ok_or_else(|| damaged("a stream without a schema"))
    }

    /// Checks that no message follows the mark at `end`, where the reader stops: its rows would be left out.
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

    /// Checks that a message is of one of these kinds, and of the version of the file's footer; and the buffers of a batch,
    /// where a compressed one begins with its uncompressed length.
    async fn check_message(
        &self,
        message: &[u8],
        body: Range<u64>,
        kinds: &[MessageHeader],
        of_footer: Option<MetadataVersion>,
    ) -> Result<()> {
        let mut bytes = body.end - body.start;
        self.check_size(bytes)?;
        let buffers: Vec<Range<u64>> = {
            let message =
                root_as_message(message).map_err(|_| damaged("a message that cannot be parsed"))?;
            if !kinds.contains(&message.header_type()) {
                return Err(damaged("a message of another kind than its place is for"));
            }
            if let Some(of_footer) = of_footer {
                check_version(message.version(), of_footer)?;
            }
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
            let is_aligned =
                |range: &Range<u64>| (range.start - body.start).is_multiple_of(ALIGNMENT);
            if !ranges.iter().all(is_aligned) {
                return Err(damaged("a buffer that begins at no multiple of 8 bytes"));
            }
            if batch.compression().is_none() {
                return Ok(());
            }
            ranges
        };
        let buffers: Vec<Range<u64>> =
            buffers.into_iter().filter(|buffer| buffer.end - buffer.start >= 8).collect();
        let lengths: Vec<Range<u64>> =
            buffers.iter().map(|buffer| buffer.start..buffer.start + 8).collect();
        let lengths = self.store.get_ranges(&self.object.location, &lengths).await?;
        for (length, buffer) in lengths.iter().zip(buffers) {
            let length = length.first_chunk().map_or(-2, |bytes| i64::from_le_bytes(*bytes));
            // -1 marks a buffer that is stored uncompressed.
            let length = if length == -1 { 0 } else { length };
            let most = (buffer.end - buffer.start).saturating_mul(MAX_RATIO);
            match u64::try_from(length) {
                Ok(length) if length <= most => bytes = bytes.saturating_add(length),
                _ => return Err(damaged("a compressed buffer with an impossible length")),
            }
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
        return Err(Error::data("the endianness of the Arrow file is not that of this machine")
            .help("write it on a machine of the same endianness, or as Parquet"));
    }
    // Panics where a type or one of its parameters is unknown or absent.
    catch_unwind(AssertUnwindSafe(|| fb_to_schema(schema))).map_err(|panic| {
        let unread = Error::data("the schema of the Arrow file cannot be read").help(
            "it is damaged, or has a type that labelmill does not know: write it with other types",
        );
        Error::of_panic(&*panic, unread)
    })
}

/// Checks that a message is of the version in the file's footer, as Arrow's reader does.
fn check_version(of_message: MetadataVersion, of_footer: MetadataVersion) -> Result<()> {
    if [of_message, MetadataVersion::V1].contains(&of_footer) {
        return Ok(());
    }
    let found = format!("a batch of version {of_message:?} and a footer of {of_footer:?}");
    Err(Error::data("the Arrow file has two versions of the format").found(found).help(
        "write it with one version, as pyarrow does without `metadata_version`, or as Parquet",
    ))
}

/// The error of a file that begins as another format does.
fn of_another_format(head: &[u8]) -> Option<Error> {
    let formats: [(&[u8], _, _); 2] = [
        (b"PAR1", "a Parquet file", "give it a name that ends in `.parquet`"),
        (b"FEA1", "a Feather file of version 1", "write it as Feather of version 2, or as Parquet"),
    ];
    let (_, found, help) = formats.into_iter().find(|(magic, ..)| head.starts_with(magic))?;
    Some(Error::data("not an Arrow IPC file").found(found).help(help))
}

fn two_streams() -> Error {
    Error::data("the Arrow file holds more than one stream, or other bytes after the first")
        .help("write its batches as one stream, or each stream to a file of its own")
}

fn damaged(found: &str) -> Error {
    Error::data("not an Arrow IPC file").found(found).help(DAMAGED_HELP)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use datafusion::execution::memory_pool::UnboundedMemoryPool;
    use object_store::memory::InMemory;
    use object_store::path::Path;

    use super::*;

    fn batch() -> RecordBatch {
        let texts = Arc::new(StringArray::from(vec!["a long text ".repeat(20); 3])) as ArrayRef;
        RecordBatch::try_from_iter([("label", texts)]).unwrap()
    }

    fn file(compression: Option<CompressionType>) -> Vec<u8> {
        let (rows, options) = (batch(), IpcWriteOptions::default());
        let options = options.try_with_compression(compression).unwrap();
        let mut file =
            FileWriter::try_new_with_options(Vec::new(), &rows.schema(), options).unwrap();
        file.write(&rows).unwrap();
        file.into_inner().unwrap()
    }

    /// What is found to be wrong with these bytes; nothing if they can be read.
    fn found(bytes: &[u8]) -> String {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let (path, pool) = (Path::from("in.arrow"), UnboundedMemoryPool::default());
        let pool = Arc::new(pool) as Arc<dyn MemoryPool>;
        let check = async {
            store.put(&path, bytes.to_vec().into()).await?;
            checked_schema(&store, &store.head(&path).await?, &pool).await
        };
        futures::executor::block_on(check).map_or_else(|error| error.to_string(), |_| String::new())
    }

    /// What is found with one byte changed to `value`, at each position in turn where it was `was`.
    fn found_with(bytes: &[u8], was: u8, value: u8) -> String {
        let locations = (0..bytes.len()).filter(|at| bytes[*at] == was);
        let errors = locations.map(|at| {
            let mut changed = bytes.to_vec();
            changed[at] = value;
            found(&changed)
        });
        errors.collect()
    }

    #[test]
    fn messages_that_a_reader_would_skip_or_shift_are_damage() {
        let plain = file(None);
        assert_eq!(found(&plain), "");
        // The kind of the batch, 3, becomes none, and one that does not exist.
        for kind in [0, 9] {
            let errors = found_with(&plain, 3, kind);
            assert!(errors.contains("of another kind than its place is for"), "{errors}");
        }
        // The offset of the first buffer.
        let errors = found_with(&plain, 0, 1);
        assert!(errors.contains("begins at no multiple of 8 bytes"), "{errors}");
    }

    #[test]
    fn another_format_or_version_is_named() {
        for (magic, name) in [("PAR1", "a Parquet file"), ("FEA1", "Feather file of version 1")] {
            let error = found(format!("{magic} and more").as_bytes());
            assert!(error.contains(name) && !error.contains("damaged"), "{error}");
        }
        // pyarrow writes V4 in the messages, where asked, and V5 in the footer. 4 stands for V5.
        let errors = found_with(&file(None), 4, 3);
        let versions = "a batch of version V4 and a footer of V5";
        assert!(errors.contains(versions), "{errors}");
    }

    #[test]
    fn a_compressed_buffer_is_at_most_so_many_times_its_stored_bytes() {
        let zstd = file(Some(CompressionType::ZSTD));
        assert_eq!(found(&zstd), "");
        let frame = zstd.windows(4).position(|bytes| bytes == [0x28, 0xb5, 0x2f, 0xfd]).unwrap();
        for (length, is_possible) in
            [(1_i64 << 40, false), (-2, false), (-1, true), (1 << 10, true)]
        {
            let mut changed = zstd.clone();
            changed[frame - 8..frame].copy_from_slice(&length.to_le_bytes());
            let error = found(&changed);
            assert_eq!(error.is_empty(), is_possible, "{length}: {error}");
        }
    }

    #[test]
    fn bytes_that_begin_no_message_are_a_stream_cut_short() {
        let mut stream = StreamWriter::try_new(Vec::new(), &batch().schema()).unwrap();
        stream.write(&batch()).unwrap();
        let whole = stream.into_inner().unwrap();
        let open = &whole[..whole.len() - 8];
        assert_eq!(found(open), "", "the mark of the end may be absent");
        for n in 1..8 {
            let error = found(&whole[..open.len() + n]);
            assert!(error.contains("reaches beyond the file"), "{n}: {error}");
        }
    }
}
