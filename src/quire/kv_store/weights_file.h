// Weights files (docs/store-format.md): the weights of a model as they lie packed in memory, to be
// mapped by a later start. Header and parts are checked before they are believed; a file is written
// once, under a temporary name, and never changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/packed_part.h"
#include "quire/kv_store/file_io.h"
#include "quire/result.h"

namespace quire::kv_store {

// A file of the model that was packed, as it was then.
struct SourceFile {
  std::string path;  // absolute
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  // nanoseconds since 1970
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

struct WeightsContent {
  std::string key;     // 64 hexadecimal digits: what was packed, and how; names the file
  std::string digest;  // 64 hexadecimal digits: of the packed weights; the caller's
  std::string model;   // absolute path, for people
  std::vector<SourceFile> sources;
  std::vector<kernels::PackedPart> parts;  // in an order that follows from the key
};

// A part and where it is.
struct StoredPart {
  kernels::PackedPart part;  // without bytes
  std::int64_t offset = 0;   // in the file, kPayloadAlignment
  std::vector<std::uint64_t>
      checksums;  // checksums of each slice of kWeightSliceBytes, the last one shorter
};
inline constexpr std::size_t kWeightSliceBytes = std::size_t{4} << 20;

// All of a weights file but its payload.
struct WeightsHeader {
  WeightsContent content;  // without parts
  std::vector<StoredPart> parts;
  std::int64_t file_bytes = 0;
};

// Writes the header as bytes. The next function reads them back: every count, shape, length and
// offset is compared with `file_bytes` before it is believed. kCorrupt for what contradicts itself,
// kUnsupported for another kernels::kPackingVersion or an unknown format. Messages do not name the
// file.
[[nodiscard]] std::vector<std::byte> encode_weights_header(const WeightsHeader& header);
[[nodiscard]] Result<WeightsHeader> parse_weights_header(std::span<const std::byte> bytes,
                                                         std::int64_t file_bytes);

// An open weights file. Move only; any thread may read it.
class WeightsFile {
 public:
  // Maps the file of `key` in the folder. Everything is checked but the parts: none of their
  // checksums is compared yet. kNotFound, kCorrupt, kUnsupported, kIo naming the file: to a caller
  // that loads a model, each of them is a miss.
  [[nodiscard]] static Result<WeightsFile> open(const Folder& folder, const std::string& key);
  // Opens a file that is open already; `path` is for messages.
  [[nodiscard]] static Result<WeightsFile> open(const Descriptor& file,
                                                const std::filesystem::path& path);

  // Returns the content. Its parts' bytes are those of the mapping.
  [[nodiscard]] const WeightsContent& content() const { return content_; }
  [[nodiscard]] std::int64_t file_bytes() const { return std::ssize(mapping_.bytes()); }
  // Compares every checksum, on all threads of the pool: one pass over the file, as fast as the
  // memory is. kCorrupt naming file and place.
  [[nodiscard]] Status verify(device::ThreadPool& pool) const;
  // Gives away the mapping that the parts lie in, to a caller that keeps them.
  [[nodiscard]] base::MappedFile take_mapping() && { return std::move(mapping_); }

 private:
  base::MappedFile mapping_;
  WeightsContent content_;
  std::vector<StoredPart> parts_;
};

// Writes the file of content.key, whole or not at all; replaces one that is there. Returns its
// bytes. Cost: a pass over the parts for their checksums, writing, and waiting for the disk.
[[nodiscard]] Result<std::int64_t> write_weights_file(const Folder& folder,
                                                      const WeightsContent& content,
                                                      device::ThreadPool& pool);

}  // namespace quire::kv_store
