// Helpers of the tests of this module: folders that go away, pools with known bytes, saved runs.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/sha256.h"
#include "quire/base/temporary_folder.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

// A folder of its own, removed with all its content. In memory where there is such a place. No test
// pulls the plug, so what the system says it has written it has, and fsync need not cost anything.
class TemporaryFolder : public base::TemporaryFolder {
 public:
  TemporaryFolder() : base::TemporaryFolder(parent()) {}

 private:
  static std::filesystem::path parent() {
    const std::filesystem::path memory = "/dev/shm";
    return std::filesystem::is_directory(memory) ? memory
                                                 : std::filesystem::path(::testing::TempDir());
  }
};

inline tensor::KVGeometry small_geometry(tensor::DType dtype = tensor::DType::kBFloat16,
                                         int block_tokens = 4,
                                         tensor::KVFormat format = tensor::KVFormat::kPlain) {
  return {.layers = 2,
          .kv_heads = 2,
          .head_dim = 8,
          .dtype = dtype,
          .block_tokens = block_tokens,
          .window_tokens = {0, 16},
          .format = format};
}

// Returns a pool whose every byte is random.
inline PagedPool random_pool(const tensor::KVGeometry& geometry, std::int32_t num_blocks,
                             std::uint64_t seed) {
  auto pool = PagedPool::create(geometry, num_blocks);
  EXPECT_TRUE(pool.ok());
  std::mt19937_64 random(seed);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      for (std::byte& byte : pool->head_blocks(layer, head, BlockId{0}, num_blocks)) {
        byte = static_cast<std::byte>(random());
      }
    }
  }
  return std::move(pool).value();
}

inline base::KVFingerprint fingerprint_of(std::uint8_t seed) {
  base::KVFingerprint fingerprint;
  std::iota(fingerprint.bytes.begin(), fingerprint.bytes.end(), seed);
  return fingerprint;
}

inline SavedRun run_of(int num_tokens, std::int32_t start_position = 0, std::int32_t first_id = 7) {
  SavedRun run{.start_position = start_position};
  for (int i = 0; i < num_tokens; ++i) {
    run.tokens.push_back(first_id + i * 3);
  }
  return run;
}

inline std::vector<BlockId> ids(std::initializer_list<std::int32_t> values) {
  std::vector<BlockId> blocks;
  for (const std::int32_t value : values) {
    blocks.push_back(BlockId{value});
  }
  return blocks;
}

inline std::string test_hash(std::string_view name) {
  return base::to_hex(base::FieldHasher().add(name).finish());
}

// Returns the name of the object that a test makes of block `index`.
inline std::string object_hash(std::int32_t index) {
  return test_hash("object " + std::to_string(index));
}

inline std::vector<char> file_bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, std::span<const char> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Returns every head block of `blocks` as it must come back: slots behind `tokens` are zero.
inline std::vector<std::byte> kv_bytes(const PagedPool& pool, const std::vector<BlockId>& blocks,
                                       std::size_t tokens) {
  const tensor::KVGeometry& geometry = pool.geometry();
  const auto block_tokens = static_cast<std::size_t>(geometry.block_tokens);
  std::vector<std::byte> block(static_cast<std::size_t>(geometry.head_block_bytes()));
  std::vector<std::byte> all;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const std::size_t used = std::min(block_tokens, tokens - i * block_tokens);
        pool.read_slots(layer, head, blocks[i], static_cast<int>(used), block);
        all.insert(all.end(), block.begin(), block.end());
      }
    }
  }
  return all;
}

// Returns the bytes of the blocks as they are in the pool now, without zeroing any.
inline std::vector<std::byte> pool_bytes(const PagedPool& pool,
                                         const std::vector<BlockId>& blocks) {
  std::vector<std::byte> all;
  for (int layer = 0; layer < pool.geometry().layers; ++layer) {
    for (int head = 0; head < pool.geometry().kv_heads; ++head) {
      for (const BlockId id : blocks) {
        const auto block = pool.head_blocks(layer, head, id);
        all.insert(all.end(), block.begin(), block.end());
      }
    }
  }
  return all;
}

// Reads a whole run into `to`.
inline Status read_run(const KVFile& file, int run, const std::vector<BlockId>& to,
                       PagedPool& pool) {
  for (int layer = 0; layer < file.content().geometry.layers; ++layer) {
    QUIRE_TRY_STATUS(file.read_layer(run, layer, 0, to, pool));
  }
  return {};
}

// Opens a file of one run whose header says anything, under checksums that are right. `lie` changes
// the bytes of the header.
inline Result<KVFile> open_lie(KVFileHeader header, std::uint32_t version,
                               const std::function<void(std::span<std::byte>)>& lie) {
  header.head_blocks[0].offset = place_payload(header).offsets[0];
  const auto file_bytes = static_cast<std::size_t>(place_payload(header).file_bytes);
  std::vector<std::byte> bytes = encode_header(header);
  lie(bytes);
  std::vector<std::byte> all = encode_preamble({.version = version,
                                                .header_bytes = bytes.size(),
                                                .file_bytes = file_bytes,
                                                .header_checksum = checksum(bytes)});
  all.insert(all.end(), bytes.begin(), bytes.end());
  all.resize(file_bytes);
  Descriptor file(::memfd_create("lie", MFD_CLOEXEC));
  EXPECT_TRUE(write_at(file, all, 0, "memory").ok());
  return KVFile::open(std::move(file), "lie.qkv");
}

}  // namespace quire::kv_store
