#include "quire/weights/quantisation.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::weights {
namespace {

using base::JsonView;
using base::str_cat;

Error refused(std::string_view method, std::string_view field, JsonView value,
              std::string_view known) {
  return {
      .code = ErrorCode::kUnsupported,
      .message = str_cat("\"quantization_config\" of method ", base::quoted(method), " has ",
                         base::quoted(field), " = ", base::write_json(value),
                         ", which is not implemented; only ", known, known.empty() ? "" : " is")};
}

// Checks a field that has one value, or is absent.
Status expect(JsonView json, std::string_view method, std::string_view field,
              std::string_view wanted) {
  const JsonView value = json.find(field);
  if (value.is_null() || value == base::parse_json(wanted, field).value()) {
    return {};
  }
  return refused(method, field, value, wanted);
}

Result<int> read_bits(JsonView json, std::string_view method, std::string_view field) {
  QUIRE_TRY(const std::int64_t bits, base::get_int(json, field, 4));
  if (bits != 4 && bits != 8) {
    return refused(method, field, json.find(field), "4 or 8");
  }
  return static_cast<int>(bits);
}

Result<std::int64_t> read_group(JsonView json, std::string_view method, std::int64_t absent) {
  QUIRE_TRY(const std::int64_t size, base::get_int(json, "group_size", absent));
  if (size != -1 && (size < 1 || size > (std::int64_t{1} << 20))) {
    return {ErrorCode::kInvalidArgument,
            str_cat("\"quantization_config\" of method ", method, " has \"group_size\" ", size)};
  }
  return size;
}

Result<Quantisation> parse_gptq(JsonView json) {
  constexpr std::string_view kMethod = "gptq";
  Quantisation found{.method = QuantMethod::kGptq};
  QUIRE_TRY(found.bits, read_bits(json, kMethod, "bits"));
  QUIRE_TRY(found.group_size, read_group(json, kMethod, 128));
  QUIRE_TRY(const std::string format, base::get_string(json, "checkpoint_format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    return refused(kMethod, "checkpoint_format", json.find("checkpoint_format"),
                   "\"gptq\" or \"gptq_v2\"");
  }
  found.stored_zero_offset = format == "gptq" ? 1 : 0;
  QUIRE_TRY(found.symmetric, base::get_bool(json, "sym", true));
  QUIRE_TRY_STATUS(expect(json, kMethod, "pack_dtype", "\"int32\""));
  if (const JsonView dynamic = json.find("dynamic"); dynamic.size() > 0) {
    return refused(kMethod, "dynamic", dynamic, "null");
  }
  return found;
}

Result<Quantisation> parse_awq(JsonView json) {
  constexpr std::string_view kMethod = "awq";
  Quantisation found{.method = QuantMethod::kAwq, .bits = 4};
  for (const std::string_view field : {"bits", "w_bit"}) {
    QUIRE_TRY_STATUS(expect(json, kMethod, field, "4"));
  }
  QUIRE_TRY(const bool zero_point, base::get_bool(json, "zero_point", true));
  found.symmetric = !zero_point;
  const JsonView old_group = json.find("q_group_size");
  QUIRE_TRY(const std::int64_t absent, base::get_int(json, "q_group_size", 128));
  QUIRE_TRY(found.group_size, read_group(json, kMethod, old_group.is_null() ? 128 : absent));
  QUIRE_TRY(std::string version, base::get_string(json, "version", "gemm"));
  std::ranges::transform(version, version.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  if (version != "gemm") {
    return refused(kMethod, "version", json.find("version"), "\"gemm\"");
  }
  return found;
}

Result<Quantisation> parse_fp8(JsonView json) {
  constexpr std::string_view kMethod = "fp8";
  Quantisation found{.method = QuantMethod::kFp8};
  QUIRE_TRY_STATUS(expect(json, kMethod, "fmt", "\"e4m3\""));
  const JsonView size = json.find("weight_block_size");
  if (size.is_null()) {
    return found;
  }
  const auto rows = size.is_array() && size.size() == 2 ? size[0].exact<std::int64_t>()
                                                        : std::optional<std::int64_t>();
  const auto columns = rows ? size[1].exact<std::int64_t>() : rows;
  if (!rows || !columns || std::min(*rows, *columns) < 1 ||
      std::max(*rows, *columns) > (std::int64_t{1} << 20)) {
    return {ErrorCode::kInvalidArgument,
            str_cat("\"weight_block_size\" is ", base::write_json(size),
                    "; must be a list of two sizes")};
  }
  found.block_rows = *rows;
  found.block_columns = *columns;
  return found;
}

// Reads the one group of weights of compressed-tensors.
Result<Quantisation> parse_weights(JsonView weights, std::string_view format) {
  constexpr std::string_view kMethod = "compressed-tensors";
  QUIRE_TRY(const std::string type, base::get_string(weights, "type", "int"));
  QUIRE_TRY(const std::string strategy, base::get_string(weights, "strategy", "tensor"));
  Quantisation found;
  if (format == "float-quantized") {
    if (type != "float" || weights.find("num_bits").exact<int>() != 8) {
      return refused(kMethod, "weights", weights, "8 bits of type float");
    }
    found.method = QuantMethod::kFp8;
    if (strategy == "block") {
      QUIRE_TRY(const Quantisation blocks,
                parse_fp8(base::Json::object(
                    {{"weight_block_size", base::Json::copy(weights.find("block_structure"))}})));
      found = blocks;
    }
    return found;
  }
  if (type != "int") {
    return refused(kMethod, "weights", weights, "type int");
  }
  QUIRE_TRY(found.bits, read_bits(weights, kMethod, "num_bits"));
  if (format == "int-quantized" && found.bits != 8) {
    return refused(kMethod, "num_bits", weights.find("num_bits"), "8");
  }
  found.method = format == "int-quantized" ? QuantMethod::kInt8 : QuantMethod::kPacked;
  QUIRE_TRY(found.symmetric, base::get_bool(weights, "symmetric", true));
  if (strategy == "group") {
    QUIRE_TRY(found.group_size, read_group(weights, kMethod, 128));
  } else if (strategy != "channel") {
    return refused(kMethod, "strategy", weights.find("strategy"), "\"group\" or \"channel\"");
  }
  return found;
}

Result<Quantisation> parse_compressed(JsonView json) {
  constexpr std::string_view kMethod = "compressed-tensors";
  constexpr std::array<std::string_view, 3> kFormats = {"pack-quantized", "int-quantized",
                                                        "float-quantized"};
  QUIRE_TRY(const std::string format, base::get_string(json, "format", ""));
  if (std::ranges::find(kFormats, format) == kFormats.end()) {
    return refused(kMethod, "format", json.find("format"),
                   "\"pack-quantized\", \"int-quantized\" or \"float-quantized\"");
  }
  const JsonView sparsity = json.find("sparsity_config");
  if (sparsity.size() > 0 && sparsity.find("format") != base::Json("dense")) {
    return refused(kMethod, "sparsity_config", sparsity, "\"dense\"");
  }
  for (const std::string_view field : {"kv_cache_scheme", "transform_config"}) {
    if (const JsonView value = json.find(field); value.size() > 0) {
      return refused(kMethod, field, value, "null");
    }
  }
  const JsonView groups = json.find("config_groups");
  if (!groups.is_object() || groups.size() != 1) {
    return refused(kMethod, "config_groups", groups, "one group");
  }
  for (const auto [name, group] : groups.members()) {
    return parse_weights(group.find("weights"), format);
  }
  return refused(kMethod, "config_groups", groups, "one group");
}

}  // namespace

Result<std::optional<Quantisation>> parse_quantisation(JsonView config) {
  const JsonView json = config.find("quantization_config");
  if (json.is_null() || json.size() == 0) {
    return std::optional<Quantisation>();
  }
  QUIRE_TRY(const std::string method, base::get_string(json, "quant_method", ""));
  const auto found = [&]() -> Result<Quantisation> {
    if (method == "gptq") {
      return parse_gptq(json);
    }
    if (method == "awq") {
      return parse_awq(json);
    }
    if (method == "fp8") {
      return parse_fp8(json);
    }
    if (method == "mxfp4") {
      return Quantisation{.method = QuantMethod::kMxfp4, .bits = 4, .group_size = 32};
    }
    if (method == "compressed-tensors") {
      return parse_compressed(json);
    }
    return {
        ErrorCode::kUnsupported,
        str_cat("\"quantization_config\" has the method ", base::quoted(method),
                ", which is not implemented; known: awq, compressed-tensors, fp8, gptq, mxfp4")};
  }();
  if (!found.ok()) {
    return found.error();
  }
  return std::optional(*found);
}

}  // namespace quire::weights
