#include "quire/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/weights/test_files.h"

namespace quire::weights {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::raw;
using testing::safetensors;

Result<TensorTable> parse_table(std::string_view file) {
  return parse_safetensors(bytes_of(file), "f");
}

TEST(Safetensors, ReadsTensorsInOrderOfTheirData) {
  const auto table =
      parse_table(safetensors(R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                              R"("__metadata__":{"format":"pt"},)"
                              R"("a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}   )",
                              20));
  ASSERT_TRUE(table.ok()) << table.error().message;
  ASSERT_EQ(table->tensors.size(), 2u);
  EXPECT_EQ(table->tensors[0].name, "a");
  EXPECT_EQ(table->tensors[1].name, "b");
  EXPECT_EQ(table->tensors[1].encoding, Encoding::kBF16);
  EXPECT_EQ(table->tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(table->tensors[1].bytes.size(), 12u);
}

TEST(Safetensors, ListsTypesThatItDoesNotDecode) {
  const auto table =
      parse_table(safetensors(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                              R"("new":{"dtype":"F5_NEW","shape":[1],"data_offsets":[8,9]},)"
                              R"("four":{"dtype":"F4","shape":[6],"data_offsets":[9,12]}})",
                              12));
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_TRUE(table->tensors.empty());
  ASSERT_EQ(table->unsupported.size(), 3u);
  EXPECT_EQ(table->unsupported[0].name, "ids");
  EXPECT_EQ(table->unsupported[0].type, "I64");
  EXPECT_EQ(table->unsupported[1].type, "F5_NEW");
}

TEST(Safetensors, AcceptsScalarsEmptyTensorsAndNoTensors) {
  EXPECT_TRUE(parse_table(safetensors("{}")).ok());
  EXPECT_TRUE(
      parse_table(safetensors(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4)).ok());
  EXPECT_TRUE(
      parse_table(safetensors(R"({"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}})")).ok());
}

struct HostileSafetensors {
  const char* what;
  std::string header;
  std::size_t data_bytes;
  const char* message;
};

// Returns one tensor named t with these three fields.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"t":{"dtype":)" + std::string(dtype) + R"(,"shape":)" + std::string(shape) +
         R"(,"data_offsets":)" + std::string(offsets) + "}}";
}

TEST(Safetensors, RefusesHeadersThatLie) {
  const std::string f32 = R"("F32")";
  const HostileSafetensors cases[] = {
      {"not an object", "[]", 0, "not a JSON object"},
      {"empty header", "", 0, "not a JSON object"},
      {"leading space", " {}", 0, "not a JSON object"},
      {"syntax", R"({"t":)", 0, "header"},
      {"trailing text", "{} {}", 0, "header"},
      {"trailing NUL", std::string("{}\0", 3), 0, "header"},
      {"invalid UTF-8", "{\"\xff\":{}}", 0, "header"},
      {"deep nesting", R"({"t":)" + std::string(100000, '['), 0, "header"},
      {"value is a string", R"({"t":"x"})", 0, "holds a string"},
      {"value is a number", R"({"t":1})", 0, "holds a number"},
      {"value is null", R"({"t":null})", 0, "holds null"},
      {"value is an array", R"({"t":[]})", 0, "holds an array"},
      {"metadata of numbers", R"({"__metadata__":{"a":1}})", 0, "holds a number"},
      {"metadata with objects", R"({"__metadata__":{"a":{}}})", 0, "holds an object"},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
      {"unknown field", R"({"t":{"type":"F32"}})", 0, "unknown field \"type\""},
      {"no fields", R"({"t":{}})", 0, "must all be there"},
      {"no shape", R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4, "must all be there"},
      {"field twice", R"({"t":{"dtype":"F32","dtype":"F16"}})", 0, "dtype occurs twice"},
      {"tensor twice",
       R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "\"t\" occurs twice"},
      {"dtype is a number", one("1", "[1]", "[0,4]"), 4, "holds a number"},
      {"shape is a number", one(f32, "1", "[0,4]"), 4, "holds a number"},
      {"shape of strings", one(f32, R"(["1"])", "[0,4]"), 4, "holds a string"},
      {"nested shape", one(f32, "[[1]]", "[0,4]"), 4, "holds an array"},
      {"object in shape", one(f32, "[{}]", "[0,4]"), 4, "holds an object"},
      {"negative size", one(f32, "[-1]", "[0,4]"), 4, "negative number -1"},
      {"two negative sizes", one(f32, "[-1,-1]", "[0,4]"), 4, "negative"},
      {"fractional size", one(f32, "[1.0]", "[0,4]"), 4, "not an integer"},
      {"infinite size", one(f32, "[1e999]", "[0,4]"), 4, "t"},
      {"NaN size", one(f32, "[NaN]", "[0,4]"), 4, "header"},
      {"size of 2^63", one(f32, "[9223372036854775808]", "[0,4]"), 4, "above 2^63"},
      {"size of 2^64", one(f32, "[18446744073709551616]", "[0,4]"), 4, "not an integer"},
      {"product overflows", one(f32, "[4294967296,4294967296]", "[0,4]"), 4, "2^63 bits"},
      {"product wraps to 1", one(f32, "[4294967297,4294967297]", "[0,4]"), 4, "2^63 bits"},
      {"bits overflow", one(f32, "[576460752303423488]", "[0,4]"), 4, "2^63 bits"},
      {"overflow hidden by 0", one(f32, "[4294967296,4294967296,0]", "[0,0]"), 0, "2^63 bits"},
      {"17 dimensions", one(f32, "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4,
       "more than 16"},
      {"one offset", one(f32, "[1]", "[0]"), 4, "two numbers"},
      {"three offsets", one(f32, "[1]", "[0,4,8]"), 4, "more than 2"},
      {"negative offset", one(f32, "[1]", "[-4,0]"), 4, "negative"},
      {"offset of 2^63", one(f32, "[1]", "[9223372036854775808,9223372036854775812]"), 4,
       "above 2^63"},
      {"offset near 2^63", one(f32, "[1]", "[9223372036854775800,9223372036854775804]"), 4,
       "has 4"},
      {"offsets backwards", one(f32, "[1]", "[4,0]"), 4, "backwards"},
      {"offsets beyond the file", one(f32, "[2]", "[0,8]"), 4, "truncated"},
      {"too few bytes", one(f32, "[2]", "[0,4]"), 4, "needs 64 bits"},
      {"too many bytes", one(f32, "[1]", "[0,8]"), 8, "needs 32 bits"},
      {"bytes of an undecoded type", one(R"("I64")", "[1]", "[0,4]"), 4, "needs 64 bits"},
      {"half a byte", one(R"("F4")", "[1]", "[0,1]"), 1, "needs 4 bits"},
      {"gap before", one(f32, "[1]", "[4,8]"), 8, "belong to no tensor"},
      {"bytes behind", one(f32, "[1]", "[0,4]"), 5, "belong to no tensor"},
      {"bytes without tensors", "{}", 1, "belong to no tensor"},
      {"overlap",
       R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "inside tensor"},
      {"equal byte ranges",
       R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("u":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "inside tensor"},
      {"gap between",
       R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("u":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "bytes 4 to 8"},
      {"long name", R"({")" + std::string(70000, 'n') + R"(":{}})", 0, "header"},
  };
  for (const HostileSafetensors& hostile : cases) {
    const auto table = parse_table(safetensors(hostile.header, hostile.data_bytes));
    ASSERT_FALSE(table.ok()) << hostile.what;
    EXPECT_EQ(table.error().code, ErrorCode::kCorrupt) << hostile.what;
    EXPECT_THAT(table.error().message, HasSubstr(hostile.message)) << hostile.what;
    EXPECT_THAT(table.error().message, HasSubstr("f: ")) << hostile.what;
    EXPECT_LT(table.error().message.size(), 1000u) << hostile.what;
  }
}

TEST(Safetensors, RefusesLengthsThatTheFileDoesNotHave) {
  EXPECT_FALSE(parse_table("").ok());
  EXPECT_FALSE(parse_table("1234567").ok());
  for (const std::uint64_t length :
       {std::uint64_t{3}, kMaxSafetensorsHeaderBytes + 1, std::uint64_t{1} << 63, ~std::uint64_t{0},
        ~std::uint64_t{7}}) {
    const auto table = parse_table(raw(length) + "{}");
    ASSERT_FALSE(table.ok()) << length;
    EXPECT_THAT(table.error().message, HasSubstr("header of " + std::to_string(length)));
  }
}

TEST(Safetensors, RefusesAHeaderAboveTheLimitEvenWhenTheFileHasIt) {
  std::string header(kMaxSafetensorsHeaderBytes + 1, ' ');
  header.replace(0, 2, "{}");
  const auto table = parse_table(safetensors(header));
  ASSERT_FALSE(table.ok());
  EXPECT_THAT(table.error().message, HasSubstr("at most 100000000"));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string file = safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                       R"("b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
                                       8);
  ASSERT_TRUE(parse_table(file).ok());
  for (std::size_t size = 0; size < file.size(); ++size) {
    // A copy of its own, so that a sanitizer sees a read beyond the end.
    const std::string cut(file.data(), size);
    EXPECT_FALSE(parse_table(cut).ok()) << size;
  }
}

TEST(Safetensors, EveryFlippedBitIsRefusedOrStaysInBounds) {
  const std::string file =
      safetensors(R"({"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})", 8);
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto table = parse_table(flipped);
    if (!table.ok()) {
      continue;
    }
    for (const TensorInfo& tensor : table->tensors) {
      std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
      read_rows(tensor, 0, tensor.rows(), values);
    }
  }
}

}  // namespace
}  // namespace quire::weights
