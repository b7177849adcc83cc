#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_codec.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_store.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

// Head blocks per system call: hashed, then copied by the system while still in the cache.
constexpr std::size_t kBatch = 64;
// Before an fsync: the disk begins to work after so many bytes already.
constexpr std::int64_t kWritebackBytes = std::int64_t{8} << 20;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

Error refuse(std::string_view message) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = base::str_cat("cannot write a kv file: ", message)};
}

Status check_blocks(const KVFileContent& content, const PagedStore& shelves,
                    std::span<const std::vector<BlockId>> blocks) {
  if (blocks.size() != content.runs.size()) {
    return refuse(base::str_cat(content.runs.size(), " runs, but blocks for ", blocks.size()));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int32_t wanted = content.runs[i].num_blocks(content.geometry.block_tokens);
    if (blocks[i].size() != static_cast<std::size_t>(wanted)) {
      return refuse(base::str_cat("run ", i, " of ", content.runs[i].tokens.size(),
                                  " tokens needs ", wanted, " blocks, given are ",
                                  blocks[i].size()));
    }
    for (const BlockId id : blocks[i]) {
      if (id.value < 0 || id.value >= shelves.num_blocks()) {
        return refuse(base::str_cat("run ", i, " names block ", id.value, ", the shelves have ",
                                    shelves.num_blocks()));
      }
    }
  }
  return {};
}

// Writes the payload of one file, front to back, and fills in the header on the way.
class PayloadWriter {
 public:
  PayloadWriter(const NewFile& file, const PagedStore& shelves, KVFileHeader& header,
                std::optional<PlaneCodec> codec, bool sync)
      : file_(file),
        shelves_(shelves),
        header_(header),
        codec_(std::move(codec)),
        writeback_bytes_(sync ? kWritebackBytes : kNever),
        last_block_(static_cast<std::size_t>(shelves.geometry().head_block_bytes())) {}

  Status write_run(std::size_t index, const std::vector<BlockId>& blocks) {
    // Up to this run sizes are known, so its place is.
    at_ = header_.pieces[index].offset = place_payload(header_).offsets[index];
    piece_ = 0;
    const int kv_heads = shelves_.geometry().kv_heads;
    for (int row = 0; row < shelves_.geometry().layers * kv_heads; ++row) {
      QUIRE_TRY_STATUS(write_head(index, row / kv_heads, row % kv_heads, blocks));
    }
    return {};
  }

 private:
  Status write_head(std::size_t index, int layer, int head, const std::vector<BlockId>& blocks) {
    const auto block_tokens = static_cast<std::size_t>(shelves_.geometry().block_tokens);
    const auto tail = static_cast<int>(header_.content.runs[index].tokens.size() % block_tokens);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      auto block = shelves_.head_blocks(layer, head, blocks[i]);
      if (tail != 0 && i + 1 == blocks.size()) {
        shelves_.read_slots(layer, head, blocks[i], tail, last_block_);
        block = last_block_;
      }
      QUIRE_TRY_STATUS(add(header_.pieces[index], block));
    }
    return flush();
  }

  Status add(RunPieces& pieces, std::span<const std::byte> block) {
    pieces.checksums[piece_] = checksum(block);
    if (codec_) {
      const auto stored = codec_->encode(block);
      pieces.stored_bytes[piece_] = static_cast<std::uint32_t>(stored.size());
      packed_.insert(packed_.end(), stored.begin(), stored.end());
    } else {
      append_piece(block, batch_, used_);
    }
    ++piece_;
    return ++waiting_ == kBatch ? flush() : Status();
  }

  Status flush() {
    if (codec_) {
      append_piece(packed_, batch_, used_);
    }
    const auto pieces = std::span(batch_).first(used_);
    std::int64_t bytes = 0;
    for (const iovec& piece : pieces) {
      bytes += static_cast<std::int64_t>(piece.iov_len);
    }
    QUIRE_TRY_STATUS(write_at(file_.descriptor(), pieces, at_, file_.path()));
    at_ += bytes;
    unsynced_ += bytes;
    used_ = waiting_ = 0;
    packed_.clear();
    if (unsynced_ >= writeback_bytes_) {
      file_.start_writeback();
      unsynced_ = 0;
    }
    return {};
  }

  const NewFile& file_;
  const PagedStore& shelves_;
  KVFileHeader& header_;
  std::optional<PlaneCodec> codec_;
  std::int64_t writeback_bytes_;
  std::vector<std::byte> last_block_;  // the filled slots of a run's last block, then zeros
  std::vector<std::byte> packed_;      // compressed, not written yet
  std::array<iovec, kBatch> batch_{};
  std::size_t used_ = 0;     // of batch_
  std::size_t waiting_ = 0;  // head blocks not written yet
  std::size_t piece_ = 0;    // next head block of the run
  std::int64_t at_ = 0;
  std::int64_t unsynced_ = 0;
};

}  // namespace

Result<std::int64_t> write_kv_file(const Folder& folder, const std::string& name,
                                   const KVFileContent& content, const PagedStore& shelves,
                                   std::span<const std::vector<BlockId>> blocks,
                                   const WriteOptions& options) {
  if (const Status checked = check_content(content); !checked.ok()) {
    return refuse(checked.error().message);
  }
  const tensor::KVGeometry& geometry = content.geometry;
  if (const std::string differs = geometry_difference(geometry, shelves.geometry());
      !differs.empty()) {
    return refuse(base::str_cat("the shelves differ from its geometry: ", differs));
  }
  QUIRE_TRY_STATUS(check_blocks(content, shelves, blocks));
  KVFileHeader header = make_header(content, options.compress ? Codec::kPlanes : Codec::kRaw);
  if (header_size(header) > kMaxHeaderBytes) {
    return refuse(base::str_cat("its header needs ", header_size(header), " bytes, at most ",
                                kMaxHeaderBytes, "; save fewer tokens in a file"));
  }
  std::optional<PlaneCodec> codec;
  if (options.compress) {
    QUIRE_TRY(codec,
              PlaneCodec::create(static_cast<std::size_t>(geometry.head_block_bytes()),
                                 static_cast<std::size_t>(tensor::dtype_bytes(geometry.dtype))));
  }
  QUIRE_TRY(NewFile file, NewFile::create(folder, name));
  PayloadWriter writer(file, shelves, header, std::move(codec), options.sync);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    QUIRE_TRY_STATUS(writer.write_run(i, blocks[i]));
  }
  const std::int64_t file_bytes = place_payload(header).file_bytes;
  QUIRE_TRY_STATUS(write_front(FileKind::kKV, encode_header(header), file_bytes, file));
  QUIRE_TRY_STATUS(file.commit(options.sync));
  return file_bytes;
}

Status write_kv_file(const std::filesystem::path& path, const KVFileContent& content,
                     const PagedStore& shelves, std::span<const std::vector<BlockId>> blocks,
                     const WriteOptions& options) {
  if (!path.has_filename()) {
    return refuse(base::str_cat(path.string(), " names no file"));
  }
  QUIRE_TRY(const Folder folder, Folder::open(path.has_parent_path() ? path.parent_path() : "."));
  const auto written =
      write_kv_file(folder, path.filename().string(), content, shelves, blocks, options);
  return written.ok() ? Status() : Status(written.error());
}

}  // namespace quire::kv_store
