#include "quire/base/home_path.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace quire::base {
namespace {

class HomePath : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const home = std::getenv("HOME");
    before_ = home == nullptr ? "" : home;
  }
  void TearDown() override { ::setenv("HOME", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_F(HomePath, ATildeInFrontIsTheHomeFolder) {
  ::setenv("HOME", "/home/ada", 1);
  EXPECT_EQ(home_path("~"), "/home/ada");
  EXPECT_EQ(home_path("~/models/a"), "/home/ada/models/a");
}

TEST_F(HomePath, AllElseStaysAsItIs) {
  ::setenv("HOME", "/home/ada", 1);
  for (const std::string path : {"", "a/~", "./~", "~ada/x", "/~/x", "preset:tiny"}) {
    EXPECT_EQ(home_path(path), path);
  }
}

TEST_F(HomePath, WithoutHomeTheSystemIsAsked) {
  ::unsetenv("HOME");
  EXPECT_TRUE(home_path("~/x").starts_with('/')) << home_path("~/x");
  EXPECT_TRUE(home_path("~/x").ends_with("/x"));
}

}  // namespace
}  // namespace quire::base
