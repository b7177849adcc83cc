#include "quire/kv_store/weights_file.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/base/str.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kv_store/byte_codec.h"
#include "quire/kv_store/corrupt.h"
#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/store_layout.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using kernels::PackedPart;

constexpr std::uint32_t kVectorCode = 0xff;  // in place of a WeightFormat
// Asked for before they are read: threads that wait for a few pages at a time get half of what a
// disk can give.
constexpr std::size_t kAheadBytes = std::size_t{32} << 20;
constexpr std::size_t kSourceBytes = 4 + 8 + 8;
constexpr std::size_t kWeightBytes = 4 + 8 + 8 + 8;

std::size_t slices_of(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + kWeightSliceBytes - 1) / kWeightSliceBytes;
}

// Returns slice `index` of the bytes of a part.
std::span<const std::byte> slice_of(const PackedPart& part, std::size_t index) {
  const std::size_t first = index * kWeightSliceBytes;
  return part.bytes.subspan(first, std::min(kWeightSliceBytes, part.bytes.size() - first));
}

// Calls visit(part, slice, bytes) for every slice of every part, on all threads of the pool.
template <class Visit>
void for_each_slice(std::span<const PackedPart> parts, device::ThreadPool& pool, Visit visit) {
  struct Slice {
    std::size_t part, index;
  };
  std::vector<Slice> all;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t slice = 0; slice < slices_of(std::ssize(parts[part].bytes)); ++slice) {
      all.push_back({part, slice});
    }
  }
  pool.run(static_cast<int>(all.size()), [&](int item, int /*thread*/) {
    const auto [part, slice] = all[static_cast<std::size_t>(item)];
    visit(part, slice, slice_of(parts[part], slice));
  });
}

// Computes where the parts of a header of `header_bytes` begin. kCorrupt for a shape that no part
// has, or more bytes than `limit`.
Status place_parts(std::size_t header_bytes, std::int64_t limit, WeightsHeader& header) {
  auto end = static_cast<std::int64_t>(kPreambleBytes + header_bytes);
  std::size_t slices = 0;
  for (StoredPart& stored : header.parts) {
    const auto bytes = kernels::bytes_of(stored.part);
    stored.offset = round_up_to_page(end);
    if (!bytes || stored.offset > limit || *bytes > limit - stored.offset) {
      return corrupt(base::str_cat("a weight of ", stored.part.columns, " x ", stored.part.depth,
                                   " does not fit into a file of ", limit, " bytes"));
    }
    end = stored.offset + *bytes;
    slices += slices_of(*bytes);
  }
  if (std::cmp_greater(slices, device::ThreadPool::kMaxCount)) {
    return corrupt("more weights than a file holds");
  }
  header.file_bytes = end;
  return {};
}

Status parse_sources(ByteReader& in, std::uint32_t count, std::vector<SourceFile>& sources) {
  if (!in.holds(count, kSourceBytes)) {
    return corrupt("the list of its sources is cut short");
  }
  std::vector<std::uint32_t> path_bytes;
  for (std::uint32_t i = 0; i < count; ++i) {
    path_bytes.push_back(in.get<std::uint32_t>());
    sources.push_back(
        {.path = {}, .bytes = in.get<std::int64_t>(), .modified_ns = in.get<std::int64_t>()});
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    sources[i].path = in.get_text(path_bytes[i]);
  }
  return {};
}

// Reads the shapes of parts, and returns their offsets as they are written, to be compared.
Result<std::vector<std::int64_t>> parse_parts(ByteReader& in, std::uint32_t count,
                                              std::vector<StoredPart>& parts) {
  if (!in.holds(count, kWeightBytes)) {
    return corrupt("the list of its weights is cut short");
  }
  std::vector<std::int64_t> offsets;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto code = in.get<std::uint32_t>();
    if (code >= kernels::kCpuWeightFormats && code != kVectorCode) {
      return {ErrorCode::kUnsupported, base::str_cat("weight format ", code, " is unknown here")};
    }
    StoredPart& stored = parts.emplace_back();
    if (code != kVectorCode) {
      stored.part.format = static_cast<kernels::WeightFormat>(code);
    }
    stored.part.columns = in.get<std::int64_t>();
    stored.part.depth = in.get<std::int64_t>();
    offsets.push_back(in.get<std::int64_t>());
  }
  return offsets;
}

// Reads the lists behind the first fields of `header`. The numbers of sources and parts are the
// file's.
Status parse_lists(ByteReader& in, std::span<const std::byte> bytes, std::int64_t file_bytes,
                   WeightsHeader& header) {
  const auto model_bytes = in.get<std::uint32_t>();
  const auto num_sources = in.get<std::uint32_t>();
  const auto num_parts = in.get<std::uint32_t>();
  header.content.model = in.get_text(model_bytes);
  QUIRE_TRY_STATUS(parse_sources(in, num_sources, header.content.sources));
  QUIRE_TRY(const auto offsets, parse_parts(in, num_parts, header.parts));
  QUIRE_TRY_STATUS(place_parts(bytes.size(), file_bytes, header));
  for (std::size_t i = 0; i < header.parts.size(); ++i) {
    StoredPart& stored = header.parts[i];
    if (stored.offset != offsets[i]) {
      return corrupt(
          base::str_cat("weight ", i, " begins at byte ", offsets[i], ", not at ", stored.offset));
    }
    const std::size_t slices = slices_of(kernels::bytes_of(stored.part).value_or(0));
    if (!in.get_all(slices, stored.checksums)) {
      return corrupt("the list of its checksums is cut short");
    }
  }
  if (in.failed() || in.left() != 0) {
    return corrupt("the header and its last field do not end together");
  }
  if (header.file_bytes != file_bytes) {
    return corrupt(
        base::str_cat("its weights end at byte ", header.file_bytes, " of ", file_bytes));
  }
  return {};
}

}  // namespace

std::vector<std::byte> encode_weights_header(const WeightsHeader& header) {
  const WeightsContent& content = header.content;
  ByteWriter out(2 * kHashDigits + content.model.size());
  out.put_text(content.key);
  out.put_text(content.digest);
  out.put(kernels::kPackingVersion);
  out.put(static_cast<std::uint32_t>(content.model.size()));
  out.put(static_cast<std::uint32_t>(content.sources.size()));
  out.put(static_cast<std::uint32_t>(header.parts.size()));
  out.put_text(content.model);
  for (const SourceFile& source : content.sources) {
    out.put(static_cast<std::uint32_t>(source.path.size()));
    out.put(source.bytes);
    out.put(source.modified_ns);
  }
  for (const SourceFile& source : content.sources) {
    out.put_text(source.path);
  }
  for (const StoredPart& stored : header.parts) {
    const auto& format = stored.part.format;
    out.put(format ? static_cast<std::uint32_t>(*format) : kVectorCode);
    out.put(stored.part.columns);
    out.put(stored.part.depth);
    out.put(stored.offset);
  }
  for (const StoredPart& stored : header.parts) {
    for (const std::uint64_t sum : stored.checksums) {
      out.put(sum);
    }
  }
  return std::move(out).take();
}

Result<WeightsHeader> parse_weights_header(std::span<const std::byte> bytes,
                                           std::int64_t file_bytes) {
  ByteReader in(bytes);
  WeightsHeader header;
  header.content.key = in.get_text(kHashDigits);
  header.content.digest = in.get_text(kHashDigits);
  if (!is_hash(header.content.key) || !is_hash(header.content.digest)) {
    return corrupt("its key or digest is not a hash");
  }
  if (const auto version = in.get<std::uint32_t>(); version != kernels::kPackingVersion) {
    return {ErrorCode::kUnsupported,
            base::str_cat("weights packed by version ", version, ", this build packs by version ",
                          kernels::kPackingVersion)};
  }
  QUIRE_TRY_STATUS(parse_lists(in, bytes, file_bytes, header));
  return header;
}

Result<WeightsFile> WeightsFile::open(const Folder& folder, const std::string& key) {
  const std::string name = weights_file_name(key);
  QUIRE_TRY(const Descriptor file, open_file(folder, name));
  QUIRE_TRY(WeightsFile weights, open(file, folder.path / name));
  if (weights.content().key != key) {
    return corrupt(base::str_cat((folder.path / name).string(), " holds other weights, ",
                                 base::quoted(weights.content().key)));
  }
  return weights;
}

Result<WeightsFile> WeightsFile::open(const Descriptor& file, const std::filesystem::path& path) {
  QUIRE_TRY(const FileFront front, read_front(FileKind::kWeights, file, path));
  auto header = parse_weights_header(front.header, front.file_bytes);
  if (!header.ok()) {
    return {header.error().code, base::str_cat(path.string(), ": ", header.error().message)};
  }
  auto end = static_cast<std::int64_t>(kPreambleBytes + front.header.size());
  for (const StoredPart& stored : header->parts) {
    QUIRE_TRY_STATUS(check_padding(file, end, stored.offset, path));
    end = stored.offset + kernels::bytes_of(stored.part).value_or(0);
  }
  WeightsFile weights;
  QUIRE_TRY(weights.mapping_, base::MappedFile::map(file.get(), path, base::MappedUse::kAgain));
  if (weights.file_bytes() != front.file_bytes) {
    return corrupt(base::str_cat(path.string(), " changed its size while it was opened"));
  }
  weights.content_ = std::move(header->content);
  weights.parts_ = std::move(header->parts);
  for (const StoredPart& stored : weights.parts_) {
    PackedPart& part = weights.content_.parts.emplace_back(stored.part);
    part.bytes = weights.mapping_.bytes().subspan(
        static_cast<std::size_t>(stored.offset),
        static_cast<std::size_t>(kernels::bytes_of(part).value_or(0)));
  }
  return weights;
}

Status WeightsFile::verify(device::ThreadPool& pool) const {
  std::atomic<std::int64_t> damaged = -1;  // offset of a slice
  mapping_.will_need(0, kAheadBytes);
  for_each_slice(content_.parts, pool,
                 [&](std::size_t part, std::size_t slice, std::span<const std::byte> bytes) {
                   const std::ptrdiff_t offset = bytes.data() - mapping_.bytes().data();
                   mapping_.will_need(static_cast<std::size_t>(offset) + kAheadBytes,
                                      kWeightSliceBytes);
                   if (checksum(bytes) != parts_[part].checksums[slice]) {
                     damaged = offset;
                   }
                 });
  if (damaged < 0) {
    return {};
  }
  return corrupt(base::str_cat(mapping_.path(), ": the checksum of the weights at byte ",
                               damaged.load(), " is wrong"));
}

Result<std::int64_t> write_weights_file(const Folder& folder, const WeightsContent& content,
                                        device::ThreadPool& pool) {
  WeightsHeader header{.content = content};
  for (const PackedPart& part : content.parts) {
    header.parts.push_back(
        {.part = part, .checksums = std::vector<std::uint64_t>(slices_of(std::ssize(part.bytes)))});
  }
  // The size of the header is known before what is in it.
  QUIRE_TRY_STATUS(place_parts(encode_weights_header(header).size(), INT64_MAX / 2, header));
  for_each_slice(content.parts, pool,
                 [&](std::size_t part, std::size_t slice, std::span<const std::byte> bytes) {
                   header.parts[part].checksums[slice] = checksum(bytes);
                 });
  QUIRE_TRY(NewFile file, NewFile::create(folder, weights_file_name(content.key)));
  QUIRE_TRY_STATUS(
      write_front(FileKind::kWeights, encode_weights_header(header), header.file_bytes, file));
  for (std::size_t i = 0; i < header.parts.size(); ++i) {
    QUIRE_TRY_STATUS(
        write_at(file.descriptor(), content.parts[i].bytes, header.parts[i].offset, file.path()));
  }
  QUIRE_TRY_STATUS(file.commit(true));
  return header.file_bytes;
}

}  // namespace quire::kv_store
