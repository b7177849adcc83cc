#include "quire/base/sha256.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire::base {
namespace {

std::string hash_of(std::initializer_list<std::string_view> fields) {
  FieldHasher hasher;
  for (const std::string_view field : fields) {
    hasher.add(field);
  }
  return to_hex(hasher.finish());
}

// Expected values: Python's hashlib over struct.pack("<Q", len(field)) + field.
TEST(FieldHasher, EqualsSha256OverLengthPrefixedFields) {
  EXPECT_EQ(hash_of({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of({""}), "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
  EXPECT_EQ(hash_of({"abc"}), "ce91dc5eec0139adf091900d225971d6ad246a845bad791b5693a9d0d55dd391");
  EXPECT_EQ(hash_of({"ab", "c"}),
            "43ee655579de01ca739b3f95c1c2d3f46d353b2c0df818064ea594506cdb2617");
}

TEST(FieldHasher, BordersOfFieldsCount) {
  EXPECT_NE(hash_of({"ab", "c"}), hash_of({"a", "bc"}));
  EXPECT_NE(hash_of({"abc"}), hash_of({"abc", ""}));
}

TEST(FieldHasher, IntegersAreEightLittleEndianBytes) {
  EXPECT_EQ(to_hex(FieldHasher().add_int(-2).finish()),
            "6d4a2f79fc24ca8aa40c0934df14d907b3082c647da631d78f77572d2e4184d6");
}

TEST(FieldHasher, BytesAndTextOfTheSameContentAreEqual) {
  const std::array<std::byte, 2> bytes = {std::byte{'h'}, std::byte{'i'}};
  EXPECT_EQ(to_hex(FieldHasher().add_bytes(bytes).finish()), hash_of({"hi"}));
}

TEST(ToHex, IsLowerCaseAndTwoDigitsAByte) {
  EXPECT_EQ(to_hex(std::array<std::uint8_t, 3>{0x00, 0xab, 0x1f}), "00ab1f");
  EXPECT_EQ(to_hex({}), "");
}

}  // namespace
}  // namespace quire::base
