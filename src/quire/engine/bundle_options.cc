#include "quire/engine/bundle_options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quire/base/str.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::engine {
namespace {

// Returns the dtype of a name, which LLMOptions::validate has checked. "auto" follows the files.
tensor::DType compute_dtype(const std::string& name, tensor::DType model_files) {
  if (name == "auto") {  // the CPU has no fp16 arithmetic: fp16 models compute in bf16
    return model_files == tensor::DType::kFloat32 ? tensor::DType::kFloat32
                                                  : tensor::DType::kBFloat16;
  }
  if (name == "float16") {
    return tensor::DType::kFloat16;
  }
  return name == "float32" ? tensor::DType::kFloat32 : tensor::DType::kBFloat16;
}

kernels::WeightFormat weight_format(const std::string& quantize, tensor::DType dtype) {
  if (quantize.empty()) {
    constexpr kernels::WeightFormat kFormats[] = {
        kernels::WeightFormat::kF32, kernels::WeightFormat::kBf16, kernels::WeightFormat::kF16};
    return kFormats[static_cast<std::uint8_t>(dtype)];
  }
  if (quantize == "fp8") {
    return kernels::WeightFormat::kF8;
  }
  return quantize == "q8g32" ? kernels::WeightFormat::kQ8g32 : kernels::WeightFormat::kQ4g32;
}

}  // namespace

std::optional<tensor::KVFormat> coded_kv_format(std::string_view kv_dtype) {
  using tensor::KVFormat;
  for (const KVFormat format : {KVFormat::kInt8, KVFormat::kFp8, KVFormat::kInt4}) {
    if (kv_dtype == tensor::kv_format_name(format, tensor::DType::kFloat32)) {
      return format;
    }
  }
  return std::nullopt;
}

Status check_kv_format(const model::ModelConfig& config, tensor::KVFormat format, bool on_gpu) {
  const auto refused = [&](const std::string& why) {
    return Status{
        ErrorCode::kUnsupported,
        base::str_cat("kv_dtype \"", tensor::kv_format_name(format, tensor::DType::kFloat32),
                      "\" is not there for ", why, "; use kv_dtype=\"auto\"")};
  };
  if (format == tensor::KVFormat::kPlain) {
    return {};
  }
  constexpr std::int32_t kMostCodedDim = 256;  // of a head, on a GPU
  if (on_gpu && config.head_dim > kMostCodedDim) {
    return refused(base::str_cat("heads of more than ", kMostCodedDim, " numbers, as ",
                                 config.family, " has, on a GPU"));
  }
  return {};
}

Result<Formats> choose_formats(const BundleOptions& options, const model::ModelConfig& config) {
  const bool on_gpu = options.placement.accelerator != nullptr;
  const tensor::DType dtype =
      compute_dtype(options.dtype, on_gpu ? tensor::DType::kBFloat16 : config.stored_dtype);
  // "auto": as the weights are, also where those are fp16.
  const auto coded = coded_kv_format(options.kv_dtype);
  const tensor::DType kv =
      coded || options.kv_dtype == "auto" ? dtype : compute_dtype(options.kv_dtype, dtype);
  if (!on_gpu && (dtype == tensor::DType::kFloat16 || kv == tensor::DType::kFloat16)) {
    return {ErrorCode::kUnsupported,
            base::str_cat(dtype == tensor::DType::kFloat16 ? "dtype" : "kv_dtype",
                          " \"float16\" needs a GPU: the CPU computes in float32 or bfloat16")};
  }
  if (!on_gpu && options.quantize == "fp8") {
    return {ErrorCode::kUnsupported,
            "quantize \"fp8\" needs a GPU; on the CPU use \"q8g32\", which is as small"};
  }
  if (on_gpu && dtype == tensor::DType::kFloat32) {
    return {ErrorCode::kUnsupported,
            "a GPU computes in bfloat16 or float16, not in float32; use dtype=\"auto\" or "
            "device=\"cpu\""};
  }
  if (on_gpu && kv != dtype) {
    return {ErrorCode::kUnsupported,
            base::str_cat("on a GPU KV has the type of the weights, which is ",
                          tensor::dtype_name(dtype), "; kv_dtype \"", tensor::dtype_name(kv),
                          "\" is another")};
  }
  const tensor::KVFormat stored = coded.value_or(tensor::KVFormat::kPlain);
  QUIRE_TRY_STATUS(check_kv_format(config, stored, on_gpu));
  return Formats{weight_format(options.quantize, dtype), kv, stored, dtype};
}

model::Placement placement_of(const BundleOptions& options, const Formats& formats) {
  model::Placement placement = options.placement;
  placement.dtype = formats.compute;
  return placement;
}

}  // namespace quire::engine
