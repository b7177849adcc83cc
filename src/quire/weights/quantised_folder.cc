#include "quire/weights/quantised_folder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/divide.h"
#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/encoding.h"
#include "quire/weights/quantisation.h"
#include "quire/weights/quantised_tensor.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {
namespace {

using base::str_cat;
using Shape = std::vector<std::int64_t>;

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
constexpr std::int64_t kMostSide = std::int64_t{1} << 30;  // of a matrix

std::string shown(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += str_cat(text.size() == 1 ? "" : ", ", size);
  }
  return text + "]";
}

Error corrupt(const StoredTensor& tensor, std::string_view what) {
  return {.code = ErrorCode::kCorrupt,
          .message = str_cat("tensor ", base::quoted(tensor.name), " of type ", tensor.type,
                             " and shape ", shown(tensor.shape), " ", what)};
}

StoredTensor stored(const TensorInfo& tensor) {
  return {.name = tensor.name,
          .type = encoding_name(tensor.encoding),
          .shape = tensor.shape,
          .bytes = tensor.bytes,
          .file = tensor.file,
          .offset = tensor.offset};
}

// The tensors of a folder by name, and which of them are parts of a matrix.
struct Tensors {
  std::map<std::string, StoredTensor, std::less<>> by_name;
  std::set<std::string> taken;

  const StoredTensor* find(std::string_view name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : &found->second;
  }
  // Takes a part that must be there, of one of the types.
  Result<StoredTensor> take(const std::string& name, std::span<const std::string_view> types) {
    const StoredTensor* tensor = find(name);
    if (tensor == nullptr) {
      return {ErrorCode::kCorrupt, str_cat("tensor ", base::quoted(name), " is missing")};
    }
    if (std::ranges::find(types, tensor->type) == types.end()) {
      return corrupt(*tensor, str_cat("must be of type ", types.front()));
    }
    taken.insert(name);
    return *tensor;
  }
};

constexpr std::array<std::string_view, 1> kWords = {"I32"};
constexpr std::array<std::string_view, 1> kBytes = {"U8"};
constexpr std::array<std::string_view, 1> kSigned = {"I8"};
constexpr std::array<std::string_view, 1> kE4m3 = {"F8_E4M3"};
constexpr std::array<std::string_view, 1> kLongs = {"I64"};
constexpr std::array<std::string_view, 3> kFloats = {"F16", "BF16", "F32"};

Status expect_shape(const StoredTensor& tensor, const Shape& wanted) {
  if (tensor.shape == wanted) {
    return {};
  }
  return corrupt(tensor, str_cat("must have shape ", shown(wanted)));
}

// Checks that a tensor is a matrix of sides from 1 on.
Status expect_matrix(const StoredTensor& tensor, std::size_t dimensions = 2) {
  if (tensor.shape.size() != dimensions || std::ranges::any_of(tensor.shape, [](std::int64_t size) {
        return size < 1 || size > kMostSide;
      })) {
    return corrupt(tensor, str_cat("must have ", dimensions, " sides, each of 1 or more"));
  }
  return {};
}

// Reads the group of each input, if the inputs do not follow each other.
Status read_groups(const StoredTensor& indices, QuantisedTensor::Parts& parts) {
  QUIRE_TRY_STATUS(expect_shape(indices, {parts.columns}));
  std::vector<std::int32_t> groups(static_cast<std::size_t>(parts.columns));
  read_bytes(indices, 0, std::as_writable_bytes(std::span(groups)));
  bool in_order = true;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] < 0 || groups[i] >= parts.num_groups) {
      return corrupt(indices, str_cat("holds group ", groups[i], " for input ", i, "; there are ",
                                      parts.num_groups));
    }
    in_order =
        in_order && std::cmp_equal(groups[i], static_cast<std::int64_t>(i) / parts.group_size);
  }
  if (!in_order) {
    parts.groups = std::move(groups);
  }
  return {};
}

Status set_groups(const Quantisation& how, const StoredTensor& codes,
                  QuantisedTensor::Parts& parts) {
  if (parts.columns > kMostSide || parts.rows > kMostSide) {
    return corrupt(codes, "holds more than 2^30 inputs or outputs");
  }
  parts.group_size = how.group_size == -1 ? parts.columns : how.group_size;
  parts.num_groups = base::divide_up(parts.columns, parts.group_size);
  return {};
}

// Takes the parts of a matrix of GPTQ or AWQ, whose inputs are the rows of its tensors.
Result<QuantisedTensor::Parts> take_by_inputs(const Quantisation& how, const std::string& stem,
                                              Tensors& tensors) {
  const bool is_awq = how.method == QuantMethod::kAwq;
  const std::int64_t per_word = 32 / how.bits;
  QuantisedTensor::Parts parts;
  QUIRE_TRY(parts.codes, tensors.take(stem + ".qweight", kWords));
  QUIRE_TRY(parts.scales, tensors.take(stem + ".scales", kFloats));
  QUIRE_TRY(parts.zeros, tensors.take(stem + ".qzeros", kWords));
  QUIRE_TRY_STATUS(expect_matrix(parts.codes));
  parts.columns = parts.codes.shape[0] * (is_awq ? 1 : per_word);
  parts.rows = parts.codes.shape[1] * (is_awq ? per_word : 1);
  QUIRE_TRY_STATUS(set_groups(how, parts.codes, parts));
  if (parts.rows % per_word != 0) {
    return corrupt(parts.codes, str_cat("has outputs that do not fill words of ", per_word));
  }
  QUIRE_TRY_STATUS(expect_shape(parts.scales, {parts.num_groups, parts.rows}));
  QUIRE_TRY_STATUS(expect_shape(parts.zeros, {parts.num_groups, parts.rows / per_word}));
  if (!is_awq && tensors.find(stem + ".g_idx") != nullptr) {
    QUIRE_TRY(const StoredTensor indices, tensors.take(stem + ".g_idx", kWords));
    QUIRE_TRY_STATUS(read_groups(indices, parts));
  }
  return parts;
}

// Checks "weight_shape" against the packed codes, and takes the number of inputs from it.
Status read_packed_shape(const StoredTensor& shape, QuantisedTensor::Parts& parts,
                         std::int64_t per_word) {
  QUIRE_TRY_STATUS(expect_shape(shape, {2}));
  std::array<std::int64_t, 2> sizes = {};
  read_bytes(shape, 0, std::as_writable_bytes(std::span(sizes)));
  if (sizes[0] != parts.rows || sizes[1] < 1 || sizes[1] > kMostSide ||
      base::divide_up(sizes[1], per_word) != parts.codes.shape[1]) {
    return corrupt(shape, str_cat("says ", shown({sizes[0], sizes[1]}), ", which ",
                                  base::quoted(parts.codes.name), " of shape ",
                                  shown(parts.codes.shape), " does not hold"));
  }
  parts.columns = sizes[1];
  return {};
}

// Takes the parts of a matrix of compressed-tensors in words.
Result<QuantisedTensor::Parts> take_packed(const Quantisation& how, const std::string& stem,
                                           Tensors& tensors) {
  const std::int64_t per_word = 32 / how.bits;
  QuantisedTensor::Parts parts;
  QUIRE_TRY(parts.codes, tensors.take(stem + ".weight_packed", kWords));
  QUIRE_TRY(parts.scales, tensors.take(stem + ".weight_scale", kFloats));
  QUIRE_TRY_STATUS(expect_matrix(parts.codes));
  parts.rows = parts.codes.shape[0];
  parts.columns = parts.codes.shape[1] * per_word;
  if (tensors.find(stem + ".weight_shape") != nullptr) {
    QUIRE_TRY(const StoredTensor shape, tensors.take(stem + ".weight_shape", kLongs));
    QUIRE_TRY_STATUS(read_packed_shape(shape, parts, per_word));
  }
  QUIRE_TRY_STATUS(set_groups(how, parts.codes, parts));
  QUIRE_TRY_STATUS(expect_shape(parts.scales, {parts.rows, parts.num_groups}));
  if (tensors.find(stem + ".weight_zero_point") != nullptr) {
    QUIRE_TRY(parts.zeros, tensors.take(stem + ".weight_zero_point", kWords));
    QUIRE_TRY_STATUS(
        expect_shape(parts.zeros, {base::divide_up(parts.rows, per_word), parts.num_groups}));
  } else if (!how.symmetric) {
    return corrupt(parts.codes, "has no \"weight_zero_point\" beside it, but is not symmetric");
  }
  if (tensors.find(stem + ".weight_g_idx") != nullptr) {
    QUIRE_TRY(const StoredTensor indices, tensors.take(stem + ".weight_g_idx", kWords));
    QUIRE_TRY_STATUS(read_groups(indices, parts));
  }
  return parts;
}

// Takes a matrix of int8 with a scale for each output.
Result<QuantisedTensor::Parts> take_int8(const Quantisation& /*how*/, const std::string& stem,
                                         Tensors& tensors) {
  QuantisedTensor::Parts parts;
  QUIRE_TRY(parts.codes, tensors.take(stem + ".weight", kSigned));
  QUIRE_TRY(parts.scales, tensors.take(stem + ".weight_scale", kFloats));
  QUIRE_TRY_STATUS(expect_matrix(parts.codes));
  parts.rows = parts.codes.shape[0];
  parts.columns = parts.codes.shape[1];
  parts.group_size = parts.columns;
  parts.num_groups = 1;
  QUIRE_TRY_STATUS(expect_shape(parts.scales, {parts.rows, 1}));
  if (tensors.find(stem + ".weight_zero_point") != nullptr) {
    QUIRE_TRY(parts.zeros, tensors.take(stem + ".weight_zero_point", kSigned));
    QUIRE_TRY_STATUS(expect_shape(parts.zeros, {parts.rows, 1}));
  }
  return parts;
}

// Takes a matrix of e4m3. Its scales are of blocks, of outputs or of the whole.
Result<QuantisedTensor::Parts> take_fp8(const Quantisation& how, const std::string& stem,
                                        Tensors& tensors) {
  QuantisedTensor::Parts parts;
  QUIRE_TRY(parts.codes, tensors.take(stem + ".weight", kE4m3));
  const bool has_inverse = tensors.find(stem + ".weight_scale_inv") != nullptr;
  QUIRE_TRY(parts.scales,
            tensors.take(stem + (has_inverse ? ".weight_scale_inv" : ".weight_scale"), kFloats));
  QUIRE_TRY_STATUS(expect_matrix(parts.codes));
  parts.rows = parts.codes.shape[0];
  parts.columns = parts.codes.shape[1];
  if (how.block_rows > 0) {
    parts.block_rows = how.block_rows;
    parts.group_size = how.block_columns;
    parts.num_groups = base::divide_up(parts.columns, parts.group_size);
    QUIRE_TRY_STATUS(expect_shape(
        parts.scales, {base::divide_up(parts.rows, parts.block_rows), parts.num_groups}));
    return parts;
  }
  parts.group_size = parts.columns;
  parts.num_groups = 1;
  const bool is_whole = parts.scales.shape.empty() || parts.scales.shape == Shape{1};
  parts.block_rows = is_whole ? 0 : 1;
  if (!is_whole && parts.scales.shape != Shape{parts.rows}) {
    QUIRE_TRY_STATUS(expect_shape(parts.scales, {parts.rows, 1}));
  }
  if (tensors.find(stem + ".input_scale") != nullptr) {
    tensors.taken.insert(stem + ".input_scale");  // of activations, which stay what they are
  }
  return parts;
}

// Takes a stack of matrices in MXFP4: codes [..., groups, 16] and scales [..., groups].
Result<QuantisedTensor::Parts> take_mxfp4(const Quantisation& /*how*/, const std::string& stem,
                                          Tensors& tensors) {
  constexpr std::int64_t kGroupBytes = 16;
  QuantisedTensor::Parts parts;
  QUIRE_TRY(parts.codes, tensors.take(stem + "_blocks", kBytes));
  QUIRE_TRY(parts.scales, tensors.take(stem + "_scales", kBytes));
  QUIRE_TRY_STATUS(expect_matrix(parts.codes, 4));
  const Shape& shape = parts.codes.shape;
  if (shape[3] != kGroupBytes) {
    return corrupt(parts.codes, "must have groups of 16 bytes");
  }
  QUIRE_TRY_STATUS(expect_shape(parts.scales, {shape[0], shape[1], shape[2]}));
  parts.group_size = 2 * kGroupBytes;
  parts.num_groups = shape[2];
  parts.columns = shape[2] * parts.group_size;
  parts.rows = shape[0] * shape[1];
  return parts;
}

// How one method names the codes of a matrix, and takes its parts.
struct Method {
  std::string_view ending;      // of the name of the codes
  std::string_view type;        // of the codes
  std::string_view new_ending;  // of the name of the matrix
  Result<QuantisedTensor::Parts> (*take)(const Quantisation&, const std::string&, Tensors&);
};

Method method_of(QuantMethod method) {
  switch (method) {
    case QuantMethod::kFp8:
      return {".weight", "F8_E4M3", ".weight", take_fp8};
    case QuantMethod::kMxfp4:
      return {"_blocks", "U8", "", take_mxfp4};
    case QuantMethod::kPacked:
      return {".weight_packed", "", ".weight", take_packed};
    case QuantMethod::kInt8:
      return {".weight", "I8", ".weight", take_int8};
    case QuantMethod::kAwq:
    case QuantMethod::kGptq:
      break;
  }
  return {".qweight", "", ".weight", take_by_inputs};
}

Encoding encoding_of(const Quantisation& how) {
  switch (how.method) {
    case QuantMethod::kFp8:
      return Encoding::kFP8;
    case QuantMethod::kMxfp4:
      return Encoding::kMXFP4Blocks;
    case QuantMethod::kPacked:
      return how.bits == 4 ? Encoding::kPacked4 : Encoding::kPacked8;
    case QuantMethod::kInt8:
      return Encoding::kINT8;
    case QuantMethod::kAwq:
      return Encoding::kAWQ;
    case QuantMethod::kGptq:
      break;
  }
  return how.bits == 4 ? Encoding::kGPTQ4 : Encoding::kGPTQ8;
}

// Returns the shape of the matrix, whose columns are the inputs.
Shape shape_of(const QuantisedTensor::Parts& parts) {
  if (parts.codes.shape.size() == 4) {
    return {parts.codes.shape[0], parts.codes.shape[1], parts.columns};
  }
  return {parts.rows, parts.columns};
}

Result<std::optional<Quantisation>> read_config(const std::string& file) {
  std::error_code failure;
  if (!std::filesystem::exists(file, failure)) {
    return std::optional<Quantisation>();
  }
  QUIRE_TRY(const std::string text, base::read_file(file, kMaxConfigBytes));
  QUIRE_TRY(const base::Json config, base::parse_model_object(text, "config.json"));
  const base::JsonView whole = config;
  const bool is_inside = whole.find("quantization_config").is_null();
  return parse_quantisation(is_inside ? whole.find("text_config") : whole);
}

void erase_taken(const std::set<std::string>& taken, TensorTable& table) {
  const auto is_taken = [&](const auto& tensor) { return taken.contains(tensor.name); };
  std::erase_if(table.tensors, is_taken);
  std::erase_if(table.unsupported, is_taken);
}

}  // namespace

Status QuantisedFolder::combine(const std::string& config_file, TensorTable& table) {
  QUIRE_TRY(const auto how, read_config(config_file));
  return how ? combine(*how, table) : Status();
}

Status QuantisedFolder::combine(const Quantisation& how, TensorTable& table) {
  Tensors tensors;
  for (const TensorInfo& tensor : table.tensors) {
    tensors.by_name.emplace(tensor.name, stored(tensor));
  }
  for (const StoredTensor& tensor : table.unsupported) {
    tensors.by_name.emplace(tensor.name, tensor);
  }
  const Method method = method_of(how.method);
  std::vector<TensorInfo> made;
  for (const auto& [name, codes] : tensors.by_name) {
    if (!name.ends_with(method.ending) || (!method.type.empty() && codes.type != method.type)) {
      continue;
    }
    const std::string stem = name.substr(0, name.size() - method.ending.size());
    QUIRE_TRY(QuantisedTensor::Parts parts, method.take(how, stem, tensors));
    TensorInfo& matrix = made.emplace_back(TensorInfo{.name = stem + std::string(method.new_ending),
                                                      .encoding = encoding_of(how),
                                                      .shape = shape_of(parts),
                                                      .bytes = parts.codes.bytes,
                                                      .file = parts.codes.file,
                                                      .offset = parts.codes.offset});
    if (matrix.name != name && tensors.find(matrix.name) != nullptr) {
      return corrupt(codes, str_cat("stands beside ", base::quoted(matrix.name)));
    }
    tensors_.push_back(std::make_unique<QuantisedTensor>(how, std::move(parts), *loaded_));
    matrix.reader = tensors_.back().get();
  }
  erase_taken(tensors.taken, table);
  std::ranges::move(made, std::back_inserter(table.tensors));
  return {};
}

}  // namespace quire::weights
