// Quantised Hugging Face folders: the numbers of their matrices bit for bit, and logits against
// transformers with those numbers. Oracle: tests/golden/quantised/make_goldens.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "golden.h"
#include "quire/base/json.h"
#include "quire/base/sha256.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/decoder.h"
#include "quire/model/weight_packer.h"
#include "quire/tensor/dtype.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"
#include "runner.h"

namespace quire::model::testing {
namespace {

using kernels::WeightFormat;
using tensor::DType;

// A golden folder, and the format that it is computed in.
struct Variant {
  const char* name;
  WeightFormat format;  // of its quantised matrices
  bool is_exact;        // the packed numbers are the golden ones
  double tolerance;     // rms of logits, in their deviation
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) { return out << variant.name; }

class QuantisedFolder : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override { golden_ = parse_file(folder() / "golden.json"); }
  [[nodiscard]] static std::filesystem::path folder() {
    return std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden/quantised" / GetParam().name;
  }
  [[nodiscard]] base::JsonView golden() const { return golden_; }

  struct Distance {
    double rms = 0, max = 0;
  };
  // Returns the distance of the last rows' logits, in the deviation of the golden ones.
  [[nodiscard]] Distance distance(Decoder& decoder, DType kv_dtype) const {
    double squares = 0, count = 0, max = 0;
    for (const base::JsonView prompt : golden().find("prompts").elements()) {
      Runner runner(decoder, kv_dtype, 32, 8);
      Sequence sequence;
      const auto logits = runner.feed(sequence, numbers<TokenId>(prompt.find("ids")), Rows::kLast);
      const auto wanted = numbers<float>(prompt.find("logits"));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double off = logits[i] - wanted[i];
        squares += off * off;
        count += 1;
        max = std::max(max, std::abs(off));
      }
    }
    const double std = golden().find("std").as_double();
    return {std::sqrt(squares / count) / std, max / std};
  }

 private:
  base::Json golden_;
};

TEST_P(QuantisedFolder, NumbersAreThoseOfNumpyBitForBit) {
  const auto files = weights::ModelFiles::open(folder());
  ASSERT_TRUE(files.ok()) << files.error().message;
  int compared = 0;
  for (const auto [name, wanted] : golden().find("values").members()) {
    const weights::TensorInfo* tensor = files->find(name);
    ASSERT_NE(tensor, nullptr) << name;
    std::vector<float> values(static_cast<std::size_t>(tensor->num_values()));
    // In pieces, as the packer reads them.
    for (std::int64_t row = 0; row < tensor->rows(); row += 7) {
      const std::int64_t rows = std::min<std::int64_t>(7, tensor->rows() - row);
      weights::read_rows(
          *tensor, row, rows,
          std::span(values).subspan(static_cast<std::size_t>(row * tensor->columns()),
                                    static_cast<std::size_t>(rows * tensor->columns())));
    }
    base::FieldHasher hash;
    hash.add_bytes(std::as_bytes(std::span(values)));
    EXPECT_EQ(base::to_hex(hash.finish()), wanted.as_string()) << name;
    ++compared;
  }
  EXPECT_GE(compared, 2);
}

TEST_P(QuantisedFolder, Fp32LogitsAreWithinAThousandthOfTheirDeviation) {
  auto decoder = open_decoder(folder(), device::best_isa(), WeightFormat::kF32);
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  EXPECT_LT(distance(*decoder, DType::kFloat32).max, 1e-3);
}

TEST_P(QuantisedFolder, IsComputedFromItsOwnCodes) {
  for (const device::Isa isa : device::supported_isas()) {
    auto decoder =
        open_decoder(folder(), isa, PackOptions{.format = WeightFormat::kBf16, .keep_codes = true});
    ASSERT_TRUE(decoder.ok()) << decoder.error().message;
    const auto format = static_cast<std::size_t>(GetParam().format);
    EXPECT_GT(decoder->pack_report().layer_bytes_of[format], 0);
    EXPECT_LT(distance(*decoder, DType::kBFloat16).rms, GetParam().tolerance)
        << device::isa_name(isa);
  }
}

// The packed numbers against those that are read.
TEST_P(QuantisedFolder, PackedCodesAreTheSameNumbers) {
  if (!GetParam().is_exact) {
    GTEST_SKIP() << "computed in bf16";
  }
  const auto files = weights::ModelFiles::open(folder());
  ASSERT_TRUE(files.ok()) << files.error().message;
  const auto config = config_from_hf(read_text(folder() / "config.json"), "").value();
  device::ThreadPool pool(2);
  const kernels::KernelContext context = {&kernels::kernels_for(device::best_isa()), &pool};
  PackReport report;
  const auto packed = pack_weights(context, config, *files, {.keep_codes = true}, report);
  ASSERT_TRUE(packed.ok()) << packed.error().message;
  const bool has_experts = !packed->layers[0].experts.empty();
  const kernels::PackedWeights& down =
      has_experts ? packed->layers[0].experts[3].down.weights : packed->layers[0].down.weights;
  const weights::TensorInfo* tensor = files->find(
      has_experts ? "model.layers.0.mlp.experts.down_proj" : "model.layers.0.mlp.down_proj.weight");
  ASSERT_NE(tensor, nullptr);
  std::vector<float> row(static_cast<std::size_t>(down.depth()));
  std::vector<float> wanted(row.size());
  for (std::int64_t i = 0; i < down.columns(); ++i) {
    down.unpack_row(i, row);
    weights::read_rows(*tensor, tensor->rows() - down.columns() + i, 1, wanted);
    ASSERT_EQ(row, wanted) << "row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, QuantisedFolder,
    ::testing::Values(Variant{"gptq", WeightFormat::kQ4g32, true, 0.05},
                      Variant{"gptq_v2_asym", WeightFormat::kQ8g32, true, 0.05},
                      Variant{"gptq_act_order", WeightFormat::kBf16, false, 0.05},
                      Variant{"gptq_8", WeightFormat::kQ8g32, true, 0.05},
                      Variant{"awq", WeightFormat::kQ8g32, true, 0.05},
                      Variant{"packed_4", WeightFormat::kT4g32, true, 0.05},
                      Variant{"packed_4_asym", WeightFormat::kQ8g32, true, 0.05},
                      Variant{"packed_8", WeightFormat::kQ8g32, true, 0.05},
                      Variant{"int8", WeightFormat::kQ8g32, true, 0.08},
                      Variant{"int8_wide", WeightFormat::kF32, true, 0.08},
                      Variant{"fp8_blocks", WeightFormat::kBf16, false, 0.05},
                      Variant{"fp8_channels", WeightFormat::kBf16, false, 0.05},
                      Variant{"mxfp4", WeightFormat::kT4g32, true, 0.05}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::model::testing
