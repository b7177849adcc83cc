// Parts whose rows are columns of a tensor: the projection of keys of a head, transposed.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "quire/model/tensor_map.h"
#include "quire/model/tensor_part.h"
#include "quire/weights/encoding.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"
#include "quire/weights/test_models.h"

namespace quire::model::latent_testing {
namespace {

// The rows of a quantised tensor have blocks, so they are read whole.
TEST(ColumnsOfATensor, AreReadFromFloatsAndFromBlocks) {
  constexpr std::size_t kLines = 4, kColumns = 64, kCount = 7, kFirst = 29;
  for (const auto& [name, encoding] :
       {std::pair("F32", weights::Encoding::kF32), std::pair("Q8_0", weights::Encoding::kQ8_0)}) {
    weights::testing::RandomBlocks random(5);
    const auto block = static_cast<std::size_t>(random.type(name).block_values);
    std::string bytes;
    for (std::size_t i = 0; i < kLines * kColumns / block; ++i) {
      bytes += random.block(name);
    }
    weights::TensorInfo tensor{.name = "kv_b", .encoding = encoding, .shape = {kLines, kColumns}};
    tensor.bytes = std::as_bytes(std::span(bytes));
    std::vector<float> all(kLines * kColumns);
    weights::read_rows(tensor, 0, kLines, all);
    const TensorPart part{.tensor = &tensor, .rows = kColumns, .lines = 2, .first_line = 1};
    std::vector<float> out(kCount * 2);
    read_parts({&part, 1}, kFirst, kCount, out);
    for (std::size_t row = 0; row < kCount; ++row) {
      for (std::size_t line = 0; line < 2; ++line) {
        EXPECT_EQ(out[row * 2 + line], all[(1 + line) * kColumns + kFirst + row]) << name;
      }
    }
  }
}

}  // namespace
}  // namespace quire::model::latent_testing
