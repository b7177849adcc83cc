#include "quire/weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/weights/gguf_types.h"
#include "quire/weights/test_files.h"

namespace quire::weights {
namespace {

using testing::bytes_of;
using testing::counted;
using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::raw;

// Type numbers of metadata values.
constexpr std::uint32_t kU8 = 0, kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10;

Result<GgufFile> parse_gguf(std::string_view file) { return GgufFile::parse(bytes_of(file), "f"); }

std::string array(std::uint32_t type, std::uint64_t count, std::string_view elements) {
  return raw(type) + raw(count) + std::string(elements);
}

// Returns the elements of an array that holds an array, that holds another, and so on.
std::string nested_arrays(int levels) {
  std::string value;
  for (int i = 0; i < levels; ++i) {
    value += array(kArray, 1, "");
  }
  return value + array(kU8, 1, "x");
}

// Returns two keys and two tensors, 64 bytes of data.
GgufBuilder good() {
  GgufBuilder file;
  file.key("general.name", kString, counted("tiny"));
  file.key("n", kU32, raw<std::uint32_t>(7));
  file.tensor("a", std::vector<std::uint64_t>{4, 2}, 0, 0);
  file.tensor("b", std::vector<std::uint64_t>{16}, 1, 32);
  file.data.resize(64);
  return file;
}

TEST(Gguf, ReadsKeysAndTensors) {
  const std::string file = good().build();
  const auto gguf = parse_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_THAT(gguf->keys(), ElementsAre("general.name", "n"));
  EXPECT_EQ(gguf->get_string("general.name", "").value(), "tiny");
  EXPECT_EQ(gguf->get_int("n", 0).value(), 7);
  ASSERT_EQ(gguf->tensors().size(), 2u);
  EXPECT_EQ(gguf->tensors()[0].shape, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(gguf->tensors()[1].encoding, Encoding::kF16);
  EXPECT_EQ(gguf->tensors()[1].bytes.size(), 32u);
}

TEST(Gguf, AbsentKeysGiveTheFallbackAndWrongTypesAreNamed) {
  const std::string file = good().build();
  const auto gguf = parse_gguf(file);
  ASSERT_TRUE(gguf.ok());
  EXPECT_EQ(gguf->get_int("absent", -3).value(), -3);
  EXPECT_EQ(gguf->get_double("absent", 0.5).value(), 0.5);
  EXPECT_TRUE(gguf->get_bool("absent", true).value());
  EXPECT_EQ(gguf->get_string("absent", "x").value(), "x");
  EXPECT_EQ(gguf->find_as<std::vector<std::string>>("absent").value(), nullptr);
  const auto wrong = gguf->get_double("n", 0);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(wrong.error().message, HasSubstr("\"n\" is an integer"));
}

TEST(Gguf, Version2IsReadAsVersion3) {
  GgufBuilder file = good();
  file.version = 2;
  EXPECT_TRUE(parse_gguf(file.build()).ok());
}

TEST(Gguf, TypesThatAreNotDecodedAreListedByName) {
  GgufBuilder file;
  file.tensor("k", std::vector<std::uint64_t>{256}, 15, 0);
  file.data.resize(292);
  const std::string bytes = file.build();
  const auto gguf = parse_gguf(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_TRUE(gguf->tensors().empty());
  ASSERT_EQ(gguf->unsupported().size(), 1u);
  EXPECT_EQ(gguf->unsupported()[0].type, "Q8_K");
}

TEST(Gguf, DecodedTypesAgreeWithTheEncodingTable) {
  for (std::uint32_t number = 0; number < 64; ++number) {
    const GgmlType* type = find_ggml_type(number);
    if (type != nullptr && type->encoding) {
      EXPECT_STREQ(type->name, encoding_name(*type->encoding));
      EXPECT_EQ(type->block_values, code_block_values(*type->encoding));
      EXPECT_EQ(type->block_bytes, code_block_bytes(*type->encoding));
    }
  }
}

TEST(Gguf, AlignmentOfTheFileIsObeyed) {
  GgufBuilder file = good();
  file.key("general.alignment", kU32, raw<std::uint32_t>(8));
  EXPECT_TRUE(parse_gguf(file.build(8)).ok());
}

TEST(Gguf, AVocabularyWithoutTensorsMayEndBeforeItsPadding) {
  GgufBuilder file;
  file.key("n", kU8, "\x01");
  EXPECT_TRUE(parse_gguf(file.build(1)).ok());
  EXPECT_TRUE(parse_gguf(file.build(32)).ok());
}

struct HostileGguf {
  const char* what;
  std::function<std::string()> file;
  const char* message;
};

// Returns the good file after `change`.
std::function<std::string()> changed(const std::function<void(GgufBuilder&)>& change) {
  return [change] {
    GgufBuilder file = good();
    change(file);
    return file.build();
  };
}

// Returns the good file with one more key.
std::function<std::string()> with_key(std::uint32_t type, const std::string& value) {
  return changed([=](GgufBuilder& file) { file.key("k", type, value); });
}

// Returns a file of one tensor over 64 bytes.
std::function<std::string()> with_tensor(std::vector<std::uint64_t> sizes, std::uint32_t type,
                                         std::uint64_t offset) {
  return [=] {
    GgufBuilder file;
    file.tensor("t", sizes, type, offset);
    file.data.resize(64);
    return file.build();
  };
}

std::function<std::string()> with_alignment(std::uint32_t alignment) {
  return changed([=](GgufBuilder& file) { file.key("general.alignment", kU32, raw(alignment)); });
}

void expect_refused(std::span<const HostileGguf> cases) {
  for (const HostileGguf& hostile : cases) {
    const std::string file = hostile.file();
    const auto gguf = parse_gguf(file);
    ASSERT_FALSE(gguf.ok()) << hostile.what;
    EXPECT_THAT(gguf.error().message, HasSubstr(hostile.message)) << hostile.what;
    EXPECT_THAT(gguf.error().message, HasSubstr("f: ")) << hostile.what;
  }
}

TEST(Gguf, RefusesHeadersThatLie) {
  const HostileGguf cases[] = {
      {"empty", [] { return std::string(); }, "does not begin with GGUF"},
      {"other magic", [] { return std::string("GGML") + std::string(60, '\0'); },
       "does not begin with GGUF"},
      {"version 0", changed([](GgufBuilder& f) { f.version = 0; }), "version 0"},
      {"version 1", changed([](GgufBuilder& f) { f.version = 1; }), "version 1"},
      {"version 4", changed([](GgufBuilder& f) { f.version = 4; }), "version 4"},
      {"big-endian", changed([](GgufBuilder& f) { f.version = 0x03000000; }), "big-endian"},
      {"2^64 - 1 keys", changed([](GgufBuilder& f) { f.key_count = ~0ULL; }), "keys announced"},
      {"2^63 tensors", changed([](GgufBuilder& f) { f.tensor_count = 1ULL << 63; }),
       "tensors announced"},
      {"one key more", changed([](GgufBuilder& f) { ++f.key_count; }), "f: "},
      {"one tensor more", changed([](GgufBuilder& f) { ++f.tensor_count; }), "f: "},
  };
  expect_refused(cases);
}

TEST(Gguf, RefusesMetadataThatLies) {
  const std::string huge = raw<std::uint64_t>(~0ULL);
  const HostileGguf cases[] = {
      {"empty key", changed([](GgufBuilder& f) { f.key("", kU8, "x"); }), "has 0 bytes"},
      {"long key", changed([](GgufBuilder& f) { f.key(std::string(65536, 'k'), kU8, "x"); }),
       "65536 bytes"},
      {"key twice", changed([](GgufBuilder& f) { f.key("n", kU8, "x"); }), "\"n\" occurs twice"},
      {"key length of 2^64 - 1", changed([&](GgufBuilder& f) {
         ++f.key_count;
         f.keys += huge;
       }),
       "ends inside metadata key 2"},
      {"unknown type", with_key(13, "x"), "unknown value type 13"},
      {"bool of 2", with_key(kBool, "\x02"), "must be 0 or 1"},
      {"string of 2^64 - 1", with_key(kString, huge), "ends inside the value"},
      {"string of 2^63", with_key(kString, raw<std::uint64_t>(1ULL << 63)), "ends inside"},
      {"array of 2^64 - 1", with_key(kArray, array(kU8, ~0ULL, "")), "array of 1844"},
      {"array of 2^61 uint64", with_key(kArray, array(kU64, 1ULL << 61, "")), "array of 2305"},
      {"array of many strings", with_key(kArray, array(kString, 1ULL << 32, "")), "array of 4294"},
      {"array with a cut string", with_key(kArray, array(kString, 2, counted("a") + huge)),
       "ends inside"},
      {"array of a cut array", with_key(kArray, array(kArray, 2, array(kU64, 1, "12345678"))),
       "but only"},
      {"array of 2^60 arrays", with_key(kArray, array(kArray, 1ULL << 60, "")), "array of 1152"},
      {"array of arrays of an unknown type", with_key(kArray, array(kArray, 1, array(99, 1, "x"))),
       "unknown value type 99"},
      {"arrays in many levels", with_key(kArray, nested_arrays(100'000)), "deeper than 16"},
      {"array of an unknown type", with_key(kArray, array(99, 1, "x")), "unknown value type 99"},
      {"array with a bool of 3", with_key(kArray, array(kBool, 2, "\x01\x03")), "not 3"},
  };
  expect_refused(cases);
}

// Publishers write what they like under keys of their own.
TEST(Gguf, PassesOverValuesThatItDoesNotKeepUntilSomebodyAsksForThem) {
  const std::string large = raw<std::uint64_t>((1ULL << 63) + 5);
  GgufBuilder builder = good();
  builder.key("a.large", kU64, large);
  builder.key("a.larges", kArray, array(kU64, 2, raw<std::uint64_t>(7) + large));
  builder.key("a.nested", kArray, array(kArray, 2, array(kU8, 1, "x") + array(kString, 0, "")));
  builder.key("a.behind", kU8, "\x07");
  const std::string file = builder.build();
  const auto gguf = parse_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(gguf->get_int("a.behind", 0).value(), 7);
  EXPECT_THAT(gguf->get_int("a.large", 0).error().message,
              HasSubstr("key \"a.large\" is an integer above 2^63 - 1"));
  EXPECT_THAT(gguf->find_as<std::vector<std::int64_t>>("a.larges").error().message,
              HasSubstr("is an integer above 2^63 - 1"));
  EXPECT_THAT(gguf->get_string("a.nested", "").error().message,
              HasSubstr("\"a.nested\" is an array of arrays"));
}

// Downloads are padded, and llama.cpp looks at no byte behind the last tensor.
TEST(Gguf, TakesBytesBehindTheLastTensor) {
  GgufBuilder builder = good();
  const std::string file = builder.build();
  const std::size_t tensors = parse_gguf(file)->tensors().size();
  for (const std::size_t more : {1U, 31U, 32U, 64U, 5000U}) {
    const std::string padded = file + std::string(more, '\xff');
    const auto gguf = parse_gguf(padded);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    ASSERT_EQ(gguf->tensors().size(), tensors);
    EXPECT_EQ(gguf->tensors().back().bytes.data() + gguf->tensors().back().bytes.size(),
              weights::testing::bytes_of(padded).data() + file.size());
  }
}

TEST(Gguf, RefusesTensorsThatLie) {
  const std::uint64_t half = 1ULL << 32;
  const HostileGguf cases[] = {
      {"unnamed",
       changed([](GgufBuilder& f) { f.tensor("", std::vector<std::uint64_t>{1}, 0, 64); }),
       "name is missing"},
      {"named twice", changed([](GgufBuilder& f) {
         f.tensor("a", std::vector<std::uint64_t>{1}, 0, 64);
         f.data.resize(96);
       }),
       "\"a\" occurs twice"},
      {"no dimension", with_tensor({}, 0, 0), "0 dimensions"},
      {"five dimensions", with_tensor({1, 1, 1, 1, 16}, 0, 0), "5 dimensions"},
      {"size of 2^63", with_tensor({1ULL << 63}, 0, 0), "2^63 bytes"},
      {"size of 2^64 - 1", with_tensor({~0ULL, ~0ULL}, 0, 0), "2^63 bytes"},
      {"product overflows", with_tensor({half, half}, 0, 0), "2^63 bytes"},
      {"product wraps to 1", with_tensor({half + 1, half + 1}, 0, 0), "2^63 bytes"},
      {"bytes overflow", with_tensor({1ULL << 62}, 0, 0), "2^63 bytes"},
      {"overflow hidden by 0", with_tensor({0, half, half}, 0, 0), "2^63 bytes"},
      {"broken block", with_tensor({33}, 8, 0), "rows of 33 values in Q8_0"},
      {"broken block of columns", with_tensor({16, 2}, 2, 0), "rows of 16 values in Q4_0"},
      {"type 4, removed", with_tensor({32}, 4, 0), "ggml type 4"},
      {"type 31, removed", with_tensor({32}, 31, 0), "ggml type 31"},
      {"type 2^32 - 1", with_tensor({32}, ~0U, 0), "ggml type 4294967295"},
      {"offset off the alignment", with_tensor({8}, 0, 4), "multiple of the alignment"},
      {"offset of 2^63", with_tensor({16}, 0, 1ULL << 63), "which has 64"},
      {"offset wraps", with_tensor({16}, 0, ~0ULL - 31), "beyond 2^64"},
      {"beyond the file", with_tensor({32}, 0, 0), "truncated"},
      {"gap before", with_tensor({8}, 0, 32), "belong to no tensor"},
      {"overlap",
       changed([](GgufBuilder& f) { f.tensor("c", std::vector<std::uint64_t>{8}, 0, 32); }),
       "inside tensor"},
      {"gap between", changed([](GgufBuilder& f) {
         f.tensor("c", std::vector<std::uint64_t>{8}, 0, 96);
         f.data.resize(128);
       }),
       "belong to no tensor"},
      {"alignment of 0", with_alignment(0), "power of two"},
      {"alignment of 24", with_alignment(24), "not 24"},
      {"alignment of 2^31", with_alignment(1U << 31), "multiple of the alignment"},
      {"alignment is a string",
       changed([](GgufBuilder& f) { f.key("general.alignment", kString, counted("8")); }),
       "power of two"},
      {"alignment is a float",
       changed([](GgufBuilder& f) { f.key("general.alignment", kF32, raw(8.0f)); }),
       "power of two"},
  };
  expect_refused(cases);
}

TEST(Gguf, EveryTruncationIsRefused) {
  GgufBuilder builder = good();
  builder.key("list", kArray, array(kString, 2, counted("ab") + counted("")));
  builder.key("flags", kArray, array(kBool, 2, std::string("\x01\x00", 2)));
  const std::string file = builder.build();
  ASSERT_TRUE(parse_gguf(file).ok());
  for (std::size_t size = 0; size < file.size(); ++size) {
    // A copy of its own, so that a sanitizer sees a read beyond the end.
    const std::string cut(file.data(), size);
    EXPECT_FALSE(parse_gguf(cut).ok()) << size;
  }
}

TEST(Gguf, EveryFlippedBitIsRefusedOrStaysInBounds) {
  const std::string file = good().build();
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto gguf = parse_gguf(flipped);
    if (!gguf.ok()) {
      continue;
    }
    for (const TensorInfo& tensor : gguf->tensors()) {
      std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
      read_rows(tensor, 0, tensor.rows(), values);
    }
  }
}

TEST(Gguf, ATensorWithoutRowsReadsAsNothingHoweverManyColumnsItStates) {
  const std::uint64_t columns = 1ULL << 62;
  const std::string file = with_tensor({columns, 0}, 0, 0)();
  const auto gguf = parse_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const TensorInfo& tensor = gguf->tensors().back();
  ASSERT_EQ(tensor.columns(), static_cast<std::int64_t>(columns));
  read_rows(tensor, 0, tensor.rows(), {});
  EXPECT_EQ(tensor.num_values(), 0);
}

// A 128k vocabulary with 280k merges parses in milliseconds; the bound leaves room for sanitizers.
TEST(Gguf, LargeVocabulariesParseFast) {
  std::string tokens;
  std::string merges;
  for (int i = 0; i < 128000; ++i) {
    tokens += counted("token" + std::to_string(i));
  }
  for (int i = 0; i < 280000; ++i) {
    merges += counted("left right" + std::to_string(i));
  }
  GgufBuilder file;
  file.key("tokenizer.ggml.tokens", kArray, array(kString, 128000, tokens));
  file.key("tokenizer.ggml.merges", kArray, array(kString, 280000, merges));
  const std::string bytes = file.build();
  const auto start = std::chrono::steady_clock::now();
  const auto gguf = parse_gguf(bytes);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const auto list = gguf->find_as<std::vector<std::string>>("tokenizer.ggml.tokens");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ((*list)->at(127999), "token127999");
  EXPECT_LT(seconds.count(), 2.0);
}

}  // namespace
}  // namespace quire::weights
