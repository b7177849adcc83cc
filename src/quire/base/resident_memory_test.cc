#include "quire/base/resident_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace quire::base {
namespace {

TEST(ResidentMemory, GrowsByWhatIsWritten) {
  const std::int64_t before = resident_bytes();
  EXPECT_GT(before, 1 << 20);
  constexpr std::size_t kBytes = 64 << 20;
  std::vector<char> written(kBytes);
  std::memset(written.data(), 1, written.size());
  EXPECT_GT(resident_bytes(), before + static_cast<std::int64_t>(kBytes / 2));
}

}  // namespace
}  // namespace quire::base
