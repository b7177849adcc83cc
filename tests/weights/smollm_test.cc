// A real model file: all metadata and every decoded value of SmolLM2's GGUF against gguf-py, whose
// answers tests/golden/weights/make_smollm2_expected.py wrote.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/weights/gguf.h"
#include "quire/weights/model_files.h"

namespace quire::weights {
namespace {

namespace json = boost::json;

const std::filesystem::path kRoot = QUIRE_SOURCE_DIR;
const std::filesystem::path kModel = kRoot / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

std::string text_of(const std::string& element) { return element; }
std::string text_of(std::int64_t element) { return std::to_string(element); }

// Returns a value as the script states it: scalars as they are, arrays as [length, digest].
json::value stated(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> json::value {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::vector<std::string>> ||
                      std::is_same_v<Held, std::vector<std::int64_t>>) {
          base::FieldHasher hasher;
          for (const auto& element : held) {
            hasher.add(text_of(element));
          }
          return {held.size(), base::to_hex(hasher.finish())};
        } else if constexpr (std::is_same_v<Held, std::vector<double>> ||
                             std::is_same_v<Held, GgufUnkept>) {
          return "such values do not occur in this model";
        } else {
          return json::value_from(held);
        }
      },
      value);
}

std::string digest(const TensorInfo& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
  read_rows(tensor, 0, tensor.rows(), values);
  return base::to_hex(base::FieldHasher().add_bytes(std::as_bytes(std::span(values))).finish());
}

class SmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) {
      GTEST_SKIP() << "run tools/fetch_smollm.py first";
    }
  }
  static json::object expected(const char* part) {
    const auto text = base::read_file(kRoot / "tests/golden/weights/smollm2_expected.json").value();
    return json::parse(text).at(part).as_object();
  }
};

TEST_F(SmolLM2, MetadataEqualsGgufPy) {
  const auto model_files = ModelFiles::open(kModel);
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  const json::object metadata = expected("metadata");
  EXPECT_EQ(model_files->gguf()->keys().size(), metadata.size());
  for (const auto& [key, value] : metadata) {
    const GgufValue* found = model_files->gguf()->find({key.data(), key.size()});
    ASSERT_NE(found, nullptr) << key;
    EXPECT_EQ(stated(*found), value) << key;
  }
}

TEST_F(SmolLM2, EveryValueOfEveryTensorEqualsGgufPy) {
  const auto model_files = ModelFiles::open(kModel);
  ASSERT_TRUE(model_files.ok()) << model_files.error().message;
  const json::object tensors = expected("tensors");
  EXPECT_EQ(model_files->tensors().size(), tensors.size());
  EXPECT_TRUE(model_files->unsupported().empty());
  for (const TensorInfo& tensor : model_files->tensors()) {
    const json::array& entry = tensors.at(tensor.name).as_array();
    EXPECT_EQ(encoding_name(tensor.encoding), entry[0].as_string()) << tensor.name;
    EXPECT_EQ(json::value_from(tensor.shape), entry[1]) << tensor.name;
    EXPECT_EQ(digest(tensor), entry[2].as_string()) << tensor.name;
  }
}

}  // namespace
}  // namespace quire::weights
