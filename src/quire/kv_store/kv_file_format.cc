#include "quire/kv_store/kv_file_format.h"

#include <xxhash.h>
#if QUIRE_XXH3_BY_PROCESSOR
#include <xxh_x86dispatch.h>  // the same XXH3_64bits by the widest registers of the processor
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/kv_store/byte_codec.h"
#include "quire/kv_store/corrupt.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

// The first byte is no text, and the line ends are lost where a transfer "mends" them.
using Magic = std::array<std::uint8_t, 8>;
constexpr std::size_t kPreambleChecksumAt = kPreambleBytes - 8;
constexpr std::size_t kFixedHeaderBytes = 32 + kHashDigits + std::size_t{8} * 4;
constexpr std::size_t kRunBytes = 4 + 4 + 8;
// Bytes of the sizes of a layer, from kKVFileVersionWithSizes on.
constexpr std::size_t kSizeBytes = 8;
// Bytes of a run's lost blocks, from kKVFileVersionWithLost on.
constexpr std::size_t kLostBytes = 4;
// Bytes of a run's type, from kKVFileVersionWithTypes on.
constexpr std::size_t kTypeBytes = 4;
// Bytes of the number of sizes, and of a run's lost window parts, from kKVFileVersionWithParts on.
constexpr std::size_t kNumSizesBytes = 4;
constexpr std::size_t kPartsBytes = 4;

// Codes of types: 1, 2, ...
constexpr std::array kKVTypes = {KVType{tensor::DType::kFloat32, tensor::KVFormat::kPlain},
                                 KVType{tensor::DType::kBFloat16, tensor::KVFormat::kPlain},
                                 KVType{tensor::DType::kFloat16, tensor::KVFormat::kPlain},
                                 KVType{tensor::DType::kFloat32, tensor::KVFormat::kInt8},
                                 KVType{tensor::DType::kBFloat16, tensor::KVFormat::kInt8},
                                 KVType{tensor::DType::kFloat16, tensor::KVFormat::kInt8},
                                 KVType{tensor::DType::kFloat32, tensor::KVFormat::kFp8},
                                 KVType{tensor::DType::kBFloat16, tensor::KVFormat::kFp8},
                                 KVType{tensor::DType::kFloat16, tensor::KVFormat::kFp8},
                                 KVType{tensor::DType::kFloat32, tensor::KVFormat::kInt4},
                                 KVType{tensor::DType::kBFloat16, tensor::KVFormat::kInt4},
                                 KVType{tensor::DType::kFloat16, tensor::KVFormat::kInt4}};

// Traits that tell one kind of file from another.
struct KindTraits {
  Magic magic;
  std::uint32_t newest;  // version
  std::string_view name;
};

const KindTraits& traits_of(FileKind kind) {
  static constexpr KindTraits kTraits[] = {
      {{0x8a, 'Q', 'K', 'V', '\r', '\n', 0x1a, '\n'}, kKVFileVersionWithParts, "kv file"},
      {{0x8a, 'Q', 'K', 'E', '\r', '\n', 0x1a, '\n'}, kEntryFileVersion, "store entry file"},
      {{0x8a, 'Q', 'W', 'F', '\r', '\n', 0x1a, '\n'}, kWeightsFileVersion, "weights file"}};
  return kTraits[static_cast<std::uint8_t>(kind)];
}

Error too_short() { return corrupt("the header ends before its last field"); }

std::uint32_t code_of(const KVType& type) {
  return static_cast<std::uint32_t>(std::ranges::find(kKVTypes, type) - kKVTypes.begin() + 1);
}

Result<KVType> type_of(std::uint32_t code) {
  if (code < 1 || code > kKVTypes.size()) {
    return {ErrorCode::kUnsupported, base::str_cat("dtype ", code, " is unknown here")};
  }
  return kKVTypes[code - 1];
}

Result<tensor::KVGeometry> parse_geometry(ByteReader& reader) {
  tensor::KVGeometry geometry;
  geometry.layers = reader.get<std::int32_t>();
  geometry.kv_heads = reader.get<std::int32_t>();
  geometry.head_dim = reader.get<std::int32_t>();
  geometry.block_tokens = reader.get<std::int32_t>();
  const auto code = reader.get<std::uint32_t>();
  if (reader.failed()) {
    return too_short();
  }
  QUIRE_TRY(const KVType type, type_of(code));
  geometry.dtype = type.dtype;
  geometry.format = type.format;
  return geometry;
}

// Reads the sizes of layers that differ. A version that is there for other content may have none.
Status parse_layer_sizes(ByteReader& reader, std::uint32_t version, tensor::KVGeometry& geometry) {
  const std::uint32_t count = version >= kKVFileVersionWithParts
                                  ? reader.get<std::uint32_t>()
                                  : static_cast<std::uint32_t>(geometry.layers);
  if (reader.failed()) {
    return too_short();
  }
  if (count == 0) {
    return {};
  }
  if (count != static_cast<std::uint32_t>(geometry.layers)) {
    return corrupt(base::str_cat("there are sizes of ", count, " of ", geometry.layers, " layers"));
  }
  if (!reader.holds(static_cast<std::uint64_t>(geometry.layers), kSizeBytes)) {
    return too_short();
  }
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const int kv_heads = reader.get<std::int32_t>();
    geometry.layer_sizes.push_back({kv_heads, reader.get<std::int32_t>()});
  }
  const Status checked = check_geometry(geometry);
  return checked.ok() ? Status() : corrupt(checked.error().message);
}

// Reads the lost blocks of runs. A version that is there for them has some: equal content gives
// equal bytes.
Status parse_lost(ByteReader& reader, std::uint32_t version, KVFileHeader& header) {
  bool any = false;
  for (SavedRun& run : header.content.runs) {
    run.lost_blocks = reader.get<std::int32_t>();
    any = any || run.lost_blocks != 0;
  }
  if (reader.failed()) {
    return too_short();
  }
  return any || version > kKVFileVersionWithLost
             ? Status()
             : corrupt("no run has lost blocks, which would be version 1");
}

// Reads the types of runs. 0 stands for that of the file.
Status parse_types(ByteReader& reader, std::uint32_t version, KVFileHeader& header) {
  bool any = false;
  for (SavedRun& run : header.content.runs) {
    const auto code = reader.get<std::uint32_t>();
    if (reader.failed()) {
      return too_short();
    }
    if (code != 0) {
      QUIRE_TRY(run.type, type_of(code));
      any = true;
    }
  }
  return any || version > kKVFileVersionWithTypes
             ? Status()
             : corrupt("no run has a type of its own, which would be version 1 or 2");
}

// Reads the lost window parts of runs.
Status parse_parts(ByteReader& reader, KVFileHeader& header) {
  bool any = false;
  for (SavedRun& run : header.content.runs) {
    run.lost_parts = reader.get<std::int32_t>();
    any = any || run.lost_parts != 0;
  }
  if (reader.failed()) {
    return too_short();
  }
  return any ? Status() : corrupt("no run has lost window parts, which would be version 1 to 5");
}

Status parse_runs(ByteReader& reader, std::uint32_t num_runs, std::uint32_t version,
                  KVFileHeader& header) {
  std::vector<std::uint32_t> num_tokens;
  if (!reader.holds(num_runs, kRunBytes)) {
    return too_short();
  }
  for (std::uint32_t i = 0; i < num_runs; ++i) {
    num_tokens.push_back(reader.get<std::uint32_t>());
    header.content.runs.push_back({.start_position = reader.get<std::int32_t>()});
    header.head_blocks.push_back({.offset = reader.get<std::int64_t>()});
  }
  if (version >= kKVFileVersionWithLost) {
    QUIRE_TRY_STATUS(parse_lost(reader, version, header));
  }
  if (version >= kKVFileVersionWithTypes) {
    QUIRE_TRY_STATUS(parse_types(reader, version, header));
  }
  if (version >= kKVFileVersionWithParts) {
    QUIRE_TRY_STATUS(parse_parts(reader, header));
  }
  for (std::uint32_t i = 0; i < num_runs; ++i) {
    if (!reader.get_all(num_tokens[i], header.content.runs[i].tokens)) {
      return too_short();
    }
  }
  return {};
}

Status parse_head_blocks(ByteReader& reader, KVFileHeader& header) {
  const tensor::KVGeometry& geometry = header.content.geometry;
  for (std::size_t i = 0; i < header.head_blocks.size(); ++i) {
    if (const Status lost = check_lost(geometry, header.content.runs[i]); !lost.ok()) {
      return corrupt(base::str_cat("run ", i, " ", lost.error().message));
    }
    const auto count = head_blocks_of(geometry, header.content.runs[i]);
    if (!count ||
        !reader.get_all(static_cast<std::uint64_t>(*count), header.head_blocks[i].checksums)) {
      return too_short();
    }
  }
  if (header.codec == Codec::kRaw) {
    return {};
  }
  for (std::size_t i = 0; i < header.head_blocks.size(); ++i) {
    RunHeadBlocks& head_blocks = header.head_blocks[i];
    const std::int64_t block_bytes = header.content.head_block_bytes(i);
    if (!reader.get_all(head_blocks.checksums.size(), head_blocks.stored_bytes)) {
      return too_short();
    }
    for (const std::uint32_t bytes : head_blocks.stored_bytes) {
      if (bytes < 1 || bytes > block_bytes) {
        return corrupt(
            base::str_cat("a head block of ", block_bytes, " bytes is stored in ", bytes));
      }
    }
  }
  return {};
}

// Checks the offsets, which follow from the rest. They are written so that a reader needs no
// arithmetic, and here compared, so that no payload overlaps another or lies outside the file.
Status check_places(const KVFileHeader& header, std::int64_t file_bytes) {
  const PayloadPlaces places = place_payload(header);
  if (places.file_bytes != file_bytes) {
    return corrupt(base::str_cat("the file has ", file_bytes, " bytes, its header speaks of ",
                                 places.file_bytes));
  }
  for (std::size_t i = 0; i < header.head_blocks.size(); ++i) {
    if (header.head_blocks[i].offset != places.offsets[i]) {
      return corrupt(base::str_cat("run ", i, " is said to begin at byte ",
                                   header.head_blocks[i].offset, ", it begins at ",
                                   places.offsets[i]));
    }
  }
  for (std::size_t i = 0; i < header.state_places.size(); ++i) {
    if (header.state_places[i].offset != places.state_offsets[i]) {
      return corrupt(base::str_cat("state ", i, " is said to begin at byte ",
                                   header.state_places[i].offset, ", it begins at ",
                                   places.state_offsets[i]));
    }
  }
  return {};
}

}  // namespace

std::int64_t round_up_to_page(std::int64_t bytes) {
  return (bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

KVFileHeader make_header(const KVFileContent& content, Codec codec) {
  KVFileHeader header{.content = content, .codec = codec};
  for (const SavedRun& run : content.runs) {
    const auto count = static_cast<std::size_t>(head_blocks_of(content.geometry, run).value_or(0));
    RunHeadBlocks head_blocks;
    head_blocks.checksums.resize(count);
    head_blocks.stored_bytes.resize(codec == Codec::kRaw ? 0 : count);
    header.head_blocks.push_back(std::move(head_blocks));
  }
  header.state_places.resize(content.states.at.size());
  for (StatePlace& place : header.state_places) {
    place.checksums.resize(content.states.parts.size());
  }
  return header;
}

PayloadPlaces place_payload(const KVFileHeader& header) {
  PayloadPlaces places;
  auto end = static_cast<std::int64_t>(kPreambleBytes + header_size(header));
  for (std::size_t i = 0; i < header.head_blocks.size(); ++i) {
    const RunHeadBlocks& head_blocks = header.head_blocks[i];
    const std::int64_t block_bytes = header.content.head_block_bytes(i);
    end = head_blocks.checksums.empty() ? end : round_up_to_page(end);
    places.offsets.push_back(end);
    if (header.codec == Codec::kRaw) {
      end += static_cast<std::int64_t>(head_blocks.checksums.size()) * block_bytes;
    }
    for (const std::uint32_t bytes : head_blocks.stored_bytes) {
      end += bytes;
    }
  }
  const std::int64_t state_bytes = header.content.states.bytes_of_one();
  for (std::size_t i = 0; i < header.state_places.size(); ++i) {
    places.state_offsets.push_back(round_up_to_page(end));
    end = places.state_offsets.back() + state_bytes;
  }
  places.file_bytes = end;
  return places;
}

std::uint32_t version_of(const KVFileContent& content) {
  const auto& runs = content.runs;
  if (std::ranges::any_of(runs, [](const SavedRun& run) { return run.lost_parts != 0; })) {
    return kKVFileVersionWithParts;
  }
  if (!content.geometry.layer_sizes.empty()) {
    return kKVFileVersionWithSizes;
  }
  if (!content.states.at.empty()) {
    return kKVFileVersionWithStates;
  }
  if (std::ranges::any_of(runs, [](const SavedRun& run) { return run.type.has_value(); })) {
    return kKVFileVersionWithTypes;
  }
  return std::ranges::all_of(runs, [](const SavedRun& run) { return run.lost_blocks == 0; })
             ? kKVFileVersion
             : kKVFileVersionWithLost;
}

std::size_t header_size(const KVFileHeader& header) {
  std::size_t bytes = kFixedHeaderBytes + 4 * header.content.geometry.window_tokens.size() +
                      8 * header.content.geometry.layer_sizes.size() +
                      header.content.metadata_json.size();
  const std::uint32_t version = version_of(header.content);
  const std::size_t more = (version >= kKVFileVersionWithLost ? kLostBytes : 0) +
                           (version >= kKVFileVersionWithTypes ? kTypeBytes : 0) +
                           (version >= kKVFileVersionWithParts ? kPartsBytes : 0);
  bytes += version >= kKVFileVersionWithParts ? kNumSizesBytes : 0;
  for (const SavedRun& run : header.content.runs) {
    bytes += kRunBytes + more + 4 * run.tokens.size();
  }
  for (const RunHeadBlocks& head_blocks : header.head_blocks) {
    bytes += 8 * head_blocks.checksums.size() + 4 * head_blocks.stored_bytes.size();
  }
  return bytes + states_size(header.content.states);
}

std::vector<std::byte> encode_header(const KVFileHeader& header) {
  const KVFileContent& content = header.content;
  const tensor::KVGeometry& geometry = content.geometry;
  ByteWriter out(header_size(header));
  out.put_bytes(std::as_bytes(std::span(content.fingerprint.bytes)));
  out.put_text(content.object_hash.empty() ? std::string(kHashDigits, '\0') : content.object_hash);
  out.put(geometry.layers);
  out.put(geometry.kv_heads);
  out.put(geometry.head_dim);
  out.put(geometry.block_tokens);
  out.put(code_of(kv_type_of(geometry)));
  out.put(static_cast<std::uint32_t>(header.codec));
  out.put(static_cast<std::uint32_t>(content.runs.size()));
  out.put(static_cast<std::uint32_t>(content.metadata_json.size()));
  std::for_each(geometry.window_tokens.begin(), geometry.window_tokens.end(),
                [&](int window) { out.put(window); });
  if (version_of(content) >= kKVFileVersionWithParts) {
    out.put(static_cast<std::uint32_t>(geometry.layer_sizes.size()));
  }
  for (const tensor::KVLayerSize& size : geometry.layer_sizes) {
    out.put(size.kv_heads);
    out.put(size.head_dim);
  }
  for (std::size_t i = 0; i < content.runs.size(); ++i) {
    out.put(static_cast<std::uint32_t>(content.runs[i].tokens.size()));
    out.put(content.runs[i].start_position);
    out.put(header.head_blocks[i].offset);
  }
  if (version_of(content) >= kKVFileVersionWithLost) {
    std::for_each(content.runs.begin(), content.runs.end(),
                  [&](const SavedRun& run) { out.put(run.lost_blocks); });
  }
  if (version_of(content) >= kKVFileVersionWithTypes) {
    std::for_each(content.runs.begin(), content.runs.end(), [&](const SavedRun& run) {
      out.put(run.type ? code_of(*run.type) : std::uint32_t{0});
    });
  }
  if (version_of(content) >= kKVFileVersionWithParts) {
    std::for_each(content.runs.begin(), content.runs.end(),
                  [&](const SavedRun& run) { out.put(run.lost_parts); });
  }
  for (const SavedRun& run : content.runs) {
    std::for_each(run.tokens.begin(), run.tokens.end(), [&](TokenId id) { out.put(id); });
  }
  for (const RunHeadBlocks& head_blocks : header.head_blocks) {
    std::for_each(head_blocks.checksums.begin(), head_blocks.checksums.end(),
                  [&](std::uint64_t sum) { out.put(sum); });
  }
  for (const RunHeadBlocks& head_blocks : header.head_blocks) {
    std::for_each(head_blocks.stored_bytes.begin(), head_blocks.stored_bytes.end(),
                  [&](std::uint32_t bytes) { out.put(bytes); });
  }
  if (version_of(content) == kKVFileVersionWithStates) {
    encode_states(content.states, header.state_places, out);
  }
  out.put_text(content.metadata_json);
  QUIRE_CHECK(out.bytes().size() == header_size(header), "header size and encoding disagree");
  return std::move(out).take();
}

std::vector<std::byte> encode_preamble(const Preamble& preamble) {
  ByteWriter out(kPreambleBytes);
  out.put_bytes(std::as_bytes(std::span(traits_of(preamble.kind).magic)));
  out.put(preamble.version);
  out.put(std::uint32_t{0});
  out.put(preamble.header_bytes);
  out.put(preamble.file_bytes);
  out.put(preamble.header_checksum);
  out.put(std::uint64_t{0});
  out.put(std::uint64_t{0});
  out.put(checksum(out.bytes()));
  return std::move(out).take();
}

std::optional<FileKind> kind_of_file(std::span<const std::byte> begin) {
  for (const FileKind kind : {FileKind::kKV, FileKind::kEntry, FileKind::kWeights}) {
    const Magic& magic = traits_of(kind).magic;
    if (begin.size() >= magic.size() &&
        std::memcmp(begin.data(), magic.data(), magic.size()) == 0) {
      return kind;
    }
  }
  return std::nullopt;
}

Result<Preamble> parse_preamble(FileKind kind, std::span<const std::byte> bytes,
                                std::int64_t file_bytes) {
  const KindTraits& wanted = traits_of(kind);
  if (bytes.size() < kPreambleBytes) {
    return corrupt(base::str_cat("a ", wanted.name, " has at least ", kPreambleBytes,
                                 " bytes, this one has ", bytes.size()));
  }
  ByteReader reader(bytes);
  const Magic& magic = wanted.magic;
  if (std::memcmp(reader.get_bytes(magic.size()).data(), magic.data(), magic.size()) != 0) {
    return corrupt(base::str_cat("not a ", wanted.name, ": it begins with other bytes"));
  }
  const auto version = reader.get<std::uint32_t>();
  if (version < 1 || version > wanted.newest) {
    return {ErrorCode::kUnsupported,
            base::str_cat(wanted.name, " format version ", version, ", this build reads ",
                          wanted.newest > 1 ? "versions 1 to " : "version ", wanted.newest)};
  }
  const auto first = bytes.first(kPreambleChecksumAt);
  ByteReader sum(bytes.subspan(kPreambleChecksumAt));
  if (checksum(first) != sum.get<std::uint64_t>()) {
    return corrupt("the checksum of its first bytes is wrong");
  }
  static_cast<void>(reader.get<std::uint32_t>());
  Preamble preamble{.kind = kind,
                    .version = version,
                    .header_bytes = reader.get<std::uint64_t>(),
                    .file_bytes = reader.get<std::uint64_t>(),
                    .header_checksum = reader.get<std::uint64_t>()};
  if (preamble.file_bytes != static_cast<std::uint64_t>(file_bytes)) {
    return corrupt(base::str_cat("the file has ", file_bytes, " bytes, it was written with ",
                                 preamble.file_bytes));
  }
  if (preamble.header_bytes >
      std::min<std::uint64_t>(kMaxHeaderBytes, preamble.file_bytes - kPreambleBytes)) {
    return corrupt(base::str_cat("a header of ", preamble.header_bytes, " bytes in a file of ",
                                 file_bytes, "; at most ", kMaxHeaderBytes));
  }
  return preamble;
}

Result<KVFileHeader> parse_header(std::uint32_t version, std::span<const std::byte> bytes,
                                  std::int64_t file_bytes) {
  ByteReader reader(bytes);
  KVFileHeader header;
  KVFileContent& content = header.content;
  const auto fingerprint = reader.get_bytes(content.fingerprint.bytes.size());
  std::transform(fingerprint.begin(), fingerprint.end(), content.fingerprint.bytes.begin(),
                 [](std::byte byte) { return static_cast<std::uint8_t>(byte); });
  content.object_hash = reader.get_text(kHashDigits);
  if (content.object_hash == std::string(kHashDigits, '\0')) {
    content.object_hash.clear();
  }
  QUIRE_TRY(content.geometry, parse_geometry(reader));
  const auto codec = reader.get<std::uint32_t>();
  if (codec > static_cast<std::uint32_t>(Codec::kLz4)) {
    return {ErrorCode::kUnsupported, base::str_cat("codec ", codec, " is unknown here")};
  }
  header.codec = static_cast<Codec>(codec);
  const auto num_runs = reader.get<std::uint32_t>();
  const auto metadata_bytes = reader.get<std::uint32_t>();
  // Checked before any count of blocks is derived from it.
  if (const Status geometry = check_geometry(content.geometry); !geometry.ok()) {
    return corrupt(geometry.error().message);
  }
  if (!reader.get_all(static_cast<std::uint32_t>(content.geometry.layers),
                      content.geometry.window_tokens)) {
    return too_short();
  }
  if (version >= kKVFileVersionWithSizes) {
    QUIRE_TRY_STATUS(parse_layer_sizes(reader, version, content.geometry));
  }
  QUIRE_TRY_STATUS(parse_runs(reader, num_runs, version, header));
  QUIRE_TRY_STATUS(parse_head_blocks(reader, header));
  if (version == kKVFileVersionWithStates) {
    QUIRE_TRY_STATUS(parse_states(reader, content.states, header.state_places));
  }
  content.metadata_json = reader.get_text(metadata_bytes);
  if (reader.failed() || reader.left() != 0) {
    return reader.failed() ? too_short() : corrupt("the header goes on behind its last field");
  }
  if (const Status checked = check_content(content); !checked.ok()) {
    return corrupt(checked.error().message);
  }
  QUIRE_TRY_STATUS(check_places(header, file_bytes));
  return header;
}

}  // namespace quire::kv_store
