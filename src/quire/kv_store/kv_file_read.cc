
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/str.h"
#include "quire/kernels/kv_codes.h"
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
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {
namespace {

// Head blocks per system call: copied by the system, then hashed while still in the second-level
// cache.
constexpr std::size_t kMaxBatch = 128;
constexpr std::size_t kBatchBytes = std::size_t{256} << 10;

std::size_t batch_of(std::size_t block_bytes) {
  return std::clamp(kBatchBytes / block_bytes, std::size_t{1}, kMaxBatch);
}

}  // namespace

// Buffers that reading needs besides the destination.
class KVFile::Buffers {
 public:
  [[nodiscard]] static Result<Buffers> create(const KVFileHeader& header, int run) {
    Buffers buffers;
    buffers.geometry_ = header.content.geometry_of(static_cast<std::size_t>(run));
    if (header.codec != Codec::kRaw) {
      QUIRE_TRY(PlaneCodec codec, PlaneCodec::create(buffers.geometry_, header.codec));
      buffers.codec_ = std::make_unique<PlaneCodec>(std::move(codec));
    }
    return buffers;
  }
  [[nodiscard]] PlaneCodec& codec() { return *codec_; }
  // Returns whether the codes of a head of a layer, whose block is given in its parts, stand for
  // numbers, whoever wrote them.
  [[nodiscard]] bool holds_numbers(int layer, std::span<const std::span<std::byte>> parts) {
    if (!tensor::is_written_by_block(geometry_.format)) {
      return true;
    }
    const tensor::KVGeometry own = geometry_.of_layer(layer);
    std::span<const std::byte> block = parts.front();
    if (parts.size() > 1) {
      joined_.clear();
      for (const std::span<std::byte> part : parts) {
        joined_.insert(joined_.end(), part.begin(), part.end());
      }
      block = joined_;
    }
    return kernels::codes_are_numbers(
        own, block.first(static_cast<std::size_t>(own.head_block_bytes())));
  }
  // Returns room for `bytes` stored bytes, valid until the next call.
  [[nodiscard]] std::span<std::byte> stored(std::int64_t bytes) {
    stored_.resize(static_cast<std::size_t>(bytes));
    return stored_;
  }

 private:
  tensor::KVGeometry geometry_;
  std::unique_ptr<PlaneCodec> codec_;  // null: raw
  std::vector<std::byte> stored_;
  std::vector<std::byte> joined_;  // a head that is stored in parts
};

KVFile::KVFile(Descriptor file, const FileRange& range, std::filesystem::path path,
               KVFileHeader header)
    : file_(std::move(file)), range_(range), path_(std::move(path)), header_(std::move(header)) {
  if (header_.codec == Codec::kRaw) {
    return;
  }
  for (const RunHeadBlocks& head_blocks : header_.head_blocks) {
    std::vector<std::int64_t>& offsets = offsets_.emplace_back();
    offsets.reserve(head_blocks.stored_bytes.size() + 1);
    offsets.push_back(head_blocks.offset);
    for (const std::uint32_t bytes : head_blocks.stored_bytes) {
      offsets.push_back(offsets.back() + bytes);
    }
  }
}

Result<KVFile> KVFile::open(const std::filesystem::path& path) {
  QUIRE_TRY(Descriptor file, open_file(path));
  return open(std::move(file), path);
}

Result<KVFile> KVFile::open(Descriptor file, const std::filesystem::path& path) {
  QUIRE_TRY(const std::int64_t bytes, file_size(file, path));
  return open(std::move(file), {.bytes = bytes}, path);
}

Result<KVFile> KVFile::open(Descriptor file, const FileRange& range,
                            const std::filesystem::path& path) {
  QUIRE_TRY(const FileFront front, read_front(FileKind::kKV, file, range, path));
  auto header = parse_header(front.version, front.header, front.file_bytes);
  if (!header.ok()) {
    return {header.error().code, base::str_cat(path.string(), ": ", header.error().message)};
  }
  KVFile opened(std::move(file), range, path, std::move(header).value());
  auto end = static_cast<std::int64_t>(kPreambleBytes + front.header.size());
  for (std::size_t run = 0; run < opened.header_.head_blocks.size(); ++run) {
    const RunHeadBlocks& head_blocks = opened.header_.head_blocks[run];
    QUIRE_TRY_STATUS(
        check_padding(opened.file_, range.offset + end, range.offset + head_blocks.offset, path));
    end = opened.head_block_offset(static_cast<int>(run), head_blocks.checksums.size());
  }
  for (const StatePlace& place : opened.header_.state_places) {
    QUIRE_TRY_STATUS(
        check_padding(opened.file_, range.offset + end, range.offset + place.offset, path));
    end = place.offset + opened.content().states.bytes_of_one();
  }
  return opened;
}

std::int64_t KVFile::payload_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t run = 0; run < header_.head_blocks.size(); ++run) {
    bytes += static_cast<std::int64_t>(header_.head_blocks[run].checksums.size()) *
             content().head_block_bytes(run);
  }
  return bytes;
}

std::int64_t KVFile::stored_bytes() const {
  if (header_.codec == Codec::kRaw) {
    return payload_bytes();
  }
  std::int64_t bytes = 0;
  for (const RunHeadBlocks& head_blocks : header_.head_blocks) {
    bytes += std::accumulate(head_blocks.stored_bytes.begin(), head_blocks.stored_bytes.end(),
                             std::int64_t{0});
  }
  return bytes;
}

Status KVFile::check_fits(const base::KVFingerprint& fingerprint,
                          const tensor::KVGeometry& geometry) const {
  const std::string differs = geometry_difference(content().geometry, geometry);
  if (!differs.empty()) {
    return {ErrorCode::kIncompatible,
            base::str_cat(path_.string(), " does not fit the model: ", differs)};
  }
  if (!(content().fingerprint == fingerprint)) {
    return {ErrorCode::kIncompatible,
            base::str_cat(path_.string(),
                          " was made by another model: weights, rope, dtype or kernels differ")};
  }
  return {};
}

std::int32_t KVFile::lost_in(int run, int layer) const {
  return content().runs[static_cast<std::size_t>(run)].lost_in(content().geometry, layer);
}

std::int32_t KVFile::num_blocks(int run) const {
  return content().runs[static_cast<std::size_t>(run)].num_blocks(content().geometry.block_tokens);
}

std::size_t KVFile::block_bytes_of(int run) const {
  return static_cast<std::size_t>(content().head_block_bytes(static_cast<std::size_t>(run)));
}

std::size_t KVFile::head_block_index(const HeadBlockRef& first) const {
  const tensor::KVGeometry& geometry = content().geometry;
  const SavedRun& run = content().runs[static_cast<std::size_t>(first.run)];
  const std::int64_t row = std::int64_t{geometry.first_stored_head(first.layer)} + first.head;
  std::int64_t index = row * run.num_blocks_with_kv(geometry.block_tokens);
  for (int layer = 0; run.lost_parts > 0 && layer <= first.layer; ++layer) {
    const int rows = layer < first.layer ? geometry.stored_heads(layer) : first.head;
    index -= std::int64_t{rows} * (run.lost_in(geometry, layer) - run.lost_blocks);
  }
  return static_cast<std::size_t>(index + first.first_block - run.lost_in(geometry, first.layer));
}

std::int64_t KVFile::head_block_offset(int run, std::size_t index) const {
  const auto at = static_cast<std::size_t>(run);
  if (header_.codec != Codec::kRaw) {
    return offsets_[at][index];
  }
  return header_.head_blocks[at].offset +
         static_cast<std::int64_t>(index) * content().head_block_bytes(at);
}

Status KVFile::read_head_blocks(const HeadBlockRef& from, std::span<const std::span<std::byte>> to,
                                Buffers& buffers) const {
  const std::size_t first = head_block_index(from);
  const std::int64_t offset = head_block_offset(from.run, first);
  const std::int64_t at = range_.offset + offset;
  std::span<std::byte> stored;
  if (header_.codec != Codec::kRaw) {
    stored = buffers.stored(head_block_offset(from.run, first + to.size()) - offset);
    QUIRE_TRY_STATUS(read_at(file_, stored, at, path_));
  } else {
    std::array<iovec, kMaxBatch> vectors{};
    std::size_t used = 0;
    std::for_each(to.begin(), to.end(),
                  [&](std::span<std::byte> block) { append_buffer(block, vectors, used); });
    QUIRE_TRY_STATUS(read_at(file_, std::span(vectors).first(used), at, path_));
  }
  const RunHeadBlocks& head_blocks = header_.head_blocks[static_cast<std::size_t>(from.run)];
  for (std::size_t i = 0; i < to.size(); ++i) {
    bool good = true;
    if (header_.codec != Codec::kRaw) {
      const std::size_t bytes = head_blocks.stored_bytes[first + i];
      good = buffers.codec().decode(stored.first(bytes), to[i]).ok();
      stored = stored.subspan(bytes);
    }
    if (!good || checksum(to[i]) != head_blocks.checksums[first + i]) {
      return damaged(from, i, "the checksum", " is wrong");
    }
  }
  return {};
}

Status KVFile::damaged(const HeadBlockRef& from, std::size_t index, const char* what,
                       const char* how) const {
  return {ErrorCode::kCorrupt,
          base::str_cat(path_.string(), ": ", what, " of run ", from.run, ", layer ", from.layer,
                        ", head ", from.head, ", block ",
                        from.first_block + static_cast<std::int32_t>(index), how,
                        "; the file is damaged")};
}

Error KVFile::refused(const std::string& why) const {
  return {.code = ErrorCode::kInvalidArgument,
          .message = base::str_cat("cannot read from ", path_.string(), ": ", why)};
}

Status KVFile::check_request(const HeadBlockRef& from, std::size_t blocks) const {
  if (from.run < 0 || static_cast<std::size_t>(from.run) >= content().runs.size()) {
    return refused(base::str_cat("run ", from.run, " of ", content().runs.size()));
  }
  if (from.layer < 0 || from.layer >= content().geometry.layers) {
    return refused(base::str_cat("layer ", from.layer, " of ", content().geometry.layers));
  }
  const std::int32_t lost = lost_in(from.run, from.layer), end = num_blocks(from.run);
  const auto room = static_cast<std::int64_t>(end) - from.first_block;
  if (from.first_block < lost || room < 0 || blocks > static_cast<std::size_t>(room)) {
    const std::string without = lost == 0 ? "" : base::str_cat(", the first ", lost, " without KV");
    return refused(base::str_cat(blocks, " blocks from block ", from.first_block,
                                 " on, the run has ", end, without));
  }
  return {};
}

Result<kv::FormatId> KVFile::format_in(int run, std::span<const BlockId> to,
                                       const PagedPool& pool) const {
  const tensor::KVGeometry geometry = content().geometry_of(static_cast<std::size_t>(run));
  const auto format = pool.find_format(geometry);
  if (!format) {
    return {ErrorCode::kIncompatible,
            base::str_cat(path_.string(), " does not fit the paged pool: ",
                          geometry_difference(geometry, pool.geometry()))};
  }
  for (const BlockId id : to) {
    if (id.value < 0 || id.value >= pool.num_blocks(*format)) {
      return refused(base::str_cat("block ", id.value, " of ", pool.num_blocks(*format),
                                   " in the paged pool"));
    }
  }
  return *format;
}

template <class Target>
Status KVFile::read_heads(HeadBlockRef from, std::size_t count, const Target& target,
                          Buffers& buffers) const {
  const int parts = content().geometry.stored_per_head(from.layer);
  const std::size_t most = std::max(
      batch_of(block_bytes_of(from.run)) / static_cast<std::size_t>(parts), std::size_t{1});
  const std::int32_t first_block = from.first_block;
  for (from.head = 0; from.head < content().geometry.stored_heads(from.layer); from.head += parts) {
    for (std::size_t done = 0; done < count; done += most) {
      from.first_block = first_block + static_cast<std::int32_t>(done);
      QUIRE_TRY_STATUS(read_whole_head(from, done, std::min(most, count - done), target, buffers));
    }
  }
  return {};
}

template <class Target>
Status KVFile::read_whole_head(HeadBlockRef from, std::size_t first, std::size_t count,
                               const Target& target, Buffers& buffers) const {
  std::vector<std::span<std::byte>> batch(count);
  std::vector<std::span<std::byte>> whole(
      static_cast<std::size_t>(content().geometry.stored_per_head(from.layer)));
  const int head = from.head;
  for (std::size_t part = 0; part < whole.size(); ++part) {
    from.head = head + static_cast<int>(part);
    for (std::size_t i = 0; i < count; ++i) {
      batch[i] = target(from.head, first + i);
    }
    QUIRE_TRY_STATUS(read_head_blocks(from, batch, buffers));
  }
  from.head = head;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t part = 0; part < whole.size(); ++part) {
      whole[part] = target(head + static_cast<int>(part), first + i);
    }
    if (!buffers.holds_numbers(from.layer, whole)) {
      return damaged(from, i, "a code or a scale", " is no number");
    }
  }
  return {};
}

Status KVFile::read_layer(int run, int layer, std::int32_t first_block, std::span<const BlockId> to,
                          PagedPool& pool) const {
  HeadBlockRef from{.run = run, .layer = layer, .first_block = first_block};
  QUIRE_TRY_STATUS(check_request(from, to.size()));
  QUIRE_TRY(const kv::FormatId format, format_in(run, to, pool));
  QUIRE_TRY(Buffers buffers, Buffers::create(header_, run));
  const auto target = [&](int head, std::size_t i) {
    return pool.head_blocks(layer, head, to[i], 1, format);
  };
  return read_heads(from, to.size(), target, buffers);
}

Status KVFile::read_layer(int run, int layer, std::int32_t first_block,
                          std::span<std::byte> to) const {
  const tensor::KVGeometry& geometry = content().geometry;
  HeadBlockRef from{.run = run, .layer = layer, .first_block = first_block};
  QUIRE_TRY_STATUS(check_request(from, 0));
  const std::size_t block_bytes = block_bytes_of(run);
  const auto heads = static_cast<std::size_t>(geometry.stored_heads(layer));
  const auto blocks = to.size() / block_bytes / heads;
  if (blocks * block_bytes * heads != to.size()) {
    return refused(base::str_cat(to.size(), " bytes are no number of whole blocks"));
  }
  QUIRE_TRY_STATUS(check_request(from, blocks));
  QUIRE_TRY(Buffers buffers, Buffers::create(header_, run));
  const auto target = [&](int head, std::size_t i) {
    return to.subspan((static_cast<std::size_t>(head) * blocks + i) * block_bytes, block_bytes);
  };
  return read_heads(from, blocks, target, buffers);
}

BlockRange BlockRange::part(std::int32_t first, std::int32_t count) const {
  const auto blocks =
      std::span(to).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  return {.run = run,
          .first_block = first_block + first,
          .to = {blocks.begin(), blocks.end()},
          .format = format,
          .without_part = std::clamp(without_part - first, 0, count)};
}

Status read_layer(const KVFile& file, int layer, const BlockRange& blocks, PagedPool& pool) {
  const KVFileContent& content = file.content();
  const std::int32_t left_out = content.geometry.window_of(layer) > 0 ? blocks.without_part : 0;
  if (left_out > 0) {
    const KVFileRange passed{.file = {std::shared_ptr<const KVFile>(), &file},
                             .blocks = blocks.part(0, left_out)};
    QUIRE_TRY_STATUS(passed.verify_layer(layer));
  }
  if (left_out == std::ssize(blocks.to)) {
    return {};
  }
  return file.read_layer(blocks.run, layer, blocks.first_block + left_out,
                         std::span(blocks.to).subspan(static_cast<std::size_t>(left_out)), pool);
}

Status KVFileRange::verify_layer(int layer) const {
  const KVFileContent& content = file->content();
  const std::int32_t lost =
      content.runs[static_cast<std::size_t>(blocks.run)].lost_in(content.geometry, layer);
  const auto count = static_cast<std::int32_t>(blocks.to.size());
  const std::int32_t left_out = std::clamp(lost - blocks.first_block, 0, count);
  return left_out == count ? Status()
                           : file->verify_layer(blocks.run, layer, blocks.first_block + left_out,
                                                count - left_out);
}

Status KVFile::verify_layer(int run, int layer, std::int32_t first_block,
                            std::int32_t blocks) const {
  const auto count = static_cast<std::size_t>(blocks);
  HeadBlockRef from{.run = run, .layer = layer, .first_block = first_block};
  QUIRE_TRY_STATUS(check_request(from, count));
  if (count == 0) {
    return {};  // a hostile file may have any number of runs without KV
  }
  QUIRE_TRY(Buffers buffers, Buffers::create(header_, run));
  const std::size_t block_bytes = block_bytes_of(run);
  // No more than the run needs: a hostile file names no more blocks than it pays for.
  const std::size_t at_a_time = std::min(batch_of(block_bytes), count);
  const auto parts = static_cast<std::size_t>(content().geometry.stored_per_head(layer));
  std::vector<std::byte> scratch(block_bytes * at_a_time * parts);
  const auto target = [&](int head, std::size_t i) {
    const std::size_t part = static_cast<std::size_t>(head) % parts;
    return std::span(scratch).subspan((part * at_a_time + i % at_a_time) * block_bytes,
                                      block_bytes);
  };
  return read_heads(from, count, target, buffers);
}

Status KVFile::verify() const {
  for (int run = 0; run < std::ssize(content().runs); ++run) {
    for (int layer = 0; layer < content().geometry.layers; ++layer) {
      const std::int32_t lost = lost_in(run, layer);
      QUIRE_TRY_STATUS(verify_layer(run, layer, lost, num_blocks(run) - lost));
    }
  }
  return verify_states();
}

Status KVFile::check_states_fit(std::span<const tensor::StatePart> parts) const {
  if (content().states.at.empty() && !parts.empty()) {
    return {ErrorCode::kIncompatible,
            base::str_cat(path_.string(), " has no states, which the model's layers carry: it ",
                          "lacks the ", part_name(parts.front()))};
  }
  const std::string differs = parts_difference(content().states.parts, parts);
  return differs.empty()
             ? Status()
             : Status(ErrorCode::kIncompatible,
                      base::str_cat(path_.string(), " does not fit the model: ", differs));
}

// Reads a part of a state, which begins at `at` of the file.
Status KVFile::read_part(std::size_t index, std::size_t part, std::int64_t at,
                         std::span<std::byte> to) const {
  QUIRE_TRY_STATUS(read_at(file_, to, range_.offset + at, path_));
  const auto damaged = [&](const char* what, const char* how) {
    return Status(ErrorCode::kCorrupt, base::str_cat(path_.string(), ": ", what, " of the ",
                                                     part_name(content().states.parts[part]),
                                                     " behind ", content().states.at[index].tokens,
                                                     " tokens", how, "; the file is damaged"));
  };
  if (checksum(to) != header_.state_places[index].checksums[part]) {
    return damaged("the checksum", " is wrong");
  }
  return all_finite(to) ? Status() : damaged("a number", " is not finite");
}

Status KVFile::read_state(std::size_t index, std::span<const tensor::StatePart> parts,
                          std::span<std::byte> to) const {
  QUIRE_TRY_STATUS(check_states_fit(parts));
  if (index >= content().states.at.size()) {
    return refused(base::str_cat("state ", index, " of ", content().states.at.size()));
  }
  std::int64_t at = header_.state_places[index].offset;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    QUIRE_TRY_STATUS(read_part(index, i, at, part_of(parts[i], to)));
    at += parts[i].bytes;
  }
  return {};
}

Status KVFile::verify_states() const {
  std::vector<std::byte> scratch;
  for (std::size_t index = 0; index < content().states.at.size(); ++index) {
    std::int64_t at = header_.state_places[index].offset;
    for (std::size_t i = 0; i < content().states.parts.size(); ++i) {
      const std::int64_t bytes = content().states.parts[i].bytes;
      scratch.resize(static_cast<std::size_t>(bytes));
      QUIRE_TRY_STATUS(read_part(index, i, at, scratch));
      at += bytes;
    }
  }
  return {};
}

}  // namespace quire::kv_store
