#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/format.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_codec.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

// Head blocks per system call: hashed, then copied by the system while still in the cache.
constexpr std::int64_t kBatch = 64;
// Bytes of one write past the page cache. Nothing is copied there, so that few large calls are
// cheapest.
constexpr std::int64_t kDirectBytes = std::int64_t{8} << 20;
constexpr std::size_t kMostBuffers = 1024;  // buffers that the system takes at a time
// Before an fsync: the disk begins to work after so many bytes already.
constexpr std::int64_t kWritebackBytes = std::int64_t{8} << 20;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

Error refuse_file(std::string_view message) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = base::str_cat("cannot write a kv file: ", message)};
}

Status check_blocks(const KVFileContent& content, const PagedPool& pool,
                    std::span<const std::vector<BlockId>> blocks) {
  if (blocks.size() != content.runs.size()) {
    return refuse_file(base::str_cat(content.runs.size(), " runs, but blocks for ", blocks.size()));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int32_t wanted = content.runs[i].num_blocks_with_kv(content.geometry.block_tokens);
    if (blocks[i].size() != static_cast<std::size_t>(wanted)) {
      return refuse_file(base::str_cat("run ", i, " of ", content.runs[i].tokens.size(),
                                       " tokens needs ", wanted, " blocks, given are ",
                                       blocks[i].size()));
    }
    const tensor::KVGeometry geometry = content.geometry_of(i);
    const auto format = pool.find_format(geometry);
    if (!format) {
      return refuse_file(base::str_cat("the paged pool differs from the geometry of run ", i, ": ",
                                       geometry_difference(geometry, pool.geometry())));
    }
    for (const BlockId id : blocks[i]) {
      if (id.value < 0 || id.value >= pool.num_blocks(*format)) {
        return refuse_file(base::str_cat("run ", i, " names block ", id.value,
                                         ", the paged pool has ", pool.num_blocks(*format)));
      }
    }
  }
  return {};
}

// Writes the payload of one file, front to back, and fills in the header on the way.
class PayloadWriter {
 public:
  PayloadWriter(const NewFile& file, const PagedPool& pool, KVFileHeader& header,
                const WriteOptions& options)
      : file_(file),
        pool_(pool),
        header_(header),
        batch_bytes_(options.direct ? kDirectBytes : kBatch * pool.geometry().head_block_bytes()),
        writeback_bytes_(options.sync && !options.direct ? kWritebackBytes : kNever),
        batch_(kMostBuffers) {
    file_.set_direct(options.direct && header.codec == Codec::kRaw);
  }

  Status write_run(std::size_t index, const std::vector<BlockId>& blocks) {
    // Up to this run sizes are known, so its place is.
    at_ = header_.head_blocks[index].offset = place_payload(header_).offsets[index];
    head_block_ = 0;
    QUIRE_TRY_STATUS(begin_format(header_.content.geometry_of(index)));
    const tensor::KVGeometry& geometry = pool_.geometry(format_);
    const int rows = geometry.all_stored_heads();
    const auto tokens = static_cast<std::int64_t>(header_.content.runs[index].tokens.size());
    const auto tail = static_cast<int>(tokens % geometry.block_tokens);
    last_blocks_.resize(tail == 0 ? 0 : page_and(rows * geometry.head_block_bytes()));
    for (int layer = 0; layer < geometry.layers; ++layer) {
      for (int head = 0; head < geometry.stored_heads(layer); ++head) {
        const auto lost = static_cast<std::size_t>(
            header_.content.runs[index].lost_in(header_.content.geometry, layer) -
            header_.content.runs[index].lost_blocks);
        QUIRE_TRY_STATUS(write_head(header_.head_blocks[index], {layer, head}, tail,
                                    std::span(blocks).subspan(lost)));
      }
    }
    return flush();
  }

  // Writes a state, which lies in memory as the parts of the content say.
  Status write_state(std::size_t index, std::span<const std::byte> state) {
    StatePlace& place = header_.state_places[index];
    at_ = place.offset = place_payload(header_).state_offsets[index];
    const std::vector<tensor::StatePart>& parts = header_.content.states.parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::span<const std::byte> bytes = part_of(parts[i], state);
      place.checksums[i] = checksum(bytes);
      append_buffer(bytes, batch_, used_);
      QUIRE_TRY_STATUS(used_ == batch_.size() ? flush() : Status());
    }
    return flush();
  }

  // Ends the direct writes: everything else of the file goes through the page cache.
  void end() { file_.set_direct(false); }

 private:
  // Returns the bytes of room that holds `bytes` from the begin of a page on.
  static std::size_t page_and(std::int64_t bytes) {
    return static_cast<std::size_t>(bytes + kPayloadAlignment);
  }

  // Prepares for blocks of a geometry that the pool has.
  Status begin_format(const tensor::KVGeometry& geometry) {
    const kv::FormatId format = pool_.find_format(geometry).value_or(kv::kOwnFormat);
    if (header_.codec != Codec::kRaw && (!codec_ || format != format_)) {
      QUIRE_TRY(codec_, PlaneCodec::create(geometry, header_.codec));
    }
    format_ = format;
    return {};
  }

  struct Row {
    int layer = 0;
    int head = 0;
  };
  // Returns the filled slots of a row's last block, then zeros. Stays until the run is written.
  std::span<const std::byte> last_block(const Row& row, BlockId block, int tail) {
    const auto bytes = static_cast<std::size_t>(pool_.geometry(format_).head_block_bytes());
    const auto address = reinterpret_cast<std::uintptr_t>(last_blocks_.data());
    const auto aligned = round_up_to_page(static_cast<std::int64_t>(address));
    const auto skipped = static_cast<std::size_t>(aligned) - address;
    const int number = pool_.geometry().first_stored_head(row.layer) + row.head;
    const auto to =
        std::span(last_blocks_).subspan(skipped + static_cast<std::size_t>(number) * bytes, bytes);
    pool_.read_slots(row.layer, row.head, block, tail, to, format_);
    return to;
  }

  Status write_head(RunHeadBlocks& head_blocks, const Row& row, int tail,
                    std::span<const BlockId> blocks) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const bool cut = tail != 0 && i + 1 == blocks.size();
      QUIRE_TRY_STATUS(
          add(head_blocks, cut ? last_block(row, blocks[i], tail)
                               : pool_.head_blocks(row.layer, row.head, blocks[i], 1, format_)));
    }
    return {};
  }

  Status add(RunHeadBlocks& head_blocks, std::span<const std::byte> block) {
    head_blocks.checksums[head_block_] = checksum(block);
    if (codec_) {
      const auto stored = codec_->encode(block);
      head_blocks.stored_bytes[head_block_] = static_cast<std::uint32_t>(stored.size());
      packed_.insert(packed_.end(), stored.begin(), stored.end());
    } else {
      append_buffer(block, batch_, used_);
    }
    ++head_block_;
    waiting_ += static_cast<std::int64_t>(block.size());
    return waiting_ >= batch_bytes_ || used_ == batch_.size() ? flush() : Status();
  }

  Status flush() {
    if (!packed_.empty()) {
      append_buffer(packed_, batch_, used_);
    }
    const auto buffers = std::span(batch_).first(used_);
    std::int64_t bytes = 0;
    for (const iovec& buffer : buffers) {
      bytes += static_cast<std::int64_t>(buffer.iov_len);
    }
    QUIRE_TRY_STATUS(file_.write(buffers, at_));
    at_ += bytes;
    unsynced_ += bytes;
    used_ = 0;
    waiting_ = 0;
    packed_.clear();
    if (unsynced_ >= writeback_bytes_) {
      file_.start_writeback();
      unsynced_ = 0;
    }
    return {};
  }

  const NewFile& file_;
  const PagedPool& pool_;
  KVFileHeader& header_;
  kv::FormatId format_;              // format of the run
  std::optional<PlaneCodec> codec_;  // codec of its blocks; absent: raw
  std::int64_t batch_bytes_;
  std::int64_t writeback_bytes_;
  std::vector<std::byte> last_blocks_;  // last blocks of the run's rows, where they are not filled
  std::vector<std::byte> packed_;       // compressed, not written yet
  std::vector<iovec> batch_;
  std::size_t used_ = 0;        // used buffers of batch_
  std::int64_t waiting_ = 0;    // bytes of head blocks not written yet
  std::size_t head_block_ = 0;  // next head block of the run
  std::int64_t at_ = 0;
  std::int64_t unsynced_ = 0;
};

Codec codec_of(Compression compress) {
  switch (compress.codec()) {
    case Compression::kZstd:
      return Codec::kPlanes;
    case Compression::kLz4:
      return Codec::kLz4;
    default:
      return Codec::kRaw;
  }
}

}  // namespace

Result<std::int64_t> write_kv_file(const Folder& folder, const std::string& name,
                                   const KVFileContent& content, const PagedPool& pool,
                                   std::span<const std::vector<BlockId>> blocks,
                                   const WriteOptions& options) {
  if (const Status checked = check_content(content); !checked.ok()) {
    return refuse_file(checked.error().message);
  }
  if (!pool.find_format(content.geometry)) {
    return refuse_file(base::str_cat("the paged pool differs from its geometry: ",
                                     geometry_difference(content.geometry, pool.geometry())));
  }
  QUIRE_TRY_STATUS(check_blocks(content, pool, blocks));
  if (options.states.size() != content.states.at.size()) {
    return refuse_file(
        base::str_cat(content.states.at.size(), " states, given are ", options.states.size()));
  }
  KVFileHeader header = make_header(content, codec_of(options.compress));
  if (header_size(header) > kMaxHeaderBytes) {
    return refuse_file(base::str_cat("its header needs ", header_size(header), " bytes, at most ",
                                     kMaxHeaderBytes, "; save fewer tokens in a file"));
  }
  QUIRE_TRY(NewFile file, NewFile::create(folder, name));
  PayloadWriter writer(file, pool, header, options);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    QUIRE_TRY_STATUS(writer.write_run(i, blocks[i]));
  }
  writer.end();
  for (std::size_t i = 0; i < options.states.size(); ++i) {
    QUIRE_TRY_STATUS(writer.write_state(i, options.states[i]));
  }
  const std::int64_t file_bytes = place_payload(header).file_bytes;
  QUIRE_TRY_STATUS(
      write_front(FileKind::kKV, encode_header(header), file_bytes, file, version_of(content)));
  QUIRE_TRY_STATUS(file.commit(options.sync));
  return file_bytes;
}

Status write_kv_file(const std::filesystem::path& path, const KVFileContent& content,
                     const PagedPool& pool, std::span<const std::vector<BlockId>> blocks,
                     const WriteOptions& options) {
  QUIRE_TRY(const FilePlace place, place_of(path));
  const auto written = write_kv_file(place.folder, place.name, content, pool, blocks, options);
  return written.ok() ? Status() : Status(written.error());
}

}  // namespace quire::kv_store
