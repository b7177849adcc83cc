#include "quire/base/kv_fingerprint.h"

#include <gtest/gtest.h>

namespace quire::base {
namespace {

TEST(KVFingerprint, EmptyEqualsNothingNotEvenItself) {
  const KVFingerprint empty;
  EXPECT_TRUE(empty.empty());
  EXPECT_FALSE(empty == empty);
}

TEST(KVFingerprint, EqualBytesAreEqualAndOneBitMakesADifference) {
  KVFingerprint first;
  first.bytes[31] = 1;
  KVFingerprint second = first;
  EXPECT_TRUE(first == second);
  second.bytes[0] = 128;
  EXPECT_FALSE(first == second);
}

}  // namespace
}  // namespace quire::base
