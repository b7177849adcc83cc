#include "quire/model/state_maps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/parallel.h"
#include "quire/model/config.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_shape.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/state_view.h"

namespace quire::model {
namespace {

constexpr std::uint32_t kMagic = 0x314d5351;  // "QSM1"
constexpr std::int64_t kHeaderBytes = 16;
constexpr std::int64_t kMostColumns = 1024;  // StateShape::validate

// A head keeps no A whose norm is below this share of that of the identity. In 16 bits that moves a
// state by less than rounding does (research: 0.01 moves it by at most 9e-4).
constexpr double kForgotten16 = 0.01;
constexpr double kForgotten32 = 1e-8;

std::int64_t padded(std::int64_t bytes) { return (bytes + 3) / 4 * 4; }

// Sizes of what is kept of a layer, in numbers.
struct Sizes {
  explicit Sizes(const StateShape& shape)
      : has_matrix(shape.kind != MixerKind::kShortConv),
        is_scan(shape.kind == MixerKind::kStateScan),
        heads(has_matrix ? shape.value_heads : 0),
        a(has_matrix && !is_scan ? std::int64_t{shape.key_dim} * shape.key_dim : 0),
        b(has_matrix ? std::int64_t{shape.key_dim} * shape.value_dim : 0),
        keys(has_matrix ? std::int64_t{shape.key_heads} * shape.key_dim : 0),
        values(has_matrix ? std::int64_t{shape.value_heads} * shape.value_dim : 0),
        gates(std::int64_t{2} * heads),
        tail(shape.tail_size()) {}

  bool has_matrix;
  bool is_scan;
  std::int64_t heads;
  std::int64_t a, b;                 // of a head
  std::int64_t keys, values, gates;  // of a token
  std::int64_t tail;

  [[nodiscard]] std::int64_t numbers_of_token() const { return keys + values + gates; }
  // Returns the bytes of an array as it is packed.
  [[nodiscard]] static std::int64_t array_bytes(std::int64_t count, bool in_32_bits) {
    return in_32_bits ? 4 * count : 4 + padded(2 * count);
  }
  [[nodiscard]] std::int64_t map_bytes(bool in_32_bits) const {
    const std::int64_t a_bytes = is_scan ? 4 : 4 + array_bytes(a, in_32_bits);
    return heads * (a_bytes + array_bytes(b, in_32_bits));
  }
  [[nodiscard]] std::int64_t input_bytes(std::int64_t tokens, bool in_32_bits) const {
    return array_bytes(tokens * keys, in_32_bits) + array_bytes(tokens * values, in_32_bits) +
           4 * tokens * gates;
  }
  [[nodiscard]] bool keeps_inputs(std::int64_t tokens, bool in_32_bits) const {
    return has_matrix && input_bytes(tokens, in_32_bits) < map_bytes(in_32_bits);
  }
};

// Writes numbers one after the other.
class MapWriter {
 public:
  explicit MapWriter(bool in_32_bits) : in_32_bits_(in_32_bits) {}

  void put(std::uint32_t value) { put_bytes(&value, sizeof value); }
  void put(std::span<const float> values) {
    put_bytes(values.data(), values.size_bytes());
    for (const float value : values) {
      finite_ = finite_ && std::isfinite(value);
    }
  }
  // Puts an array in 32 bits, or in fp16 with a power of two that keeps it within its range.
  void put_array(std::span<const float> values) {
    if (in_32_bits_) {
      return put(values);
    }
    float most = 0;
    for (const float value : values) {
      finite_ = finite_ && std::isfinite(value);
      most = std::max(most, std::abs(value));
    }
    constexpr int kTop = 15;  // numbers are below 2^15
    int exponent = 0;
    if (most > 0 && std::isfinite(most)) {
      (void)std::frexp(most, &exponent);
      exponent -= kTop;
    }
    put(static_cast<std::uint32_t>(exponent));
    std::vector<std::uint16_t> rounded(values.size() + values.size() % 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      rounded[i] = tensor::float_to_fp16(std::ldexp(values[i], -exponent));
    }
    put_bytes(rounded.data(), rounded.size() * sizeof(std::uint16_t));
  }

  [[nodiscard]] bool finite() const { return finite_; }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put_bytes(const void* data, std::size_t count) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + count);
  }

  bool in_32_bits_;
  bool finite_ = true;
  std::vector<std::byte> bytes_;
};

// Numbers of packed maps that are still packed.
struct PackedArray {
  const std::byte* data = nullptr;
  std::int64_t count = 0;
  bool in_32_bits = true;

  // Copies the numbers.
  void read(float* to) const {
    if (in_32_bits) {
      std::memcpy(to, data, static_cast<std::size_t>(count) * sizeof(float));
      return;
    }
    std::int32_t exponent = 0;
    std::memcpy(&exponent, data, sizeof exponent);
    const float factor = std::ldexp(1.0f, exponent);
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, data + 4 + 2 * i, sizeof bits);
      to[i] = tensor::fp16_to_float(bits) * factor;
    }
  }
};

// Maps of one head, and inputs of one layer, as they are packed.
struct PackedHead {
  std::int64_t layer = 0;
  std::int32_t head = 0;
  bool has_a = false;
  float decay = 1;   // A of a state space
  PackedArray a, b;  // A is transposed
};
struct PackedInputs {
  PackedArray keys, values, gates;
};
struct PackedMaps {
  bool in_32_bits = false;
  bool keeps_inputs = false;
  std::int32_t tokens = 0;
  std::vector<PackedArray> tails;                  // [layers]
  std::vector<PackedInputs> inputs;                // [layers] or empty
  std::vector<PackedHead> heads;                   // of all layers, or empty
  std::vector<std::span<const std::byte>> layers;  // [layers] all that is packed of one
};

Error corrupt() {
  return {.code = ErrorCode::kCorrupt, .message = "the maps of a chunk are damaged"};
}

// Reads where everything is.
class MapReader {
 public:
  explicit MapReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] Result<PackedMaps> read(const ModelConfig& config) {
    const Sizes sizes(config.state);
    PackedMaps maps;
    if (word() != kMagic) {
      return corrupt();
    }
    const std::uint32_t flags = word();
    maps.in_32_bits = (flags & 1) != 0;
    maps.keeps_inputs = (flags & 2) != 0;
    maps.tokens = static_cast<std::int32_t>(word());
    const std::int64_t layers = word();
    const bool plausible = layers == config.state_layers() && maps.tokens > 0 &&
                           maps.tokens <= (1 << 24) && (!maps.keeps_inputs || sizes.has_matrix);
    if (!plausible) {
      return corrupt();
    }
    in_32_bits_ = maps.in_32_bits;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::int64_t begin = next_;
      maps.tails.push_back(array(sizes.tail, true));
      if (maps.keeps_inputs) {
        PackedInputs inputs;
        inputs.keys = array(maps.tokens * sizes.keys, in_32_bits_);
        inputs.values = array(maps.tokens * sizes.values, in_32_bits_);
        inputs.gates = array(maps.tokens * sizes.gates, true);
        maps.inputs.push_back(inputs);
      }
      for (std::int32_t head = 0; !maps.keeps_inputs && head < sizes.heads; ++head) {
        maps.heads.push_back(read_head(sizes, layer, head));
      }
      maps.layers.push_back(
          bytes_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(next_ - begin)));
    }
    return bad_ ? Result<PackedMaps>(corrupt()) : Result<PackedMaps>(std::move(maps));
  }

 private:
  [[nodiscard]] PackedHead read_head(const Sizes& sizes, std::int64_t layer, std::int32_t head) {
    PackedHead packed;
    packed.layer = layer;
    packed.head = head;
    if (sizes.is_scan) {
      array(1, true).read(&packed.decay);
      packed.has_a = true;
    } else {
      packed.has_a = word() != 0;
      packed.a = array(packed.has_a ? sizes.a : 0, in_32_bits_, packed.has_a);
    }
    packed.b = array(sizes.b, in_32_bits_);
    return packed;
  }
  [[nodiscard]] std::uint32_t word() {
    std::uint32_t value = 0;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  [[nodiscard]] PackedArray array(std::int64_t count, bool in_32_bits, bool there = true) {
    const std::int64_t bytes = there ? Sizes::array_bytes(count, in_32_bits) : 0;
    return {.data = take(bytes), .count = bad_ ? 0 : count, .in_32_bits = in_32_bits};
  }
  [[nodiscard]] const std::byte* take(std::int64_t count) {
    static constexpr std::array<std::byte, 8> kNothing = {};
    if (bad_ || count > std::ssize(bytes_) - next_) {
      bad_ = true;
      return kNothing.data();
    }
    const std::byte* const here = bytes_.data() + next_;
    next_ += count;
    return here;
  }

  std::span<const std::byte> bytes_;
  std::int64_t next_ = 0;
  bool in_32_bits_ = false;
  bool bad_ = false;
};

// Runs the update of one head of a layer with a state. Drops its output.
void update(const kernels::KernelContext& context, bool is_scan, kernels::DeltaTask task) {
  std::array<float, kMostColumns> out = {};
  task.query = task.key;
  task.query_stride = task.key_stride;
  task.out = out.data();
  task.out_stride = 0;
  is_scan ? context.table->state_scan(task) : context.table->gated_delta(task);
}

constexpr float kOne = 1;

// Sets S to A S + B: adds the products of A's columns and S's rows to B, one after the other.
void apply_head(const kernels::KernelContext& context, const StateShape& shape,
                const PackedHead& packed, bool is_first, float* state) {
  const std::int64_t size = std::int64_t{shape.key_dim} * shape.value_dim;
  std::vector<float> after(static_cast<std::size_t>(size));
  packed.b.read(after.data());
  if (!is_first && shape.kind == MixerKind::kStateScan) {
    for (std::int64_t i = 0; i < size; ++i) {
      after[static_cast<std::size_t>(i)] += packed.decay * state[i];
    }
  } else if (!is_first && packed.has_a) {
    std::vector<float> columns(static_cast<std::size_t>(packed.a.count));
    packed.a.read(columns.data());
    update(context, true,
           {.key = columns.data(),
            .value = state,
            .decay = &kOne,
            .beta = &kOne,
            .key_stride = shape.key_dim,
            .value_stride = shape.value_dim,
            .state = after.data(),
            .state_stride = shape.value_dim,
            .rows = shape.key_dim,
            .key_dim = shape.key_dim,
            .columns = shape.value_dim});
  }
  std::ranges::copy(after, state);
}

// Runs the kept inputs of a layer through the update.
void apply_inputs(const kernels::KernelContext& context, const StateShape& shape,
                  const PackedInputs& packed, std::int32_t tokens, float* state) {
  const Sizes sizes(shape);
  std::vector<float> keys(static_cast<std::size_t>(packed.keys.count));
  std::vector<float> values(static_cast<std::size_t>(packed.values.count));
  std::vector<float> gates(static_cast<std::size_t>(packed.gates.count));
  packed.keys.read(keys.data());
  packed.values.read(values.data());
  packed.gates.read(gates.data());
  kernels::parallel_ranges(context, sizes.heads, tokens * sizes.b,
                           [&](std::int64_t first, std::int64_t last) {
                             for (std::int64_t head = first; head < last; ++head) {
                               const auto key = shape.key_head(static_cast<std::int32_t>(head));
                               update(context, sizes.is_scan,
                                      {.key = keys.data() + std::int64_t{key} * shape.key_dim,
                                       .value = values.data() + head * shape.value_dim,
                                       .decay = gates.data() + sizes.heads + head,
                                       .beta = gates.data() + head,
                                       .key_stride = sizes.keys,
                                       .value_stride = sizes.values,
                                       .gate_stride = sizes.gates,
                                       .state = state + head * sizes.b,
                                       .state_stride = shape.value_dim,
                                       .rows = tokens,
                                       .key_dim = shape.key_dim,
                                       .columns = shape.value_dim});
                             }
                           });
}

// Returns a square matrix with its columns as rows.
std::vector<float> transposed(std::span<const float> matrix) {
  const auto side = static_cast<std::size_t>(std::lround(std::sqrt(matrix.size())));
  std::vector<float> turned(matrix.size());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    turned[i % side * side + i / side] = matrix[i];
  }
  return turned;
}

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) {
    sum += double{value} * value;
  }
  return std::sqrt(sum);
}

}  // namespace

StateMaps::StateMaps(const ModelConfig& config, std::int32_t tokens, bool in_32_bits)
    : config_(config), tokens_(tokens), in_32_bits_(in_32_bits) {
  const Sizes sizes(config.state);
  keeps_inputs_ = sizes.keeps_inputs(tokens, in_32_bits);
  head_size_ = sizes.a + sizes.b;
  layer_size_ = keeps_inputs_ ? tokens * sizes.numbers_of_token() : sizes.heads * head_size_;
  const std::int64_t layers = config.state_layers();
  numbers_.resize(static_cast<std::size_t>(layers * layer_size_));
  decays_.resize(
      static_cast<std::size_t>(sizes.is_scan && !keeps_inputs_ ? layers * sizes.heads : 0));
  begin();
}

std::int64_t StateMaps::most_bytes(const ModelConfig& config, std::int32_t tokens,
                                   bool in_32_bits) {
  const Sizes sizes(config.state);
  const std::int64_t kept = sizes.keeps_inputs(tokens, in_32_bits)
                                ? sizes.input_bytes(tokens, in_32_bits)
                                : sizes.map_bytes(in_32_bits);
  return kHeaderBytes + config.state_layers() * (4 * sizes.tail + kept);
}

// Sets each A to the identity and each B to zeros.
void StateMaps::begin() {
  std::ranges::fill(numbers_, 0.0f);
  std::ranges::fill(decays_, 1.0);
  const Sizes sizes(config_.state);
  for (std::size_t layer = 0; !keeps_inputs_ && sizes.a > 0 && layer < layers(); ++layer) {
    for (std::int32_t head = 0; head < sizes.heads; ++head) {
      for (std::int64_t i = 0; i < config_.state.key_dim; ++i) {
        at(layer, head)[i * config_.state.key_dim + i] = 1.0f;
      }
    }
  }
}

std::size_t StateMaps::layers() const { return static_cast<std::size_t>(config_.state_layers()); }

void StateMaps::grow(const kernels::KernelContext& context, std::size_t layer,
                     const MapRows& rows) {
  QUIRE_CHECK(rows.first >= 0 && rows.first + rows.count <= tokens_, "rows of another chunk");
  if (keeps_inputs_) {
    return keep_inputs(layer, rows);
  }
  const Sizes sizes(config_.state);
  kernels::parallel_ranges(context, sizes.heads, rows.count * head_size_,
                           [&](std::int64_t first, std::int64_t last) {
                             for (std::int64_t head = first; head < last; ++head) {
                               grow_head(context, layer, rows, static_cast<std::int32_t>(head));
                             }
                           });
}

void StateMaps::grow_head(const kernels::KernelContext& context, std::size_t layer,
                          const MapRows& rows, std::int32_t head) {
  const StateShape& shape = config_.state;
  const Sizes sizes(shape);
  float* const a = at(layer, head);
  kernels::DeltaTask task{.key = rows.key + std::int64_t{shape.key_head(head)} * shape.key_dim,
                          .value = rows.value + std::int64_t{head} * shape.value_dim,
                          .decay = rows.gates + sizes.heads + head,
                          .beta = rows.gates + head,
                          .key_stride = rows.stride,
                          .value_stride = rows.stride,
                          .gate_stride = sizes.gates,
                          .state = a + sizes.a,
                          .state_stride = shape.value_dim,
                          .rows = rows.count,
                          .key_dim = shape.key_dim,
                          .columns = shape.value_dim};
  update(context, sizes.is_scan, task);
  if (sizes.is_scan) {
    double& decay =
        decays_[layer * static_cast<std::size_t>(sizes.heads) + static_cast<std::size_t>(head)];
    for (std::int32_t row = 0; row < rows.count; ++row) {
      decay *= task.decay[row * task.gate_stride];
    }
    return;
  }
  constexpr std::array<float, kMostColumns> kNoValue = {};
  task.value = kNoValue.data();
  task.value_stride = 0;
  task.state = a;
  task.state_stride = shape.key_dim;
  task.columns = shape.key_dim;
  update(context, false, task);
}

void StateMaps::keep_inputs(std::size_t layer, const MapRows& rows) {
  const Sizes sizes(config_.state);
  float* const keys = numbers_.data() + static_cast<std::int64_t>(layer) * layer_size_;
  float* const values = keys + tokens_ * sizes.keys;
  float* const gates = values + tokens_ * sizes.values;
  for (std::int32_t row = 0; row < rows.count; ++row) {
    const std::int64_t token = std::int64_t{rows.first} + row;
    std::copy_n(rows.key + row * rows.stride, sizes.keys, keys + token * sizes.keys);
    std::copy_n(rows.value + row * rows.stride, sizes.values, values + token * sizes.values);
    std::copy_n(rows.gates + row * sizes.gates, sizes.gates, gates + token * sizes.gates);
  }
}

Result<std::vector<std::byte>> StateMaps::pack(std::span<const std::byte> state) const {
  const StateShape& shape = config_.state;
  const Sizes sizes(shape);
  const tensor::StateGeometry geometry = config_.state_geometry();
  const std::span<const float> all(numbers_);
  const auto part = [](std::span<const float> of, std::int64_t first, std::int64_t count) {
    return of.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  };
  const double forgotten = (in_32_bits_ ? kForgotten32 : kForgotten16) * std::sqrt(shape.key_dim);
  MapWriter writer(in_32_bits_);
  writer.put(kMagic);
  writer.put((in_32_bits_ ? 1U : 0U) | (keeps_inputs_ ? 2U : 0U));
  writer.put(static_cast<std::uint32_t>(tokens_));
  writer.put(static_cast<std::uint32_t>(layers()));
  for (std::size_t layer = 0; layer < layers(); ++layer) {
    const auto* tail = reinterpret_cast<const float*>(state.data() + geometry.offsets[layer]);
    writer.put(std::span(tail, static_cast<std::size_t>(sizes.tail)));
    const auto own = part(all, static_cast<std::int64_t>(layer) * layer_size_, layer_size_);
    if (keeps_inputs_) {
      writer.put_array(part(own, 0, tokens_ * sizes.keys));
      writer.put_array(part(own, tokens_ * sizes.keys, tokens_ * sizes.values));
      writer.put(part(own, tokens_ * (sizes.keys + sizes.values), tokens_ * sizes.gates));
      continue;
    }
    for (std::int64_t head = 0; head < sizes.heads; ++head) {
      const auto a = part(own, head * head_size_, sizes.a);
      if (sizes.is_scan) {
        const auto decay =
            static_cast<float>(decays_[layer * static_cast<std::size_t>(sizes.heads) +
                                       static_cast<std::size_t>(head)]);
        writer.put(std::span(&decay, 1));
      } else {
        const bool has_a = norm(a) >= forgotten;
        writer.put(has_a ? 1U : 0U);
        if (has_a) {
          writer.put_array(transposed(a));
        }
      }
      writer.put_array(part(own, head * head_size_ + sizes.a, sizes.b));
    }
  }
  if (!writer.finite()) {
    return {ErrorCode::kUnsupported,
            "the states behind the chunk have a NaN or an infinity, so it cannot be kept"};
  }
  return writer.take();
}

Status apply_maps(const kernels::KernelContext& context, const ModelConfig& config,
                  std::span<const std::byte> packed, bool is_first, std::span<std::byte> state) {
  QUIRE_TRY(const PackedMaps maps, MapReader(packed).read(config));
  const StateShape& shape = config.state;
  const Sizes sizes(shape);
  const tensor::StateGeometry geometry = config.state_geometry();
  const auto matrices = [&](std::int64_t layer) {
    std::byte* const begin = state.data() + geometry.offsets[static_cast<std::size_t>(layer)];
    return reinterpret_cast<float*>(begin) + sizes.tail;
  };
  for (std::int64_t layer = 0; layer < std::ssize(maps.tails); ++layer) {
    float* const matrix = matrices(layer);
    maps.tails[static_cast<std::size_t>(layer)].read(matrix - sizes.tail);
    if (is_first) {
      std::fill_n(matrix, sizes.heads * sizes.b, 0.0f);
    }
    if (maps.keeps_inputs) {
      apply_inputs(context, shape, maps.inputs[static_cast<std::size_t>(layer)], maps.tokens,
                   matrix);
    }
  }
  kernels::parallel_ranges(context, std::ssize(maps.heads), sizes.b * shape.key_dim,
                           [&](std::int64_t first, std::int64_t last) {
                             for (std::int64_t i = first; i < last; ++i) {
                               const PackedHead& head = maps.heads[static_cast<std::size_t>(i)];
                               apply_head(context, shape, head, is_first,
                                          matrices(head.layer) + head.head * sizes.b);
                             }
                           });
  return {};
}

Result<std::vector<std::byte>> merge_maps(const ModelConfig& config,
                                          std::span<const std::byte> stored,
                                          std::span<const std::byte> fresh,
                                          const std::function<bool(std::int32_t layer)>& takes) {
  QUIRE_TRY(const PackedMaps old, MapReader(stored).read(config));
  QUIRE_TRY(const PackedMaps made, MapReader(fresh).read(config));
  if (old.in_32_bits != made.in_32_bits || old.keeps_inputs != made.keeps_inputs ||
      old.tokens != made.tokens) {
    return corrupt();
  }
  std::vector<std::byte> merged(stored.begin(), stored.begin() + kHeaderBytes);
  std::size_t next = 0;  // layer with a state
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    if (config.mixers[static_cast<std::size_t>(layer)] == config.state.kind) {
      const auto bytes = (takes(layer) ? made : old).layers[next++];
      merged.insert(merged.end(), bytes.begin(), bytes.end());
    }
  }
  return merged;
}

}  // namespace quire::model
