// The bytes of a KV file in front of its payload (docs/store-format.md), as pure functions between
// bytes and structs. Everything is little-endian and checked before it is used.
//
// Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/saved_states.h"
#include "quire/result.h"

namespace quire::kv_store {

// A file has the first version that can express its content, so that older builds read all they
// can.
inline constexpr std::uint32_t kKVFileVersion = 1;
inline constexpr std::uint32_t kKVFileVersionWithLost = 2;    // runs may have lost blocks
inline constexpr std::uint32_t kKVFileVersionWithTypes = 3;   // runs may have types of their own
inline constexpr std::uint32_t kKVFileVersionWithStates = 4;  // there are states
inline constexpr std::uint32_t kKVFileVersionWithSizes = 5;   // layers differ, there are no states
inline constexpr std::uint32_t kKVFileVersionWithParts = 6;   // runs may have lost window parts
inline constexpr std::size_t kPreambleBytes = 64;
inline constexpr std::int64_t kPayloadAlignment = 4096;
inline constexpr std::size_t kMaxHeaderBytes = std::size_t{256} << 20;

// Returns the next multiple of kPayloadAlignment. Precondition: no overflow.
[[nodiscard]] std::int64_t round_up_to_page(std::int64_t bytes);

// The codec by which head blocks are stored.
enum class Codec : std::uint8_t {
  kRaw = 0,     // bytes as in memory
  kPlanes = 1,  // byte planes + zstd where that is smaller, else as in memory
  kLz4 = 2,     // the same with lz4
};

// The places and checksums of one run's head blocks: [layer][kv_head][block].
struct RunHeadBlocks {
  std::int64_t offset = 0;  // place of the payload in the file, at a multiple of kPayloadAlignment
  std::vector<std::uint64_t> checksums;     // XXH3-64 of each head block as in memory
  std::vector<std::uint32_t> stored_bytes;  // of each head block; of Codec::kRaw empty
};

// Everything of a KV file but its payload.
struct KVFileHeader {
  KVFileContent content;
  Codec codec = Codec::kRaw;
  std::vector<RunHeadBlocks> head_blocks;  // [runs]
  std::vector<StatePlace> state_places;    // [states]
};

// The kinds of files that begin with a preamble. Versions are counted for each kind.
enum class FileKind : std::uint8_t { kKV, kEntry, kWeights };
inline constexpr std::uint32_t kEntryFileVersion = 1;
inline constexpr std::uint32_t kWeightsFileVersion = 1;

struct Preamble {
  FileKind kind = FileKind::kKV;
  std::uint32_t version = 1;
  std::uint64_t header_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t header_checksum = 0;
};

// Returns the kind of a file that begins with these bytes; nothing for other files.
[[nodiscard]] std::optional<FileKind> kind_of_file(std::span<const std::byte> begin);

[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

// Returns the header of `content` with room in `head_blocks` for every head block. Offsets,
// checksums and stored sizes are zero. Precondition: check_content() is OK.
[[nodiscard]] KVFileHeader make_header(const KVFileContent& content, Codec codec);

// The offsets at which payloads begin, and the end of the last one.
struct PayloadPlaces {
  std::vector<std::int64_t> offsets;        // [runs]
  std::vector<std::int64_t> state_offsets;  // [states]
  std::int64_t file_bytes = 0;
};
// Returns the places of all payloads. Compressed, all but the offset of run 0 need
// stored_bytes.
[[nodiscard]] PayloadPlaces place_payload(const KVFileHeader& header);
// Returns the first version that can express the content.
[[nodiscard]] std::uint32_t version_of(const KVFileContent& content);
// Returns the number of bytes that encode_header() gives, which does not depend on checksums.
[[nodiscard]] std::size_t header_size(const KVFileHeader& header);
[[nodiscard]] std::vector<std::byte> encode_header(const KVFileHeader& header);
[[nodiscard]] std::vector<std::byte> encode_preamble(const Preamble& preamble);

// Parses the front of a file. Fails with kCorrupt for bytes that contradict themselves, and with
// kUnsupported and both numbers for a later version and an unknown codec or dtype. Never allocates
// more than a small multiple of `bytes`. Messages do not name the file.
[[nodiscard]] Result<Preamble> parse_preamble(FileKind kind, std::span<const std::byte> bytes,
                                              std::int64_t file_bytes);
[[nodiscard]] Result<KVFileHeader> parse_header(std::uint32_t version,
                                                std::span<const std::byte> bytes,
                                                std::int64_t file_bytes);

}  // namespace quire::kv_store
