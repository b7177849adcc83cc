// Ten thousand faults in the files of a store. Each is a miss or a typed error, none gives KV that
// was not saved, none costs an earlier checkpoint. The kinds are counted. Writers that die and full
// disks: store_crash_test.cc.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/test_length.h"
#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

const int kStoreShare = base::test_length(1, 10);  // one fault in so many is injected
constexpr std::size_t kSector = 512;
constexpr std::int32_t kBlocks = 12;

using Bytes = std::vector<char>;
using Saved = std::pair<std::vector<TokenId>, std::vector<std::byte>>;  // tokens, KV

// Two checkpoints. The later one has ranges that the earlier one has not: those are damaged.
class FaultyStore {
 public:
  explicit FaultyStore(bool compress)
      : pool_(random_pool(small_geometry(), kBlocks, 81)),
        store_(
            Store::open(folder_.path() / "store", {.write = {.sync = false, .compress = compress}})
                .value()),
        checkpoints_(CheckpointManager::create(store_, {.keep = 0}).value()) {
    // Something that compresses, so that decompression sees the damage too.
    for (int head = 0; head < 2; ++head) {
      const auto bytes = pool_.head_blocks(0, head, BlockId{0}, kBlocks);
      std::fill(bytes.begin(), bytes.begin() + std::ssize(bytes) / 2, std::byte{9});
    }
    for (const std::int32_t blocks : {3, kBlocks}) {
      const std::array live = {sequence("a", blocks), sequence("b", blocks / 2)};
      saved_.push_back(checkpoints_.save("", live, pool_).value());
      for (const LiveSequence& each : live) {
        const LiveRun& run = each.runs[0];
        expected_[saved_.back().number].emplace_back(
            run.run.tokens, kv_bytes(pool_, run.blocks, run.run.tokens.size()));
      }
    }
    std::set<std::string> earlier;
    for (const ObjectRange& part : saved_[0].entry.parts) {
      earlier.insert(part.object);
    }
    for (const ObjectRange& part : saved_[1].entry.parts) {
      if (earlier.insert(part.object).second) {
        targets_.push_back(object_path(part.object));
        whole_.push_back(file_bytes_of(targets_.back()));
      }
    }
    EXPECT_GE(targets_.size(), 2U);
  }

  // Injects `count` faults: `damage` gets the bytes of a target, which one it is, and how often
  // that one was damaged so before.
  using Damage = std::function<void(Bytes& bytes, std::size_t target, std::size_t round)>;
  void inject(const std::string& kind, int count, const Damage& damage) {
    for (std::size_t way = 0; way < static_cast<std::size_t>(count / kStoreShare); ++way) {
      const std::size_t target = way % targets_.size();
      Bytes bytes = whole_[target];
      damage(bytes, target, way / targets_.size() * kStoreShare);
      if (!bytes.empty() || std::filesystem::is_regular_file(targets_[target])) {
        write_bytes(targets_[target], bytes);
      }
      expect_miss_or_error(kind);
      std::filesystem::remove_all(targets_[target]);
      write_bytes(targets_[target], whole_[target]);
      if (::testing::Test::HasFailure()) {
        FAIL() << kind << ", fault " << way << ", in " << targets_[target];
      }
    }
  }

  void flip_bits() {
    inject("flipped bit before the KV", 2000, [&](Bytes& bytes, std::size_t target, auto round) {
      bytes[round % front_bytes(target)] ^= static_cast<char>(1 << random_below(8));
    });
    inject("flipped bit of the KV", 1200, [&](Bytes& bytes, std::size_t target, auto) {
      const std::size_t front = front_bytes(target);
      bytes[front + random_below(bytes.size() - front)] ^= static_cast<char>(1 << random_below(8));
    });
  }

  void tear() {
    inject("truncated", 700, [&](Bytes& bytes, auto, std::size_t round) {
      bytes.resize(round == 0 ? bytes.size() - 1 : random_below(bytes.size()));
    });
    inject("longer than it was", 100, [&](Bytes& bytes, auto, auto) {
      bytes.resize(bytes.size() + 1 + random_below(9000), static_cast<char>(random_()));
    });
    inject("a sector never arrived", 300, [&](Bytes& bytes, auto, auto) {
      const auto sector = sector_of(bytes);
      std::fill(sector, sector + kSector, '\0');
    });
    inject("torn: from a sector on what was on the disk before", 300,
           [&](Bytes& bytes, auto, auto) {
             std::generate(sector_of(bytes), bytes.end(),
                           [&] { return static_cast<char>(random_()); });
           });
    inject("reordered: two sectors in each other's place", 300, [&](Bytes& bytes, auto, auto) {
      const auto sector = sector_of(bytes);
      std::swap_ranges(sector, sector + kSector, sector_of(bytes));
    });
    inject("reordered: a sector in a wrong place", 300, [&](Bytes& bytes, auto, auto) {
      const auto sector = sector_of(bytes);
      std::copy(sector, sector + kSector, sector_of(bytes));
    });
  }

  void put_others_in_place() {
    inject("another object's file", 100, [&](Bytes& bytes, std::size_t target, std::size_t round) {
      bytes = whole_[(target + 1 + round % (whole_.size() - 1)) % whole_.size()];
    });
    inject("of another model", 200, [&](Bytes& bytes, std::size_t target, std::size_t round) {
      tensor::KVGeometry geometry = small_geometry();
      if (round % 3 == 1) {
        ++geometry.layers;
        geometry.window_tokens.push_back(0);
      }
      geometry.dtype = round % 3 == 2 ? tensor::DType::kFloat32 : geometry.dtype;
      bytes = foreign_object(target, static_cast<std::uint8_t>(2 + random_below(200)), geometry);
    });
    inject("of another version", 150, [&](Bytes& bytes, auto, auto) {
      const auto version = static_cast<std::uint32_t>(2 + random_());
      std::memcpy(bytes.data() + 8, &version, sizeof(version));
    });
    inject("missing, or no file", 150, [&](Bytes& bytes, std::size_t target, std::size_t round) {
      bytes.clear();
      const std::filesystem::path& path = targets_[target];
      std::filesystem::remove(path);
      switch (round % 5) {
        case 1:
          return std::filesystem::create_symlink(targets_[(target + 1) % targets_.size()], path);
        case 2:
          return std::filesystem::create_symlink("nowhere", path);
        case 3:
          std::filesystem::create_directory(path);
          return;
        case 4:
          EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
          return;
        default:
          return;
      }
    });
  }

  [[nodiscard]] const std::map<std::string, int>& injected() const { return injected_; }
  [[nodiscard]] const std::map<std::string, int>& harmless() const { return harmless_; }

 private:
  // The first `blocks` blocks of the pool; of the last one, 2 tokens.
  static LiveSequence sequence(const std::string& name, std::int32_t blocks) {
    LiveSequence made{.name = name, .fingerprint = fingerprint_of(1)};
    LiveRun& run = made.runs.emplace_back();
    run.run = run_of(4 * blocks - 2, 0, name == "a" ? 7 : 9);
    for (std::int32_t i = 0; i < blocks; ++i) {
      run.blocks.push_back({i});
    }
    return made;
  }

  std::filesystem::path object_path(const std::string& hash) const {
    return folder_.path() / "store" / "objects" / hash.substr(0, 2) / (hash + ".qkv");
  }

  // All that a program gets of a checkpoint, as it gets it.
  Result<std::vector<Saved>> load(const Checkpoint& checkpoint) {
    std::vector<Saved> loaded;
    for (const SavedSequence& saved : checkpoint.sequences) {
      QUIRE_TRY(const LiveSequence sequence, checkpoints_.tokens_of(saved));
      const std::vector<TokenId>& tokens = sequence.runs.at(0).run.tokens;
      const std::int32_t blocks = (static_cast<std::int32_t>(tokens.size()) + 3) / 4;
      BlockRange whole;
      for (std::int32_t i = 0; i < blocks; ++i) {
        whole.to.push_back({i});
      }
      QUIRE_TRY(const auto ranges, checkpoints_.open_blocks(saved, whole, 4));
      for (const KVFileRange& range : ranges) {
        QUIRE_TRY_STATUS(range.file->check_fits(fingerprint_of(1), pool_.geometry()));
        for (int layer = 0; layer < pool_.geometry().layers; ++layer) {
          QUIRE_TRY_STATUS(range.read_layer(layer, to_));
        }
      }
      loaded.emplace_back(tokens, pool_bytes(to_, whole.to));
    }
    return loaded;
  }

  // Looks at the disk after one more fault of a kind: each load must miss or fail.
  void expect_miss_or_error(const std::string& kind) {
    ++injected_[kind];
    const auto take = [&](const Checkpoint& checkpoint) -> Result<std::int64_t> {
      const auto loaded = load(checkpoint);
      if (loaded.ok()) {
        EXPECT_EQ(*loaded, expected_[checkpoint.number]) << kind << ": other KV";
        return checkpoint.number;
      }
      constexpr std::array kTyped = {ErrorCode::kCorrupt, ErrorCode::kNotFound, ErrorCode::kIo,
                                     ErrorCode::kUnsupported, ErrorCode::kIncompatible};
      EXPECT_NE(std::ranges::find(kTyped, loaded.error().code), kTyped.end())
          << kind << ": " << loaded.error().message;
      EXPECT_EQ(checkpoint.number, saved_[1].number) << kind << ": the earlier one is lost";
      return loaded.error();
    };
    auto newest = take_newest(checkpoints_, take);
    if (!newest.ok()) {  // of another model or version: nothing earlier is taken unasked
      newest = take(saved_[0]);
    }
    ASSERT_TRUE(newest.ok()) << kind << ": " << newest.error().message;
    harmless_[kind] += *newest == saved_[1].number ? 1 : 0;
  }

  // Bytes before the payload.
  [[nodiscard]] std::size_t front_bytes(std::size_t target) const {
    const std::span<const char> bytes = whole_[target];
    const auto preamble = parse_preamble(FileKind::kKV, std::as_bytes(bytes.first(kPreambleBytes)),
                                         std::ssize(bytes));
    return kPreambleBytes + static_cast<std::size_t>(preamble.value().header_bytes);
  }

  // The bytes of an object under the name of this target, but of another model or layout.
  Bytes foreign_object(std::size_t target, std::uint8_t fingerprint,
                       const tensor::KVGeometry& geometry) {
    KVFileContent content = KVFile::open(targets_[target]).value().content();
    content.fingerprint = fingerprint_of(fingerprint);
    content.geometry = geometry;
    const auto path = folder_.path() / "foreign";
    std::vector<BlockId> blocks;
    for (std::int32_t i = 0; i < content.runs[0].num_blocks(geometry.block_tokens); ++i) {
      blocks.push_back({i});
    }
    const PagedPool pool = random_pool(geometry, std::ssize(blocks), fingerprint);
    EXPECT_TRUE(write_kv_file(path, content, pool, {&blocks, 1}, {.sync = false}).ok());
    return file_bytes_of(path);
  }

  std::size_t random_below(std::size_t bound) { return random_() % bound; }
  // A sector of `bytes`, by its first byte.
  Bytes::iterator sector_of(Bytes& bytes) {
    return bytes.begin() +
           static_cast<std::ptrdiff_t>(random_() % (bytes.size() / kSector) * kSector);
  }

  TemporaryFolder folder_;
  PagedPool pool_;
  PagedPool to_ = random_pool(small_geometry(), kBlocks, 82);
  Store store_;
  CheckpointManager checkpoints_;
  std::vector<Checkpoint> saved_;                        // earlier, later
  std::map<std::int64_t, std::vector<Saved>> expected_;  // of those, by their number
  std::vector<std::filesystem::path> targets_;
  std::vector<Bytes> whole_;  // of the targets
  std::map<std::string, int> injected_, harmless_;
  std::mt19937_64 random_{83};
};

TEST(StoreFaults, TenThousandOfThemAreMissesOrTypedErrorsAndCostNoEarlierCheckpoint) {
  std::map<std::string, int> injected, harmless;
  for (const bool compress : {false, true}) {
    FaultyStore store(compress);
    store.flip_bits();
    store.tear();
    store.put_others_in_place();
    for (const auto& [kind, count] : store.injected()) {
      injected[kind] += count;
    }
    for (const auto& [kind, count] : store.harmless()) {
      harmless[kind] += count;
    }
  }
  int all = 0;
  for (const auto& [kind, count] : injected) {
    RecordProperty(kind, count);
    all += count;
    // A fault that changes nothing is a bit that a compressed block does not need, or a sector that
    // is what it was.
    EXPECT_LT(harmless[kind], count) << kind;
  }
  EXPECT_EQ(injected.size(), 12U);
  EXPECT_GE(all, 10'000 / kStoreShare);
  for (const char* const kind :
       {"flipped bit before the KV", "truncated", "longer than it was", "another object's file",
        "of another model", "of another version", "missing, or no file"}) {
    EXPECT_EQ(harmless[kind], 0) << kind;
  }
}

}  // namespace
}  // namespace quire::kv_store
