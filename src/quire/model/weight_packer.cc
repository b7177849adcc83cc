#include "quire/model/weight_packer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/arena.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/pack_options.h"
#include "quire/model/tensor_map.h"
#include "quire/model/tensor_part.h"
#include "quire/result.h"
#include "quire/tensor/code_rows.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

using kernels::PackedPart;
using kernels::PackedWeights;
using kernels::WeightFormat;
using weights::TensorInfo;

Status check_memory(const PackedWeights& weights) {
  if (weights.data() != nullptr) {
    return {};
  }
  return Error{.code = ErrorCode::kOutOfBlocks,
               .message = base::str_cat(
                   "no memory for a weight matrix of ",
                   base::format_bytes(static_cast<std::int64_t>(weights.size_bytes())), " in ",
                   kernels::format_name(weights.format()), "; choose a smaller model or quantize"),
               .needed_bytes = static_cast<std::int64_t>(weights.size_bytes())};
}

// Returns the storage of packed matrices: side by side, or one by one where a sink takes them and
// each is let go.
device::Arena storage_for(const WeightSink* sink) {
  constexpr std::size_t kChunkBytes = std::size_t{256} << 20;
  return device::Arena(sink == nullptr ? kChunkBytes : 0);
}

// Counts what has been packed, and hands it on.
class Tally {
 public:
  Tally(PackReport& report, WeightSink* sink) : report_(report), sink_(sink) {}

  Status matrix(const WeightId& id, PackedWeights& weights) {
    const auto bytes = static_cast<std::int64_t>(weights.size_bytes());
    report_.packed_bytes += bytes;
    if (id.role == WeightRole::kHead) {
      report_.head_bytes += bytes;
      report_.head_format = weights.format();
    } else if (id.role != WeightRole::kEmbedding && id.role != WeightRole::kLayerEmbedding) {
      report_.layer_bytes += bytes;
      report_.layer_bytes_of[static_cast<std::size_t>(weights.format())] += bytes;
      report_.expert_bytes += id.expert >= 0 ? bytes : 0;
    }
    return hand_on(id, weights);
  }

  Status vector(const WeightId& id, std::vector<float>& values) {
    report_.packed_bytes += static_cast<std::int64_t>(values.size() * sizeof(float));
    return hand_on(id, values);
  }

  // Notes the layers' main format, once all are there.
  void finish() {
    const auto& bytes = report_.layer_bytes_of;
    report_.main_format =
        static_cast<WeightFormat>(std::ranges::max_element(bytes) - bytes.begin());
  }

 private:
  template <class Weights>
  Status hand_on(const WeightId& id, Weights& weights) {
    if (sink_ != nullptr) {
      QUIRE_TRY_STATUS(sink_->take(id, weights));
      weights = Weights();
    }
    return {};
  }

  PackReport& report_;
  WeightSink* sink_;
};

// The format that tensors are computed in without being expanded.
struct OwnFormat {
  bool quantised = false;  // nothing below counts otherwise
  bool has_codes = false;  // all of them move over as they lie
  WeightFormat format = WeightFormat::kQ8g32;
  const tensor::CodeTable* table = nullptr;  // of formats with a table
};

// Returns the format that holds codes of a kind as they lie; nothing for those that none holds.
std::optional<WeightFormat> format_of(weights::CodeKind kind) {
  using weights::CodeKind;
  switch (kind) {
    case CodeKind::kNone:
      return std::nullopt;
    case CodeKind::kEight:
      return WeightFormat::kQ8g32;
    case CodeKind::kFour:
      return WeightFormat::kQ4g32;
    case CodeKind::kFourMinimum:
      return WeightFormat::kQ4m32;
    case CodeKind::kTable:
      return WeightFormat::kT4g32;
    case CodeKind::kTableHalves:
      return WeightFormat::kT4g16;
    case CodeKind::kTwoMinimum:
      return WeightFormat::kQ2m16;
  }
  return std::nullopt;
}

// Tells whether a tensor has values that some format of codes holds. Others in several tensors are
// expanded as they are.
bool has_own_format(const TensorInfo& tensor) {
  return tensor.encoding >= weights::Encoding::kQ8_0 &&
         (tensor.reader == nullptr || weights::code_kind(tensor) != weights::CodeKind::kNone);
}

// Returns the format in which a matrix is computed without being expanded. Tensors of one matrix
// that differ are quantised again, to 8 bits, and so are encodings whose codes no format has (Q5_1,
// Q5_K, Q6_K, NVFP4). That adds at most half a step and the rounding of its scale to fp16, 1/254 +
// 1/2048 of a group's largest weight. Tensors of Hugging Face folders are expanded instead.
OwnFormat own_format(WeightRole role, std::span<const TensorPart> parts) {
  const auto is_of_columns = [](const TensorPart& part) { return part.lines != 0; };
  if (is_router(role) || std::ranges::any_of(parts, is_of_columns)) {
    return {};
  }
  const TensorInfo& first = *parts.front().tensor;
  const auto is_quantised = [](const TensorPart& part) { return has_own_format(*part.tensor); };
  const auto is_alike = [&](const TensorPart& part) {
    return weights::code_kind(*part.tensor) == weights::code_kind(first) &&
           weights::code_table(*part.tensor) == weights::code_table(first);
  };
  OwnFormat own = {.quantised = std::ranges::all_of(parts, is_quantised)};
  const auto format = format_of(weights::code_kind(first));
  own.has_codes = own.quantised && format && std::ranges::all_of(parts, is_alike);
  if (!own.has_codes && first.reader != nullptr) {
    return {};
  }
  if (own.has_codes) {
    own.format = *format;
    own.table = weights::code_table(first);
  }
  return own;
}

// Returns the largest value that a quantised format holds; nothing for floats, which hold
// everything. Scales of groups are fp16, those of fp8 fp32.
std::optional<float> largest_of(WeightFormat format) {
  constexpr float kLargestScale = 65504.0f;
  switch (format) {
    case WeightFormat::kQ8g32:
      return 127.0f * kLargestScale;
    case WeightFormat::kQ4g32:
      return 8.0f * kLargestScale;
    case WeightFormat::kF8:
      return std::numeric_limits<float>::max();
    default:
      return std::nullopt;
  }
}

// A NaN would be lost beside the largest value of its group.
bool fits(WeightFormat format, std::span<const float> values) {
  const auto largest = largest_of(format);
  if (!largest) {
    return true;
  }
  std::uint32_t highest = 0;  // largest number as bits: below infinity and NaN
  for (const float value : values) {
    highest = std::max(highest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  }
  return highest <= std::bit_cast<std::uint32_t>(*largest);
}

// Names the first value of the parts that does not fit.
Error misfit(std::span<const TensorPart> parts, WeightFormat format) {
  for (const TensorPart& part : parts) {
    std::vector<float> row(static_cast<std::size_t>(part.tensor->columns()));
    for (std::int64_t i = 0; i < part.tensor->rows(); ++i) {
      weights::read_rows(*part.tensor, i, 1, row);
      const auto found =
          std::ranges::find_if(row, [=](const float& x) { return !fits(format, {&x, 1}); });
      if (found != row.end()) {
        return {.code = ErrorCode::kCorrupt,
                .message = base::str_cat("tensor ", base::quoted(part.tensor->name), " holds ",
                                         *found, " in row ", i, ", which ",
                                         kernels::format_name(format), " cannot express")};
      }
    }
  }
  return {.code = ErrorCode::kInternal, .message = "a weight that did not fit fits now"};
}

// Describes how one tensor of a matrix is kept in that format.
std::string described(const OwnFormat& own, const TensorInfo& tensor) {
  if (!own.quantised && tensor.reader != nullptr) {
    return "expanded";
  }
  if (!own.quantised) {
    return "expanded, as a part of the same matrix is not quantised";
  }
  const std::string format = kernels::format_name(own.format);
  if (!own.has_codes) {
    return format + ", within 1/225 of each group's largest weight";
  }
  return format +
         (tensor.encoding == weights::Encoding::kQ4_K ? ", scales within 1/2048" : ", unchanged");
}

// Visitor that says of each quantised tensor what Packer makes of it.
class Describer {
 public:
  Describer(const TensorMap& map, std::map<std::string, std::string>& computed)
      : map_(map), computed_(computed) {}

  Status matrix(const WeightId& id, const PackedWeights& /*weights*/, std::int64_t columns,
                std::int64_t depth) {
    QUIRE_TRY(const auto parts, map_.find(id, columns, depth));
    const OwnFormat own = own_format(id.role, parts);
    for (const TensorPart& part : parts) {
      if (part.tensor->encoding >= weights::Encoding::kQ8_0) {
        computed_[part.tensor->name] = described(own, *part.tensor);
      }
    }
    return {};
  }
  static Status vector(const WeightId& /*id*/, const std::vector<float>& /*values*/,
                       std::int64_t /*size*/) {
    return {};
  }

 private:
  const TensorMap& map_;
  std::map<std::string, std::string>& computed_;
};

// Visitor that adds up the bytes of what Packer makes of it.
struct Sizer {
  const ModelConfig& config;
  const TensorMap& map;
  WeightFormat format;  // format of weights that are not quantised
  std::int64_t total = 0;

  Status matrix(const WeightId& id, const PackedWeights& /*weights*/, std::int64_t columns,
                std::int64_t depth) {
    QUIRE_TRY(const auto parts, map.find(id, columns, depth));
    const OwnFormat own = own_format(id.role, parts);
    const WeightFormat packed = own.quantised ? own.format : weight_format(config, id.role, format);
    total += kernels::packed_bytes(packed, columns, depth).value_or(0);
    return {};
  }
  Status vector(const WeightId& /*id*/, const std::vector<float>& /*values*/, std::int64_t size) {
    total += size * static_cast<std::int64_t>(sizeof(float));
    return {};
  }
};

// Visitor that fills weights from the tensors of model files.
class Packer {
 public:
  Packer(const kernels::KernelContext& context, const ModelConfig& config,
         const weights::ModelFiles& model_files, const PackOptions& options, PackReport& report)
      : context_(context),
        config_(config),
        model_files_(model_files),
        options_(options),
        report_(report),
        tally_(report, options.sink),
        map_(config, model_files),
        storage_(storage_for(options.sink)) {}

  Status matrix(const WeightId& id, PackedWeights& weights, std::int64_t columns,
                std::int64_t depth) {
    QUIRE_TRY(const auto parts, map_.find(id, columns, depth));
    const OwnFormat own = options_.keep_codes ? own_format(id.role, parts) : OwnFormat{};
    const WeightFormat format =
        own.quantised ? own.format : weight_format(config_, id.role, options_.format);
    std::atomic<bool> all_fit = true;
    const auto rows = [&](std::int64_t first, std::int64_t count, std::span<float> out) {
      read_parts(parts, first, count, out);
      if (!fits(format, out)) {
        all_fit = false;
      }
    };
    if (own.has_codes) {
      weights = PackedWeights::pack_codes(
          context_, format, columns, depth,
          {.read = [&](std::int64_t first, std::int64_t count,
                       const tensor::CodeRows& out) { read_part_codes(parts, first, count, out); },
           .table = own.table == nullptr ? tensor::CodeTable{} : *own.table},
          &storage_);
    } else {
      weights = PackedWeights::pack(context_, format, columns, depth, rows, &storage_);
    }
    if (own.has_codes && std::ranges::any_of(parts, [](const TensorPart& part) {
          return weights::has_misfits(*part.tensor);
        })) {
      weights = PackedWeights::pack(context_, WeightFormat::kF32, columns, depth, rows, &storage_);
    }
    QUIRE_TRY_STATUS(check_memory(weights));
    QUIRE_TRY_STATUS(model_files_.check_whole());
    if (!all_fit) {
      return misfit(parts, format);
    }
    finish(parts);
    return tally_.matrix(id, weights);
  }

  Status vector(const WeightId& id, std::vector<float>& values, std::int64_t size) {
    QUIRE_TRY(const auto parts, map_.find(id, size, 0));
    values = read_vectors(parts);
    map_.finish_vector(id, values);
    QUIRE_TRY_STATUS(model_files_.check_whole());
    finish(parts);
    return tally_.vector(id, values);
  }

  void finish() { tally_.finish(); }

 private:
  void finish(std::span<const TensorPart> parts) {
    for (const TensorPart& part : parts) {
      const weights::TensorInfo& tensor = *part.tensor;
      const std::int64_t rows = tensor.rows();
      const std::int64_t taken =
          part.lines != 0 ? part.lines * part.rows / tensor.columns() : part.rows;
      report_.bytes_read += static_cast<std::int64_t>(tensor.bytes.size()) * std::min(taken, rows) /
                            rows;  // vectors count values
    }
    if (options_.progress) {
      options_.progress(static_cast<double>(report_.bytes_read) /
                        static_cast<double>(model_files_.total_bytes()));
    }
  }

  const kernels::KernelContext& context_;
  const ModelConfig& config_;
  const weights::ModelFiles& model_files_;
  const PackOptions& options_;
  PackReport& report_;
  Tally tally_;
  TensorMap map_;
  device::Arena storage_;
};

// Visitor that fills weights from parts that are packed already.
class Viewer {
 public:
  Viewer(std::span<const PackedPart> parts, PackReport& report)
      : parts_(parts), tally_(report, nullptr) {}

  Status matrix(const WeightId& id, PackedWeights& weights, std::int64_t columns,
                std::int64_t depth) {
    QUIRE_TRY(const PackedPart* part, take(true, columns, depth));
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): take has looked
    weights = PackedWeights::view(*part->format, columns, depth, part->bytes);
    return tally_.matrix(id, weights);
  }

  Status vector(const WeightId& id, std::vector<float>& values, std::int64_t size) {
    QUIRE_TRY(const PackedPart* part, take(false, size, 0));
    values.resize(static_cast<std::size_t>(size));
    std::memcpy(values.data(), part->bytes.data(), part->bytes.size());
    return tally_.vector(id, values);
  }

  Status finish() {
    tally_.finish();
    return taken_ == parts_.size() ? Status() : mismatch();
  }

 private:
  Result<const PackedPart*> take(bool is_matrix, std::int64_t columns, std::int64_t depth) {
    if (taken_ < parts_.size()) {
      const PackedPart& next = parts_[taken_];
      if (next.format.has_value() == is_matrix && next.columns == columns && next.depth == depth) {
        ++taken_;
        return &next;
      }
    }
    return mismatch();
  }
  [[nodiscard]] Error mismatch() const {
    return {.code = ErrorCode::kCorrupt,
            .message = base::str_cat("packed weight ", taken_, " of ", parts_.size(),
                                     " is not what the config wants")};
  }

  std::span<const PackedPart> parts_;
  std::size_t taken_ = 0;
  Tally tally_;
};

// Visitor that lists weights.
struct Lister {
  std::vector<PackedPart>& parts;

  Status matrix(const WeightId& /*id*/, const PackedWeights& weights, std::int64_t columns,
                std::int64_t depth) {
    parts.push_back({.format = weights.format(),
                     .columns = columns,
                     .depth = depth,
                     .bytes = {weights.data(), weights.size_bytes()}});
    return {};
  }
  Status vector(const WeightId& /*id*/, const std::vector<float>& values, std::int64_t size) {
    parts.push_back({.columns = size, .bytes = std::as_bytes(std::span(values))});
    return {};
  }
};

// Returns the next number of a good 64-bit mix (Steele, Lea & Flood 2014), so that any row can be
// drawn without the others.
std::uint64_t split_mix(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15U;
  std::uint64_t z = state;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

// Visitor that fills weights from numbers of the sum of four uniform bytes: near normal, and eight
// draws cost a few nanoseconds.
class Randomizer {
 public:
  Randomizer(const kernels::KernelContext& context, const ModelConfig& config,
             const PackOptions& options, std::uint64_t seed, PackReport& report)
      : context_(context),
        config_(config),
        format_(options.format),
        seed_(seed),
        tally_(report, options.sink),
        storage_(storage_for(options.sink)) {}

  Status matrix(const WeightId& id, PackedWeights& weights, std::int64_t columns,
                std::int64_t depth) {
    const std::uint64_t matrix_seed = split_mix(seed_);
    const float deviation = 1.0f / std::sqrt(static_cast<float>(depth));
    const auto rows = [=](std::int64_t first, std::int64_t count, std::span<float> out) {
      for (std::int64_t i = 0; i < count; ++i) {
        const auto width = static_cast<std::size_t>(depth);
        draw(matrix_seed + static_cast<std::uint64_t>(first + i), deviation,
             out.subspan(static_cast<std::size_t>(i) * width, width));
      }
    };
    const WeightFormat format = weight_format(config_, id.role, format_);
    weights = PackedWeights::pack(context_, format, columns, depth, rows, &storage_);
    QUIRE_TRY_STATUS(check_memory(weights));
    return tally_.matrix(id, weights);
  }

  Status vector(const WeightId& id, std::vector<float>& values, std::int64_t size) {
    values.assign(static_cast<std::size_t>(size), id.role == WeightRole::kDecay ? -0.1f : 1.0f);
    const bool is_bias = id.bias || id.role == WeightRole::kChoiceBias;
    if (is_bias || id.role == WeightRole::kConv || id.role == WeightRole::kDecayShift) {
      draw(split_mix(seed_), is_bias ? 0.02f : 0.5f, values);
    }
    return tally_.vector(id, values);
  }

  void finish() { tally_.finish(); }

 private:
  static void draw(std::uint64_t state, float deviation, std::span<float> out) {
    constexpr float kUnit = 1.0f / 147.8f;  // deviation of the sum of four bytes
    constexpr float kMean = 510.0f;
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      bits = i % 2 == 0 ? split_mix(state) : bits >> 32U;
      const std::uint64_t sum =
          (bits & 255U) + (bits >> 8U & 255U) + (bits >> 16U & 255U) + (bits >> 24U & 255U);
      out[i] = (static_cast<float>(sum) - kMean) * (kUnit * deviation);
    }
  }

  const kernels::KernelContext& context_;
  const ModelConfig& config_;
  WeightFormat format_;
  std::uint64_t seed_;
  Tally tally_;
  device::Arena storage_;
};

}  // namespace

Result<std::map<std::string, std::string>> computed_as(const ModelConfig& config,
                                                       const weights::ModelFiles& model_files) {
  DecoderWeights none;
  none.layers.resize(static_cast<std::size_t>(config.layers));
  std::map<std::string, std::string> computed;
  const TensorMap map(config, model_files);
  Describer describer(map, computed);
  QUIRE_TRY_STATUS(visit_weights(config, none, describer));
  return computed;
}

Result<std::int64_t> own_weight_bytes(const ModelConfig& config,
                                      const weights::ModelFiles& model_files, WeightFormat format) {
  DecoderWeights none;
  none.layers.resize(static_cast<std::size_t>(config.layers));
  const TensorMap map(config, model_files);
  Sizer sizer{config, map, format};
  QUIRE_TRY_STATUS(visit_weights(config, none, sizer));
  return sizer.total;
}

Result<DecoderWeights> pack_weights(const kernels::KernelContext& context,
                                    const ModelConfig& config,
                                    const weights::ModelFiles& model_files,
                                    const PackOptions& options, PackReport& report) {
  QUIRE_TRY_STATUS(TensorMap(config, model_files).check_all());
  DecoderWeights weights;
  weights.layers.resize(static_cast<std::size_t>(config.layers));
  report = {};
  Packer packer(context, config, model_files, options, report);
  QUIRE_TRY_STATUS(visit_weights(config, weights, packer));
  QUIRE_TRY_STATUS(check_expert_formats(weights));
  packer.finish();
  return weights;
}

Result<DecoderWeights> view_weights(const ModelConfig& config, std::span<const PackedPart> parts,
                                    PackReport& report) {
  DecoderWeights weights;
  weights.layers.resize(static_cast<std::size_t>(config.layers));
  report = {};
  Viewer viewer(parts, report);
  QUIRE_TRY_STATUS(visit_weights(config, weights, viewer));
  QUIRE_TRY_STATUS(viewer.finish());
  QUIRE_TRY_STATUS(check_expert_formats(weights));
  report.mapped_bytes = report.packed_bytes;
  return weights;
}

std::vector<PackedPart> packed_parts_of(const ModelConfig& config, const DecoderWeights& weights) {
  std::vector<PackedPart> parts;
  Lister lister{parts};
  (void)visit_weights(config, weights, lister);  // never fails
  return parts;
}

Result<DecoderWeights> random_weights(const kernels::KernelContext& context,
                                      const ModelConfig& config, const PackOptions& options,
                                      std::uint64_t seed, PackReport& report) {
  DecoderWeights weights;
  weights.layers.resize(static_cast<std::size_t>(config.layers));
  Randomizer randomizer(context, config, options, seed, report);
  QUIRE_TRY_STATUS(visit_weights(config, weights, randomizer));
  randomizer.finish();
  return weights;
}

}  // namespace quire::model
