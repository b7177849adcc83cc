// Blocks of small integers, and what their codes stand for. Oracle: gguf-py
// (tests/golden/weights/make_type_goldens.py).
#include "quire/weights/code_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/tensor/code_rows.h"
#include "quire/tensor/dtype.h"
#include "quire/weights/gguf.h"
#include "quire/weights/gguf_types.h"
#include "quire/weights/model_files.h"
#include "quire/weights/test_files.h"

namespace quire::weights {
namespace {

using testing::decoded;
using ::testing::HasSubstr;

const std::filesystem::path kTypesGolden =
    std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / "weights";

class SmallIntegersTest : public ::testing::Test {
 protected:
  ModelFiles files_ = ModelFiles::open(kTypesGolden / "types.gguf").value();
};

TEST_F(SmallIntegersTest, EveryValueEqualsGgufPy) {
  const auto text = base::read_file(kTypesGolden / "types_expected.json").value();
  const boost::json::object expected = boost::json::parse(text).as_object();
  EXPECT_EQ(files_.tensors().size(), expected.size());
  EXPECT_TRUE(files_.unsupported().empty());
  for (const auto& [name, entry] : expected) {
    const TensorInfo* tensor = files_.find({name.data(), name.size()});
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(encoding_name(tensor->encoding), name);
    EXPECT_EQ(boost::json::value_from(tensor->shape), entry.at("shape")) << name;
    const std::vector<float> values = decoded(*tensor);
    const boost::json::array& first = entry.at("first").as_array();
    const std::size_t shown = first.size() / static_cast<std::size_t>(tensor->rows());
    for (std::size_t i = 0; i < first.size(); ++i) {
      const std::size_t at = i / shown * static_cast<std::size_t>(tensor->columns()) + i % shown;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[at]), first[i].to_number<std::uint32_t>())
          << name << " value " << at;
    }
    const auto hash = base::FieldHasher().add_bytes(std::as_bytes(std::span(values))).finish();
    EXPECT_EQ(base::to_hex(hash), entry.at("digest").as_string()) << name;
  }
}

// The codes of all rows of a tensor.
struct Codes {
  explicit Codes(const TensorInfo& tensor)
      : codes(static_cast<std::size_t>(tensor.num_values())),
        scales(codes.size() / 32),
        minimums(scales),
        wide_scales(scales.size()),
        multiples(codes.size() / 16),
        minimum_multiples(multiples) {
    read_codes(tensor, 0, tensor.rows(),
               {codes, scales, minimums, wide_scales, multiples, minimum_multiples});
  }

  // Returns what a code stands for by encoding.h; products of two floats are exact in double.
  [[nodiscard]] double value(CodeKind kind, const tensor::CodeTable* table, std::size_t i) const {
    const double multiple = multiples[i / 16];
    switch (kind) {
      case CodeKind::kFour:
        return double{tensor::fp16_to_float(scales[i / 32])} * (codes[i] - 8);
      case CodeKind::kTable:
        return double{wide_scales[i / 32]} * table->at(codes[i]);
      case CodeKind::kTableHalves:
        return double{wide_scales[i / 32]} * multiple * table->at(codes[i]);
      default:
        return double{tensor::fp16_to_float(scales[i / 32])} * multiple * codes[i] +
               double{tensor::fp16_to_float(minimums[i / 32])} * minimum_multiples[i / 16];
    }
  }

  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales, minimums;
  std::vector<float> wide_scales;
  std::vector<std::int8_t> multiples, minimum_multiples;
};

TEST_F(SmallIntegersTest, CodesWithTheirScalesAreTheValues) {
  int kinds = 0;
  for (const TensorInfo& tensor : files_.tensors()) {
    const CodeKind kind = code_kind(tensor.encoding);
    if (kind == CodeKind::kNone) {
      EXPECT_EQ(tensor.encoding, Encoding::kNVFP4);
      continue;
    }
    ++kinds;
    const bool has_table = kind == CodeKind::kTable || kind == CodeKind::kTableHalves;
    EXPECT_EQ(code_table(tensor) != nullptr, has_table);
    const std::vector<float> values = decoded(tensor);
    const Codes codes(tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(static_cast<float>(codes.value(kind, code_table(tensor), i)), values[i])
          << tensor.name << " value " << i;
    }
  }
  EXPECT_EQ(kinds, 16);
}

// Every type that a file may name: rows that are no whole blocks, and data that is cut.
TEST(GgmlTypes, CutBlocksAreErrorsThatNameTheTensor) {
  int types = 0;
  for (std::uint32_t number = 0; number < 64; ++number) {
    const GgmlType* type = find_ggml_type(number);
    if (type == nullptr || type->block_values == 1) {
      continue;
    }
    ++types;
    const auto values = static_cast<std::uint64_t>(type->block_values);
    for (const std::uint64_t columns : {values / 2, values + 1, values * 2}) {
      testing::GgufBuilder file;
      file.tensor("w", std::vector<std::uint64_t>{columns, 3}, number, 0);
      file.data.resize(static_cast<std::size_t>(type->block_bytes) * 6 - 1);
      const std::string bytes = file.build();
      const auto parsed = GgufFile::parse(testing::bytes_of(bytes), "m.gguf");
      ASSERT_FALSE(parsed.ok()) << type->name << " " << columns;
      EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(parsed.error().message, HasSubstr("\"w\""));
      EXPECT_THAT(parsed.error().message,
                  HasSubstr(columns == values * 2 ? "truncated" : "whose blocks hold"));
    }
  }
  EXPECT_EQ(types, 27);
}

}  // namespace
}  // namespace quire::weights
