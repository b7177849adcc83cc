// Simulates a loss of power. Drops writes that were not synced, each page by itself and in any
// order. Drops new names, renames and removals in folders that were not synced. A store must then
// hold every entry that it acknowledged, and miss the rest.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/test_length.h"
#include "quire/kv_store/crash_test_support.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/test_support.h"
#include "quire/kv_store/trace_test_support.h"

namespace quire::kv_store {
namespace {

constexpr std::size_t kDiskPage = 4096;
constexpr int kNoFile = -4242;  // a descriptor that no process has

// Tells the process that traces this one that `step` was acknowledged.
void acknowledge(mode_t step) { static_cast<void>(::fchmod(kNoFile, step)); }

std::optional<int> acknowledged(const FileCall& call) {
  if (call.number != SYS_fchmod || static_cast<int>(call.arguments[0]) != kNoFile) {
    return std::nullopt;
  }
  return static_cast<int>(call.arguments[1]);
}

// Follows a folder while a traced process changes it, and knows what of it is on the disk for
// certain.
class Disk {
 public:
  // All that is in `root` now is on the disk.
  explicit Disk(std::filesystem::path root) : root_(std::move(root)) {
    look();
    for (const auto& [file, content] : latest_) {
      synced_[file] = content;
    }
    synced_names_ = names_;
  }

  // Call it before each call of the process, in order.
  void see(const FileCall& call) {
    if (syncing_) {  // the call before has returned by now
      sync(*syncing_);
    }
    syncing_.reset();
    look();
    if (call.number == SYS_fsync || call.number == SYS_fdatasync) {
      const std::string opened = "/proc/" + std::to_string(call.process) + "/fd/" +
                                 std::to_string(static_cast<int>(call.arguments[0]));
      struct statx about{};
      if (::statx(AT_FDCWD, opened.c_str(), 0, STATX_INO | STATX_BTIME, &about) == 0) {
        syncing_ = identity(about);
        if (!S_ISDIR(about.stx_mode)) {
          latest_[*syncing_] = bytes_of(opened);
        }
      }
    }
  }

  // Makes in `to` what the disk may hold if the power goes now.
  void lose_power(const std::filesystem::path& to, std::mt19937& random) const {
    std::filesystem::remove_all(to);
    make_folder(identity_of(root_), to, random);
  }

 private:
  using File = std::pair<std::uint64_t, std::int64_t>;  // inode, when it was made
  struct Name {
    File file;
    bool folder = false;
    bool operator==(const Name&) const = default;
  };
  using Names = std::map<std::string, Name>;

  static File identity(const struct statx& about) {
    return {about.stx_ino, about.stx_btime.tv_sec * 1'000'000'000 + about.stx_btime.tv_nsec};
  }
  static File identity_of(const std::filesystem::path& path) {
    struct statx about{};
    EXPECT_EQ(::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &about),
              0)
        << path;
    return identity(about);
  }
  static std::vector<char> bytes_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Reads what the process has left so far, synced or not.
  void look() {
    names_.clear();
    look_into(root_);
  }
  void look_into(const std::filesystem::path& folder) {
    Names& names = names_[identity_of(folder)];
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const Name name = {identity_of(entry.path()), entry.is_directory()};
      names[entry.path().filename()] = name;
      if (name.folder) {
        look_into(entry.path());
      } else {
        latest_[name.file] = bytes_of(entry.path());
      }
    }
  }

  void sync(const File& file) {
    if (names_.contains(file)) {
      synced_names_[file] = names_.at(file);
    } else if (latest_.contains(file)) {
      synced_[file] = latest_.at(file);
    }
  }

  void make_folder(const File& folder, const std::filesystem::path& to,
                   std::mt19937& random) const {
    std::filesystem::create_directory(to);
    const Names synced = names_in(synced_names_, folder), now = names_in(names_, folder);
    std::set<std::string> all;
    for (const Names* names : {&synced, &now}) {
      std::ranges::transform(*names, std::inserter(all, all.end()),
                             [](const auto& entry) { return entry.first; });
    }
    for (const std::string& name : all) {
      const auto& from = random() % 2 == 0 ? synced : now;
      const auto found = from.find(name);
      if (found == from.end()) {
        continue;
      }
      if (found->second.folder) {
        make_folder(found->second.file, to / name, random);
      } else {
        const std::vector<char> bytes = content(found->second.file, random);
        std::ofstream(to / name, std::ios::binary)
            .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      }
    }
  }
  static Names names_in(const std::map<File, Names>& folders, const File& folder) {
    const auto found = folders.find(folder);
    return found == folders.end() ? Names() : found->second;
  }

  // Each page as it was synced last, or as it is now; and so the length.
  std::vector<char> content(const File& file, std::mt19937& random) const {
    const auto synced = synced_.find(file), now = latest_.find(file);
    std::vector<char> bytes = now == latest_.end() ? std::vector<char>() : now->second;
    const std::vector<char> old = synced == synced_.end() ? std::vector<char>() : synced->second;
    if (bytes == old) {
      return bytes;
    }
    const std::size_t size = random() % 2 == 0 ? old.size() : bytes.size();
    for (std::size_t page = 0; page < bytes.size(); page += kDiskPage) {
      if (random() % 2 == 0) {
        const std::size_t end = std::min(page + kDiskPage, bytes.size());
        for (std::size_t i = page; i < end; ++i) {
          bytes[i] = i < old.size() ? old[i] : '\0';
        }
      }
    }
    if (bytes.size() < size) {
      bytes.insert(bytes.end(), old.begin() + static_cast<std::ptrdiff_t>(bytes.size()), old.end());
    }
    bytes.resize(size);
    return bytes;
  }

  std::filesystem::path root_;
  std::map<File, std::vector<char>> latest_, synced_;
  std::map<File, Names> names_, synced_names_;
  std::optional<File> syncing_;  // by the call that the process makes next
};

// Runs `work` and calls `check(folder, step, call)` for states that a loss of power may leave at
// each of its calls. `step` is what was acknowledged last. `root` is the folder that is followed.
template <class Work, class Check>
void lose_power_everywhere(const std::filesystem::path& root, const std::filesystem::path& left,
                           Work work, Check check) {
  const int states = base::test_length(12, 1);
  std::mt19937 random(11);
  Disk disk(root);
  int step = 0, calls = 0;
  const Ended ended = trace(work, [&](const FileCall& call) {
    calls = call.count;
    disk.see(call);
    step = acknowledged(call).value_or(step);
    for (int state = 0; state < states && !::testing::Test::HasFailure(); ++state) {
      SCOPED_TRACE("call " + std::to_string(calls) + ", state " + std::to_string(state));
      disk.lose_power(left, random);
      check(left, step);
    }
    return ::testing::Test::HasFailure();
  });
  if (ended == Ended::kNotTraced) {
    GTEST_SKIP() << "tracing is not allowed here";
  }
  EXPECT_EQ(ended, Ended::kByItself) << "at call " << calls;
  EXPECT_GT(calls, 20);
}

class PowerLoss : public StoreCrash {};

TEST_F(PowerLoss, KeepsWhatWasAcknowledgedAndTheRestIsAMiss) {
  {
    auto store = Store::open(path_);
    ASSERT_TRUE(store.ok() && put(*store, "kept", {0, 1}) && put(*store, "replaced", {1, 2}) &&
                put(*store, "removed", {2, 3}));
  }
  const auto work = [&] {
    auto store = Store::open(path_, {.grace_ms = 0});
    if (!store.ok() || !put(*store, "new", {0, 4, 5})) {
      return false;
    }
    acknowledge(1);
    if (!put(*store, "replaced", {6})) {
      return false;
    }
    acknowledge(2);
    if (!store->remover().remove(test_hash("removed"), "").ok()) {
      return false;
    }
    acknowledge(3);
    return store->collector().gc().ok();
  };
  lose_power_everywhere(path_, folder_.path() / "left", work, [&](const auto& left, int step) {
    auto store = Store::open(left, {.grace_ms = 0});
    ASSERT_TRUE(store.ok()) << store.error().message;
    EXPECT_EQ(read_back(*store, "kept"), (Objects{0, 1}));
    const Objects added = read_back(*store, "new"), replaced = read_back(*store, "replaced"),
                  removed = read_back(*store, "removed");
    EXPECT_TRUE(added == (Objects{0, 4, 5}) || (step < 1 && added.empty()));
    EXPECT_TRUE(replaced == (Objects{6}) || (step < 2 && replaced == (Objects{1, 2})));
    EXPECT_TRUE(removed.empty() || (step < 3 && removed == (Objects{2, 3})));
    expect_no_damage(*store);
    EXPECT_TRUE(put(*store, "after", {7}));
    EXPECT_EQ(read_back(*store, "after"), (Objects{7}));
  });
}

TEST_F(PowerLoss, ANewStoreIsThereOnceItsFirstEntryWasAcknowledged) {
  const auto parent = folder_.path() / "parent";
  std::filesystem::create_directory(parent);
  const auto work = [&] {
    auto store = Store::open(parent / "a" / "store");
    if (!store.ok() || !put(*store, "first", {0})) {
      return false;
    }
    acknowledge(1);
    return put(*store, "second", {1});
  };
  lose_power_everywhere(parent, folder_.path() / "left", work, [&](const auto& left, int step) {
    auto store = Store::open(left / "a" / "store");
    ASSERT_TRUE(store.ok()) << store.error().message;
    const Objects first = read_back(*store, "first");
    EXPECT_TRUE(first == (Objects{0}) || (step < 1 && first.empty()));
    expect_no_damage(*store);
    EXPECT_TRUE(put(*store, "after", {7}));
    EXPECT_EQ(read_back(*store, "after"), (Objects{7}));
  });
}

}  // namespace
}  // namespace quire::kv_store
