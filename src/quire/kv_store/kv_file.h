// KV files: the KV of some runs of tokens, with its identity and its checksums. A saved sequence, a
// chunk and an object of the store have one format (docs/store-format.md). The payload has the
// layout of the paged pool, so reading is copying.
//
// Invariants:
//   1. A file is under its name whole or not at all: temporary name, fsync, rename, fsync of the
//      folder.
//   2. Equal input gives equal bytes: a file has no times, nothing random, and no bytes of slots
//      without a token.
//   3. Nothing of a file is believed before its checksum was compared, and no length before it was
//      compared with the size of the file. Memory is at most a small multiple of the header's
//      bytes.
//   4. Files are read by pread, never mapped: a file that is truncated meanwhile is an error, not
//      SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/kv/format.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::kv_store {

// Options of writing a file.
struct WriteOptions {
  bool sync = true;           // on the disk before the call returns; else when the system writes it
  Compression compress = {};  // head block by head block, where that is smaller
  // Writes an uncompressed payload past the page cache where the file system can. Writing then
  // takes less processor time, and the next reader waits for the disk.
  bool direct = false;
  // States of the content, as they lie in memory. Borrowed.
  std::span<const std::span<const std::byte>> states = {};
};

// Writes `content` and the KV of its runs. blocks[r] has the blocks of runs[r] in the pool,
// without the lost ones. They have the pool's format with the geometry of the run. Slots behind the
// last token of a run are written as zeros, since they may hold another user's KV. Fails with
// kInvalidArgument for content that contradicts itself or the pool. Fails with kIo, path and reason
// when the system refuses; an old file stays whole then. Reads the pool and changes nothing there.
// Cost: one pass over the payload.
[[nodiscard]] Status write_kv_file(const std::filesystem::path& path, const KVFileContent& content,
                                   const PagedPool& pool,
                                   std::span<const std::vector<BlockId>> blocks,
                                   const WriteOptions& options = {});

// Writes such a file inside an open folder. Returns the bytes of the file.
[[nodiscard]] Result<std::int64_t> write_kv_file(const Folder& folder, const std::string& name,
                                                 const KVFileContent& content,
                                                 const PagedPool& pool,
                                                 std::span<const std::vector<BlockId>> blocks,
                                                 const WriteOptions& options = {});

// A KV file open for reading. Move only. Several threads may call const functions at a time, with
// different destinations. The file may be replaced or removed meanwhile.
class KVFile {
 public:
  // Opens a file and checks everything but the payload. Fails with kNotFound, kIo, kCorrupt (the
  // message names the damage) or kUnsupported (later version, unknown codec).
  [[nodiscard]] static Result<KVFile> open(const std::filesystem::path& path);
  // Takes a file that is open already. `path` names it in messages.
  [[nodiscard]] static Result<KVFile> open(Descriptor file, const std::filesystem::path& path);
  // Takes a KV file that is a range of an open file.
  [[nodiscard]] static Result<KVFile> open(Descriptor file, const FileRange& range,
                                           const std::filesystem::path& path);

  [[nodiscard]] const KVFileContent& content() const { return header_.content; }
  [[nodiscard]] Codec codec() const { return header_.codec; }
  [[nodiscard]] std::int64_t file_bytes() const { return range_.bytes; }
  // Returns the bytes of the payload as in a paged pool. Compressed, the file has fewer.
  [[nodiscard]] std::int64_t payload_bytes() const;
  // Returns the bytes of the payload in the file.
  [[nodiscard]] std::int64_t stored_bytes() const;

  // Returns kIncompatible that names the difference, unless fingerprint and geometry are equal.
  // Leaves out runs with a type of their own.
  [[nodiscard]] Status check_fits(const base::KVFingerprint& fingerprint,
                                  const tensor::KVGeometry& geometry) const;

  // Reads one layer of blocks [first_block, first_block + to.size()) of a run into the pool and
  // compares its checksums. Fails with kCorrupt that names file, run, layer, head and block;
  // nothing that was read may be used then. Fails with kInvalidArgument for lost or missing blocks
  // of that layer,
  // and with kIncompatible for a pool that has no format of this geometry. Precondition: the blocks
  // have that format. Cost: about a memcpy when the file is cached.
  [[nodiscard]] Status read_layer(int run, int layer, std::int32_t first_block,
                                  std::span<const BlockId> to, PagedPool& pool) const;

  // Reads into memory as PagedPool::write_layer takes it: [kv_head][block] of head blocks, as many
  // as `to` has room for. Fails as above, and with kInvalidArgument unless `to` has whole blocks.
  [[nodiscard]] Status read_layer(int run, int layer, std::int32_t first_block,
                                  std::span<std::byte> to) const;

  // Compares the checksums of `blocks` blocks without a destination. Fails as above.
  [[nodiscard]] Status verify_layer(int run, int layer, std::int32_t first_block,
                                    std::int32_t blocks) const;
  // Compares all checksums of the payload, those of states too.
  [[nodiscard]] Status verify() const;

  // Returns kIncompatible that names the part, unless the file's states have exactly these parts.
  [[nodiscard]] Status check_states_fit(std::span<const tensor::StatePart> parts) const;
  // Reads state `index` of the content into memory, where its parts lie as `parts` says, and
  // compares its checksums. Fails with kCorrupt that names the part, also for numbers that are not
  // finite, and as check_states_fit().
  [[nodiscard]] Status read_state(std::size_t index, std::span<const tensor::StatePart> parts,
                                  std::span<std::byte> to) const;

 private:
  // Consecutive head blocks of one head in one layer of a run; lost blocks count.
  struct HeadBlockRef {
    int run = 0;
    int layer = 0;
    int head = 0;
    std::int32_t first_block = 0;
  };
  class Buffers;
  KVFile(Descriptor file, const FileRange& range, std::filesystem::path path, KVFileHeader header);
  [[nodiscard]] std::int32_t lost_in(int run, int layer) const;
  [[nodiscard]] std::int32_t num_blocks(int run) const;
  [[nodiscard]] std::size_t block_bytes_of(int run) const;
  [[nodiscard]] std::size_t head_block_index(const HeadBlockRef& first) const;
  // Returns where head block `index` of a run begins in the range, also for the index behind the
  // last.
  [[nodiscard]] std::int64_t head_block_offset(int run, std::size_t index) const;
  [[nodiscard]] Status read_head_blocks(const HeadBlockRef& from,
                                        std::span<const std::span<std::byte>> to,
                                        Buffers& buffers) const;
  // Reads `count` blocks of all heads of a layer from `from` on. Each stored head of a block goes
  // into the memory of `target(stored head, index)`. Checks a batch before the next one is read,
  // which may go to the same memory.
  template <class Target>
  [[nodiscard]] Status read_heads(HeadBlockRef from, std::size_t count, const Target& target,
                                  Buffers& buffers) const;
  // Reads `count` of these blocks for one head in its parts, from block `first` of the layer's.
  template <class Target>
  [[nodiscard]] Status read_whole_head(HeadBlockRef from, std::size_t first, std::size_t count,
                                       const Target& target, Buffers& buffers) const;
  // Returns kCorrupt that names the block `index` behind `from`, what is wrong, and how.
  [[nodiscard]] Status damaged(const HeadBlockRef& from, std::size_t index, const char* what,
                               const char* how) const;
  [[nodiscard]] Status check_request(const HeadBlockRef& from, std::size_t blocks) const;
  // Returns the pool's format with the geometry of a run.
  [[nodiscard]] Result<kv::FormatId> format_in(int run, std::span<const BlockId> to,
                                               const PagedPool& pool) const;
  [[nodiscard]] Error refused(const std::string& why) const;
  [[nodiscard]] Status read_part(std::size_t index, std::size_t part, std::int64_t at,
                                 std::span<std::byte> to) const;
  [[nodiscard]] Status verify_states() const;

  Descriptor file_;
  FileRange range_;  // range of the file, usually all of it
  std::filesystem::path path_;
  KVFileHeader header_;
  std::vector<std::vector<std::int64_t>> offsets_;  // [runs][head blocks + 1]; not of Codec::kRaw
};

// Blocks [first_block, first_block + to.size()) of a run, and the blocks that receive them.
struct BlockRange {
  int run = 0;
  std::int32_t first_block = 0;
  std::vector<BlockId> to;
  kv::FormatId format = {};       // format of these blocks
  std::int32_t without_part = 0;  // leading blocks of `to` without a window part

  // Returns a part of the range: `count` blocks from the one at `first` on.
  [[nodiscard]] BlockRange part(std::int32_t first, std::int32_t count) const;
};

// Reads a layer of the range into the pool as KVFile::read_layer does. In layers with a window it
// verifies what the file has of blocks without window part, and reads the others.
[[nodiscard]] Status read_layer(const KVFile& file, int layer, const BlockRange& blocks,
                                PagedPool& pool);

// A BlockRange with the file that has it.
struct KVFileRange {
  std::shared_ptr<const KVFile> file;
  BlockRange blocks;
  // Calls the function of KVFile.
  [[nodiscard]] Status read_layer(int layer, PagedPool& pool) const {
    return kv_store::read_layer(*file, layer, blocks, pool);
  }
  // Leaves out the blocks that have no KV in the file.
  [[nodiscard]] Status verify_layer(int layer) const;
};

}  // namespace quire::kv_store
