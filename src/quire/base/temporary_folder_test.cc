#include "quire/base/temporary_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quire::base {
namespace {

namespace fs = std::filesystem;

TEST(TemporaryFolder, IsNewPrivateAndGoesWithItsContent) {
  fs::path path;
  {
    const TemporaryFolder folder;
    const TemporaryFolder other;
    path = folder.path();
    EXPECT_NE(path, other.path());
    EXPECT_TRUE(fs::is_empty(path));
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    fs::create_directories(path / "deep" / "er");
    std::ofstream(path / "deep" / "er" / "file") << "x";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TemporaryFolder, StandsUnderItsParentOrSaysThatItCouldNotBeMade) {
  const TemporaryFolder parent;
  const TemporaryFolder child(parent.path());
  EXPECT_EQ(child.path().parent_path(), parent.path());
  const TemporaryFolder orphan(parent.path() / "no such folder");
  EXPECT_TRUE(orphan.path().empty());
}

}  // namespace
}  // namespace quire::base
